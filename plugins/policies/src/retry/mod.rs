//! Retry: a failed request is sent again, as the policy of its route says.
//!
//! The policy comes with the failure, from the adapter that was called
//! ([`LlmAdapter::retry_policy`](playhouse_plugin_api::llm::LlmAdapter::retry_policy)); the plugin
//! has no settings of its own. How often a step was retried is counted from its log, so neither a
//! reload nor a restart gives the budget back.
//!
//! - [`mod@decide`]: whether to try again, and when, as a pure function.
//! - [`event`]: what is logged of it.

pub mod decide;
pub mod event;
mod plugin;

pub use self::{
    decide::{Decision, decide},
    event::{RETRY_KIND, RETRY_STARTED_KIND, Scheduled, Started},
    plugin::Retry,
};
