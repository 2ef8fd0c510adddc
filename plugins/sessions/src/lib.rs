//! What can be known of sessions: projections, titles, statistics, search.
//!
//! - [`Projections`]: values folded from a session's log, live or stored, with a cache in the store.
//! - [`Titles`]: what a session is called.
//! - [`SessionStats`]: how long its turns took.
//! - [`SessionQuery`]: which sessions there are, and what is in them.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that meets an error has failed"))]

pub mod projection;
pub mod query;
#[cfg(test)]
mod rig;
mod stats;
mod stored;
pub mod title;

pub use self::{
    projection::{Projection, ProjectionError, Projections, SessionProjections, Snapshot},
    query::{QueryError, SessionQuery},
    stats::{SESSION_STATS, SessionStats, Stats, StatsState},
    title::{TITLE_KIND, TITLE_REQUEST_KIND, TitleProjection, Titles},
};

/// The event kinds that these plugins write. Their events are ignorable; a harness that knows the
/// kinds also loads logs whose writer did not say so.
pub const EVENT_KINDS: [&str; 2] = [TITLE_KIND, TITLE_REQUEST_KIND];
