//! The server against the client of the protocol's own library, over pipes in memory.

mod rig;
mod scenarios;
mod sessions;
