//! Budgets: what an agent, or an agent and all below it, may spend.
//!
//! A [`Budget`] is an option of an agent. Whoever makes the agent opens an [`Account`] for it, which
//! charges the ledgers of the agent and those of the trees that it stands in. Nothing here enforces:
//! that is done by a plugin on the hook points, which says so by the service [`BUDGETS_SERVICE`]. An
//! agent with a budget is refused where there is none.

mod account;
mod error;
mod fold;
mod ledger;
mod prices;
mod status;

use std::time::Duration;

use playhouse_messages::json::INTEGER_MAX;

pub use self::{
    account::{Account, LiveChild, Opening, Refused, Reserved},
    error::BudgetError,
    fold::{BUDGET_CHARGED, Charged, Meter, Spent, estimated_tokens, tokens_of},
    ledger::Ledger,
    prices::{Price, Prices},
    status::{BudgetStatus, ResourceStatus},
};

/// The service by which a harness says that budgets are enforced in it, and what models cost: the
/// plugin's [`Prices`].
pub const BUDGETS_SERVICE: &str = "budgets";

/// What can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Tokens of requests: input, cached or not, and output.
    Tokens,
    /// What requests cost, in millionths of the currency of the prices.
    Cost,
    /// Turns that opened a step.
    Turns,
    /// Steps, over all turns.
    Steps,
    /// Tool calls that the policy stage saw.
    ToolCalls,
    /// Time in which an agent runs, in milliseconds.
    WallTime,
    /// Agents below that live at once.
    LiveChildren,
    /// Levels of agents below.
    Depth,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Tokens,
        Self::Cost,
        Self::Turns,
        Self::Steps,
        Self::ToolCalls,
        Self::WallTime,
        Self::LiveChildren,
        Self::Depth,
    ];

    /// Its name in logs and texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Cost => "cost",
            Self::Turns => "turns",
            Self::Steps => "steps",
            Self::ToolCalls => "tool-calls",
            Self::WallTime => "wall-time",
            Self::LiveChildren => "live-children",
            Self::Depth => "depth",
        }
    }
}

/// So much of each resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts([u64; Resource::ALL.len()]);

impl Amounts {
    /// So much of one.
    pub fn of(resource: Resource, amount: u64) -> Self {
        Self::default().and(resource, amount)
    }

    /// And so much of another.
    #[must_use]
    pub fn and(mut self, resource: Resource, amount: u64) -> Self {
        self.add(resource, amount);
        self
    }

    /// How much of one.
    pub fn get(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }

    /// Adds to one.
    pub fn add(&mut self, resource: Resource, amount: u64) {
        let sum = &mut self.0[resource as usize];
        *sum = sum.saturating_add(amount);
    }

    /// Adds all of the other.
    pub fn add_all(&mut self, other: &Self) {
        Resource::ALL.into_iter().for_each(|resource| self.add(resource, other.get(resource)));
    }

    /// Whether it is nothing at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn take(&mut self, other: &Self) {
        for resource in Resource::ALL {
            let left = &mut self.0[resource as usize];
            *left = left.saturating_sub(other.get(resource));
        }
    }
}

/// Limits of what may be spent. What is not named is not limited.
///
/// ```
/// use playhouse_plugin_api::{budget::Budget, options::AgentOptions};
///
/// // The agent itself may have 20 turns; it and all below it together half a million tokens.
/// let options = AgentOptions::new()
///     .budget(Budget::new().turns(20))
///     .tree_budget(Budget::new().tokens(500_000).live_children(16));
/// # assert!(options.tree_budget.is_some());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget([Option<u64>; Resource::ALL.len()]);

impl Budget {
    /// No limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same budget with a limit of one resource; [`Resource::WallTime`] in milliseconds. At most
    /// 2^53-1 counts.
    #[must_use]
    pub fn limited(mut self, resource: Resource, limit: u64) -> Self {
        self.0[resource as usize] = Some(limit.min(INTEGER_MAX));
        self
    }

    /// So many tokens: input, cached or not, and output.
    #[must_use]
    pub fn tokens(self, tokens: u64) -> Self {
        self.limited(Resource::Tokens, tokens)
    }

    /// So many millionths of the currency of the prices. Every route that is used needs a price.
    #[must_use]
    pub fn cost(self, micros: u64) -> Self {
        self.limited(Resource::Cost, micros)
    }

    /// So many turns.
    #[must_use]
    pub fn turns(self, turns: u64) -> Self {
        self.limited(Resource::Turns, turns)
    }

    /// So many steps over all turns. Those of one turn are bounded by
    /// [`AgentOptions::max_steps`](crate::options::AgentOptions::max_steps).
    #[must_use]
    pub fn steps(self, steps: u64) -> Self {
        self.limited(Resource::Steps, steps)
    }

    /// So many tool calls.
    #[must_use]
    pub fn tool_calls(self, calls: u64) -> Self {
        self.limited(Resource::ToolCalls, calls)
    }

    /// So much time in which the agent runs; of a tree, in which any of its agents does. Counted in
    /// milliseconds.
    #[must_use]
    pub fn wall_time(self, time: Duration) -> Self {
        self.limited(Resource::WallTime, u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    /// So many agents below that live at once: of an agent its children, of a tree all. One more is
    /// refused; no turn ends.
    #[must_use]
    pub fn live_children(self, children: u64) -> Self {
        self.limited(Resource::LiveChildren, children)
    }

    /// So many levels below the agent; 0 forbids delegation. One that is deeper is refused; no turn
    /// ends. Beside [`AgentOptions::max_depth`](crate::options::AgentOptions::max_depth), which counts
    /// from the root.
    #[must_use]
    pub fn depth(self, levels: u32) -> Self {
        self.limited(Resource::Depth, u64::from(levels))
    }

    /// The limit of a resource.
    pub fn limit(&self, resource: Resource) -> Option<u64> {
        self.0[resource as usize]
    }

    /// The limits that there are.
    pub fn limits(&self) -> impl Iterator<Item = (Resource, u64)> + '_ {
        Resource::ALL.into_iter().filter_map(|resource| Some((resource, self.limit(resource)?)))
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.limits().next().is_none()
    }
}

#[cfg(test)]
mod tests;
