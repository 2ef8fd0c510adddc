//! Why an agent with a budget, or below one, is not made.

use playhouse_messages::{chunk::Failure, config::Route, event::BudgetSpent};

use super::BUDGETS_SERVICE;

/// Why an agent is not made, or a model not selected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// A budget that nobody enforces would be worse than none.
    #[error(
        "the agent has a budget, and nothing in this harness enforces it: add the plugin \
         `{BUDGETS_SERVICE}`, or make the agent without a budget"
    )]
    NotEnforced,
    /// A cost budget counts on a route whose price is not known.
    #[error(
        "a cost budget counts, and {}/{} has no price: add it to the prices ([[price]] in a config, \
         `Budgets::prices` in code), or choose a route that has one", .0.provider, .0.model
    )]
    Unpriced(Route),
    /// As many agents live below as may, or the agent would stand too deep.
    #[error(
        "the budget of agent \"{owner}\" allows {} {}, and this would be {}; {way_out}",
        .spent.limit, .spent.resource, .spent.used
    )]
    Refused {
        /// Whose budget.
        owner: String,
        /// The limit, and what it would have come to.
        spent: BudgetSpent,
        /// What may help.
        way_out: &'static str,
    },
}

impl BudgetError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotEnforced => "BUDGETS_NOT_ENFORCED",
            Self::Unpriced(_) => "UNPRICED_ROUTE",
            Self::Refused { .. } => "BUDGET_REFUSED",
        }
    }
}

impl From<BudgetError> for Failure {
    fn from(error: BudgetError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
