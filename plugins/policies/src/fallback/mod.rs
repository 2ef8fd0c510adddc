//! Fallback models: a step whose route has failed goes on with another one.
//!
//! The plugin acts when nobody else recovers from a failure, so after retry has given up. It
//! records what it does and why, chooses the new route for the session (later steps follow, and
//! the next request's header shows it), and has the step go on. Within a step no route is tried
//! again once it has failed, as the log tells.
//!
//! - [`policy`]: for which failures, and to which routes.
//! - [`event`]: what is logged of it.

pub mod event;
mod plugin;
pub mod policy;

pub use self::{
    event::{FALLBACK_KIND, FellBack, SkipReason, Skipped},
    plugin::Fallback,
    policy::{FallbackError, FallbackPolicy},
};
