//! What can be known of sessions: projections, titles, statistics, search.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that meets an error has failed"))]
