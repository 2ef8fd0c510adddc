//! Failed requests: retried as their route says, and taken over by other routes.

mod fallback;
mod retry;
mod rig;
mod wire;
