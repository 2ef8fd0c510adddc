//! The account of an agent: the ledgers that its spending is charged to.

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use playhouse_messages::{
    chunk::Usage,
    config::{ModelChoice, Route},
    event::{BudgetSpent, CancelCause},
    id::SessionId,
};

use super::{
    Amounts, Budget, BudgetError, BudgetStatus, Charged, Ledger, Prices, Resource,
    fold::{Meter, Spent, tokens_of},
    ledger::Taken,
};
use crate::{agent::Agent, scope::ScopeClosed};

/// Where an agent's spending goes: to its own ledger, to that of its tree, and to those of the trees
/// above it.
pub struct Account {
    links: Arc<[Link]>,
    prices: Arc<Prices>,
    state: Mutex<State>,
}

#[derive(Clone)]
struct Link {
    ledger: Arc<Ledger>,
    /// How far below the ledger's owner the agent stands.
    level: u32,
}

#[derive(Default)]
struct State {
    runs: bool,
    /// What the owners above have not been told yet.
    untold: Amounts,
    /// All tokens of the last request that was reported: about what the next one begins with.
    last: Option<u64>,
}

/// What an account is opened from.
#[derive(Debug)]
pub struct Opening<'a> {
    /// Whose.
    pub id: SessionId,
    /// What the agent itself may spend.
    pub budget: Option<Budget>,
    /// What it and all below it may spend together.
    pub tree_budget: Option<Budget>,
    /// The agent that delegates to it, if that one lives.
    pub parent: Option<&'a Agent>,
    /// The prices of the plugin that enforces budgets; `None` if there is none.
    pub prices: Option<Arc<Prices>>,
    /// The route that it will use.
    pub choice: Option<ModelChoice>,
    /// What it has spent in earlier lives.
    pub spent: Spent,
}

/// The right of an agent to be among those that live below others. Given back on drop.
#[derive(Debug, Default)]
pub struct LiveChild(Vec<Arc<Ledger>>);

/// A part of every budget that counts. Given back on drop; a request that is over commits what it used.
#[must_use = "dropping it gives the reservation back"]
pub struct Reserved {
    links: Arc<[Link]>,
    taken: usize,
    amounts: Amounts,
}

/// Nothing is left of a budget.
#[derive(Debug, Clone)]
pub struct Refused {
    ledger: Arc<Ledger>,
    spent: BudgetSpent,
}

impl Account {
    /// Opens an account, if any budget counts: the agent's own, or that of a tree above it. Takes the
    /// agent's place among the children that may live.
    ///
    /// # Errors
    ///
    /// See [`BudgetError`]; nothing is taken then.
    pub fn open(opening: Opening<'_>) -> Result<(Option<Arc<Self>>, LiveChild), BudgetError> {
        let Opening { id, budget, tree_budget, parent, prices, choice, spent } = opening;
        let above = parent.and_then(|parent| parent.account()).map(|account| account.links.clone());
        let above = above.as_deref().unwrap_or_default();
        let own = budget.filter(|budget| !budget.is_empty()).map(|it| (false, it, spent.own));
        let mut all = spent.own;
        all.add_all(&spent.below);
        let tree = tree_budget.filter(|budget| !budget.is_empty()).map(|it| (true, it, all));
        let prices = match prices {
            Some(prices) => prices,
            None if own.is_some() || tree.is_some() => return Err(BudgetError::NotEnforced),
            None => Arc::default(),
        };
        let own = own.into_iter().chain(tree).map(|(tree, budget, used)| Link {
            ledger: Ledger::new(id.clone(), tree, budget, used),
            level: 0,
        });
        let shared = above.iter().filter(|link| link.ledger.is_tree());
        let shared = shared.map(|link| Link { ledger: link.ledger.clone(), level: link.level + 1 });
        let links: Arc<[Link]> = own.chain(shared).collect();
        let account = Self { links, prices, state: Mutex::default() };
        if let Some(choice) = choice {
            account.check_route(&Route::new(&choice.provider, &choice.model))?;
        }
        let mut place = LiveChild::default();
        for link in above {
            let refused = |spent, way_out| BudgetError::Refused {
                owner: link.ledger.owner().to_string(),
                spent,
                way_out,
            };
            link.ledger
                .admits_depth(link.level + 1)
                .map_err(|spent| refused(spent, "do the work without delegating it further"))?;
            link.ledger
                .add_child()
                .map_err(|spent| refused(spent, "wait until one ends, then try again"))?;
            place.0.push(link.ledger.clone());
        }
        Ok(((!account.links.is_empty()).then(|| Arc::new(account)), place))
    }

    /// The agent whose account it is is there: it can be told when a budget runs out, until its scope
    /// closes.
    ///
    /// # Errors
    ///
    /// Its scope is closed.
    pub fn attach(self: &Arc<Self>, agent: &Agent) -> Result<(), ScopeClosed> {
        let joined: Vec<_> = self
            .links
            .iter()
            .map(|link| link.ledger.join(link.level, Arc::downgrade(agent.cell())))
            .collect();
        let account = self.clone();
        let leave = move || {
            account.rest();
            for (link, number) in account.links.iter().zip(&joined) {
                link.ledger.leave(link.level, *number);
            }
        };
        agent.scope().on_close(leave).map(drop)
    }

    /// Reserves a part of every budget before it is spent. While something is left, but others have
    /// reserved it, a patient caller waits for what they give back. One who is not, since whoever holds
    /// the reservation may wait for it, is let through.
    ///
    /// Dropping the future reserves nothing.
    ///
    /// # Errors
    ///
    /// Nothing is left of one of them.
    pub async fn reserve(&self, amounts: Amounts, patient: bool) -> Result<Reserved, Refused> {
        'again: loop {
            let mut reserved = Reserved { links: self.links.clone(), taken: 0, amounts };
            for link in self.links.iter() {
                let mut freed = pin!(link.ledger.freed().notified());
                freed.as_mut().enable();
                match link.ledger.take(&amounts, patient) {
                    Taken::Yes => reserved.taken += 1,
                    Taken::Wait => {
                        drop(reserved);
                        freed.await;
                        continue 'again;
                    }
                    Taken::Spent(spent) => {
                        return Err(Refused { ledger: link.ledger.clone(), spent });
                    }
                }
            }
            return Ok(reserved);
        }
    }

    /// Spends at once, all of it or nothing.
    ///
    /// # Errors
    ///
    /// Nothing is left of one of the budgets.
    pub fn spend(&self, resource: Resource) -> Result<(), Refused> {
        let one = Amounts::of(resource, 1);
        for (done, link) in self.links.iter().enumerate() {
            if let Err(spent) = link.ledger.charge(&one) {
                self.links[..done].iter().for_each(|link| link.ledger.refund(&one));
                return Err(Refused { ledger: link.ledger.clone(), spent });
            }
        }
        self.state().untold.add_all(&one);
        Ok(())
    }

    /// Counts what a request used, and gives its reservation back.
    pub fn commit(&self, reserved: Reserved, route: &Route, meter: &Meter) {
        let used = self.amounts(route, &meter.usage());
        let mut state = self.state();
        state.untold.add_all(&used);
        state.last = meter.reported().as_ref().map(tokens_of).or(state.last);
        drop(state);
        reserved.commit(&used);
    }

    /// How many tokens the last request had whose provider reported it, input and output: about what the
    /// next one begins with.
    pub fn last_tokens(&self) -> Option<u64> {
        self.state().last
    }

    /// Whether something is left of what requests spend.
    ///
    /// # Errors
    ///
    /// Nothing is.
    pub fn check(&self) -> Result<(), Refused> {
        let spent = self.links.iter().find_map(|link| {
            let spent = link.ledger.spent()?;
            Some(Refused { ledger: link.ledger.clone(), spent })
        });
        spent.map_or(Ok(()), Err)
    }

    /// Whether the route may be used: if a cost budget counts, it needs a price.
    ///
    /// # Errors
    ///
    /// [`BudgetError::Unpriced`].
    pub fn check_route(&self, route: &Route) -> Result<(), BudgetError> {
        let counts = |link: &Link| link.ledger.budget().limit(Resource::Cost).is_some();
        if self.links.iter().any(counts) && self.prices.of(route).is_none() {
            return Err(BudgetError::Unpriced(route.clone()));
        }
        Ok(())
    }

    /// What a request of this usage takes of the budgets.
    pub fn amounts(&self, route: &Route, usage: &Usage) -> Amounts {
        let cost = self.prices.of(route).map_or(0, |price| price.micros(usage));
        Amounts::of(Resource::Tokens, tokens_of(usage)).and(Resource::Cost, cost)
    }

    /// The agent begins to run. Idempotent.
    pub fn run(&self) {
        if !std::mem::replace(&mut self.state().runs, true) {
            self.links.iter().for_each(|link| link.ledger.begin());
        }
    }

    /// The agent rests. Idempotent.
    pub fn rest(&self) {
        if std::mem::replace(&mut self.state().runs, false) {
            self.links.iter().for_each(|link| link.ledger.end());
        }
    }

    /// How long it may still run; `None` if time is not limited.
    pub fn time_left(&self) -> Option<Duration> {
        self.links.iter().filter_map(|link| link.ledger.time_left()).min()
    }

    /// What it has spent since it was last asked, and the living agents above whose trees' budgets
    /// count it: for their logs.
    pub fn take_untold(&self, id: &SessionId) -> Option<(Charged, Vec<Agent>)> {
        let above = self.links.iter().filter(|link| link.level > 0);
        let owners: Vec<_> = above.filter_map(|link| link.ledger.owner_agent()).collect();
        let untold = std::mem::take(&mut self.state().untold);
        (!owners.is_empty() && !untold.is_empty())
            .then(|| (Charged::new(id.clone(), &untold), owners))
    }

    /// How far each budget has got, the agent's own first, then those of the trees from the nearest
    /// to the root.
    pub fn status(&self) -> Vec<BudgetStatus> {
        self.links.iter().map(|link| link.ledger.status()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Refused {
    /// Which limit, and how much was used.
    pub fn spent(&self) -> &BudgetSpent {
        &self.spent
    }

    /// Ends the turn of the agent that was refused, with reason `budget`. If the budget is a tree's, the
    /// turns of all that spend from it end so. Pending input stays where it is. All tokens have fired
    /// when it returns.
    pub fn end_turns(&self, agent: &Agent) {
        self.ledger.run_out(&self.spent);
        if !agent.cell().token().is_cancelled() {
            agent.cancel_with(CancelCause::Budget(self.spent.clone()), true);
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BudgetSpent { resource, limit, used } = &self.spent;
        let whose = if self.ledger.is_tree() { "of the tree of" } else { "of" };
        write!(f, "the budget {whose} agent \"{}\" ran out: ", self.ledger.owner())?;
        write!(f, "{used} of {limit} {resource} used")
    }
}

impl Reserved {
    fn commit(mut self, used: &Amounts) {
        self.settle(used);
    }

    fn settle(&mut self, used: &Amounts) {
        for link in &self.links[..std::mem::take(&mut self.taken)] {
            link.ledger.settle(&self.amounts, used);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.settle(&Amounts::default());
    }
}

impl LiveChild {
    /// Whether nobody counts it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for LiveChild {
    fn drop(&mut self) {
        self.0.iter().for_each(|ledger| ledger.remove_child());
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.links.iter().map(|link| &link.ledger)).finish()
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("amounts", &self.amounts).finish_non_exhaustive()
    }
}
