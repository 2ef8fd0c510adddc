//! A model call that was resolved and not yet sent.

use std::sync::{Arc, Weak};

use crate::{
    config::{AdapterDefaults, CallConfig, SystemPromptUpdate, ToolUpdate},
    retry::RetryPolicy,
};

/// What the loop knows of a prepared call: facts, and the ticket by which the provider's actor finds
/// the bound adapter again. Good for one dispatch.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Names the bound call at the provider's actor; `None` if no adapter serves the route, so that
    /// only stream middleware can.
    pub ticket: Option<Ticket>,
    /// The configuration with defaults filled in.
    pub config: CallConfig,
    /// Which fields the adapter filled in.
    pub adapter_defaults: AdapterDefaults,
    /// The model's context window in tokens.
    pub context_window: Option<u64>,
    /// How the route takes a changed prompt.
    pub system_prompt_update: Option<SystemPromptUpdate>,
    /// How the route takes a changed tool set.
    pub tool_update: Option<ToolUpdate>,
    /// How failures of the route may be retried.
    pub retry_policy: Option<RetryPolicy>,
}

impl Prepared {
    /// A call on a route that no adapter serves: all capabilities absent.
    pub fn unserved(config: CallConfig) -> Self {
        Self {
            ticket: None,
            config,
            adapter_defaults: AdapterDefaults::default(),
            context_window: None,
            system_prompt_update: None,
            tool_update: None,
            retry_policy: None,
        }
    }
}

/// Names a bound call at its provider's actor, which lets go of the call once no clone is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket(Arc<u64>);

impl Ticket {
    /// A ticket.
    pub fn new(number: u64) -> Self {
        Self(Arc::new(number))
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        *self.0
    }

    /// Tells the holder of the bound call when the last clone is gone.
    pub fn downgrade(&self) -> Weak<u64> {
        Arc::downgrade(&self.0)
    }
}
