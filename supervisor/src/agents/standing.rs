//! Where an agent that is made stands: its scope, who it is told to, and what it spends from.

use std::sync::Arc;

use playhouse_messages::{chunk::Failure, id::SessionId, session::SessionCore};
use playhouse_plugin_api::{
    agent::Agent,
    budget::{Account, BUDGETS_SERVICE, BudgetError, LiveChild, Opening, Prices, Spent},
    creation::NewAgent,
    points::CreatedFrom,
    scope::Scope,
};

use super::creation::Creation;

/// Where an agent stands.
pub(super) struct Standing {
    pub(super) scope: Scope,
    pub(super) runtime_parent: Option<SessionId>,
    pub(super) account: Option<Arc<Account>>,
    /// Its place among those that live below others.
    pub(super) place: LiveChild,
}

impl Creation<'_> {
    /// Opens the agent's scope and account. Nothing is left of either after a failure.
    pub(super) fn standing(
        &self,
        new: &NewAgent,
        from: CreatedFrom,
        core: &SessionCore,
        inherited: u64,
    ) -> Result<Standing, Failure> {
        let runtime_parent =
            new.runtime_parent.clone().or_else(|| core.header().delegated_by().cloned());
        let opened = self.account(new, from, core, inherited, runtime_parent.as_ref());
        let (account, place) = opened?;
        let scope = new.within.as_ref().unwrap_or(&self.owner).child(self.id.as_str())?;
        Ok(Standing { scope, runtime_parent, account, place })
    }

    fn account(
        &self,
        new: &NewAgent,
        from: CreatedFrom,
        core: &SessionCore,
        inherited: u64,
        runtime_parent: Option<&SessionId>,
    ) -> Result<(Option<Arc<Account>>, LiveChild), BudgetError> {
        let world = &self.maker.world;
        let prices = world.services.get::<Prices>(BUDGETS_SERVICE);
        let spent = match (from, &prices) {
            (CreatedFrom::Resume, Some(prices)) => {
                let own = core.log().range(inherited..core.log().len());
                Spent::fold(own.map(|event| &**event), prices)
            }
            _ => Spent::default(),
        };
        let choice = core.state().selection().next().or(new.options.model.as_ref()).cloned();
        Account::open(Opening {
            id: self.id.clone(),
            budget: new.options.budget,
            tree_budget: new.options.tree_budget,
            parent: runtime_parent.and_then(|id| world.agents.made(id)).as_ref(),
            prices,
            choice,
            spent,
        })
    }
}

/// The agent takes its place among those that spend, until its scope closes.
pub(super) fn take_place(agent: &Agent, place: LiveChild) -> Result<(), Failure> {
    if let Some(account) = agent.account() {
        account.attach(agent)?;
    }
    if !place.is_empty() {
        agent.scope().on_close(move || drop(place))?;
    }
    Ok(())
}
