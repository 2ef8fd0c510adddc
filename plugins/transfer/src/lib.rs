//! Export and import of sessions.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that meets an error has failed"))]
