//! A cap on concurrent model requests, fair among trees of agents.
//!
//! - [`queue`]: who is next, a pure data structure.
//! - [`permits`]: permits as guards, and waiting for one.
//! - [`FairRequests`]: the plugin that has every model stream await a permit.

pub mod permits;
mod plugin;
pub mod queue;

pub use self::{
    permits::{Permit, Permits},
    plugin::FairRequests,
    queue::Caps,
};
