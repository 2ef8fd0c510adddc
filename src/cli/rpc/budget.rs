//! What agents may spend, and what is left of it.

use std::time::Duration;

use playhouse_budgets::Budget;
use serde::Deserialize;
use serde_json::json;

use super::methods::{AgentParams, Answer, Server, ok};

/// Limits; what is absent is not limited.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct BudgetParams {
    tokens: Option<u64>,
    /// In millionths of the currency of the prices.
    cost: Option<u64>,
    turns: Option<u64>,
    steps: Option<u64>,
    tool_calls: Option<u64>,
    wall_time_ms: Option<u64>,
    live_children: Option<u64>,
    depth: Option<u32>,
}

impl From<BudgetParams> for Budget {
    fn from(params: BudgetParams) -> Self {
        fn with<T>(budget: Budget, limit: Option<T>, set: fn(Budget, T) -> Budget) -> Budget {
            limit.map_or(budget, |limit| set(budget, limit))
        }
        let budget = with(Self::new(), params.tokens, Self::tokens);
        let budget = with(budget, params.cost, Self::cost);
        let budget = with(budget, params.turns, Self::turns);
        let budget = with(budget, params.steps, Self::steps);
        let budget = with(budget, params.tool_calls, Self::tool_calls);
        let time = params.wall_time_ms.map(Duration::from_millis);
        let budget = with(budget, time, Self::wall_time);
        let budget = with(budget, params.live_children, Self::live_children);
        with(budget, params.depth, Self::depth)
    }
}

impl Server {
    /// How far each budget that counts for an agent has got.
    pub(super) fn budget(&self, params: &AgentParams) -> Answer {
        let agent = self.agent(&params.agent)?;
        ok(json!({
            "agent": agent.id(),
            "maxSteps": agent.options().max_steps,
            "budgets": agent.budgets(),
        }))
    }
}
