//! What an agent is made with, and the limits that guard it.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use playhouse_messages::config::ModelChoice;

use crate::undurable::UNDURABLE_BYTES_DEFAULT;

/// Steps that a turn may have unless told otherwise.
pub const MAX_STEPS_DEFAULT: u32 = 100;

/// Levels of delegation below a root unless told otherwise.
pub const MAX_DEPTH_DEFAULT: u32 = 3;

/// Tool calls of one batch that may run at once unless told otherwise.
pub const MAX_PARALLEL_TOOL_CALLS_DEFAULT: usize = 10;

/// What an agent is made with. Saved history overrules `model`: a session that records a choice
/// keeps it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AgentOptions {
    /// The route to use while the session records no choice.
    pub model: Option<ModelChoice>,
    /// The output limit of one request, in tokens; positive.
    pub max_tokens: Option<u64>,
    /// The most steps of one turn; 0 for no limit. A turn that would need more ends with reason
    /// `budget`.
    pub max_steps: u32,
    /// The most levels of delegation below a root; the agent may delegate while its own depth is
    /// below it.
    pub max_depth: u32,
    /// When the log is made durable.
    pub durability: Durability,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            model: None,
            max_tokens: None,
            max_steps: MAX_STEPS_DEFAULT,
            max_depth: MAX_DEPTH_DEFAULT,
            durability: Durability::Strict,
        }
    }
}

impl AgentOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same options with a route.
    #[must_use]
    pub fn model(mut self, provider: impl Into<String>, model: impl Into<String>) -> Self {
        let (provider, model) = (provider.into(), model.into());
        self.model = Some(ModelChoice { provider, model, reasoning_effort: None });
        self
    }

    /// The same options with a reasoning effort for the route. It belongs to the route, so name that
    /// first: without one it does nothing.
    #[must_use]
    pub fn reasoning_effort(mut self, effort: impl Into<String>) -> Self {
        if let Some(model) = &mut self.model {
            model.reasoning_effort = Some(effort.into());
        }
        self
    }

    /// The same options with an output limit.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: u64) -> Self {
        self.max_tokens = Some(max_tokens);
        self
    }

    /// The same options with a step limit; 0 for none.
    #[must_use]
    pub fn max_steps(mut self, max_steps: u32) -> Self {
        self.max_steps = max_steps;
        self
    }

    /// The same options with a delegation limit.
    #[must_use]
    pub fn max_depth(mut self, max_depth: u32) -> Self {
        self.max_depth = max_depth;
        self
    }

    /// The same options with another checkpoint policy.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }
}

/// When a session's log is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Durability {
    /// Before a step, before a request, before a tool body, and at a turn's end before idle is
    /// announced; a failed checkpoint fails what it guards. Power loss costs nothing that was acted
    /// on.
    #[default]
    Strict,
    /// By the store's write-behind window only. Power loss may cost the last moments, and a
    /// provider's bill or a tool's effect may lack its record.
    Relaxed,
    /// Never on the agent's account: only an explicit flush or close.
    None,
}

/// Limits of a harness that can be changed while it runs.
#[derive(Debug)]
pub struct Limits {
    max_parallel_tool_calls: AtomicUsize,
    /// How long started tools and hooks are awaited after a cancel.
    pub grace: Duration,
    /// How many bytes all sessions together may have accepted and not made durable before senders and
    /// streams wait. A change counts for harnesses that are started after it.
    pub undurable_bytes: u64,
}

impl Limits {
    /// The defaults: 10 tool calls at once, 10 s of grace, 64 MiB not durable.
    pub fn new() -> Self {
        Self {
            max_parallel_tool_calls: AtomicUsize::new(MAX_PARALLEL_TOOL_CALLS_DEFAULT),
            grace: Duration::from_secs(10),
            undurable_bytes: UNDURABLE_BYTES_DEFAULT,
        }
    }

    /// How many tool calls of one batch may run at once. Read by each batch when it starts.
    pub fn max_parallel_tool_calls(&self) -> usize {
        self.max_parallel_tool_calls.load(Ordering::Relaxed)
    }

    /// Changes it, from the next batch on. Returns whether the value was taken: it must be positive.
    pub fn set_max_parallel_tool_calls(&self, calls: usize) -> bool {
        if calls > 0 {
            self.max_parallel_tool_calls.store(calls, Ordering::Relaxed);
        }
        calls > 0
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}
