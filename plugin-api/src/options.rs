//! What an agent is made with, and the limits that guard it.

use std::{
    str::FromStr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use playhouse_messages::config::ModelChoice;

use crate::{budget::Budget, undurable::UNDURABLE_BYTES_DEFAULT};

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
    /// `budget` and resource `steps`, as it does when a [`Budget::steps`] over all turns runs out.
    pub max_steps: u32,
    /// The most levels of delegation below a root; the agent may delegate while its own depth is
    /// below it.
    pub max_depth: u32,
    /// What the agent itself may spend over all its lives. Its children have none of it.
    pub budget: Option<Budget>,
    /// What the agent and all below it may spend together, over all its lives.
    pub tree_budget: Option<Budget>,
    /// When the log is made durable; the harness's default if absent.
    pub durability: Option<Durability>,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            model: None,
            max_tokens: None,
            max_steps: MAX_STEPS_DEFAULT,
            max_depth: MAX_DEPTH_DEFAULT,
            budget: None,
            tree_budget: None,
            durability: None,
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

    /// The same options with a budget for the agent alone. The harness needs a plugin that enforces it.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The same options with a budget that the agent shares with all below it. The harness needs a
    /// plugin that enforces it.
    #[must_use]
    pub fn tree_budget(mut self, budget: Budget) -> Self {
        self.tree_budget = Some(budget);
        self
    }

    /// The same options with a checkpoint policy of its own, whatever the harness's.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }
}

/// When a session's log is made durable, and what a crash can cost.
///
/// Under every policy an event goes to the store as soon as it is accepted; one that is accepted and
/// not yet written is lost by `kill -9`, and one that is written and not yet synced by power loss.
/// Whoever must know awaits [`Session::flush`](crate::session::Session::flush). Disposal and
/// shutdown make the whole log durable under every policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The log is durable before a step, before a request, before a tool's body (calls that a tool
    /// makes are covered by its own checkpoint), and at a turn's end before idle is announced. A
    /// failed checkpoint fails what it guards. What is streamed is written before it is shown.
    ///
    /// `kill -9` costs nothing that was shown: the record of every request and tool call is there,
    /// and so is every text that was seen. Power loss costs no such record either, but perhaps text
    /// that was streamed within the store's window. A result that was not yet written or synced may
    /// be gone with either; its call then has an unknown outcome. Idle means durable.
    #[default]
    Strict,
    /// Nothing waits for the disk: the store syncs by its own write-behind window (200 ms in the
    /// journal). What is streamed is shown first and written right behind.
    ///
    /// `kill -9` costs what one write takes: the last events, and the last words that were shown.
    /// Power loss costs the last window. A provider's bill or a tool's effect may lack its record,
    /// and idle does not mean durable.
    Relaxed,
    /// Nothing waits, and what is streamed is not written before it has settled.
    ///
    /// `kill -9` costs what [`Durability::Relaxed`] costs, and all text of an answer that was still
    /// streaming. Power loss costs all that the store has not synced on its own account: the last
    /// window, or with a store that has none everything since the last flush.
    None,
}

impl Durability {
    /// Its name in configs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Relaxed => "relaxed",
            Self::None => "none",
        }
    }
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no durability \"{0}\"; there are strict, relaxed and none")]
pub struct UnknownDurability(pub String);

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let all = [Self::Strict, Self::Relaxed, Self::None];
        let found = all.into_iter().find(|durability| durability.name() == name);
        found.ok_or_else(|| UnknownDurability(name.to_owned()))
    }
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
