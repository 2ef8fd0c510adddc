//! The ledger of one budget: what is used, what is reserved, and who spends.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use playhouse_messages::{
    event::{BudgetSpent, CancelCause},
    id::SessionId,
};
use tokio::{sync::Notify, time::Instant};

use super::{Amounts, Budget, BudgetStatus, Resource, ResourceStatus};
use crate::agent::{Agent, AgentCell};

/// What has been spent of one budget. All whose spending it counts share it.
pub struct Ledger {
    owner: SessionId,
    tree: bool,
    budget: Budget,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Default)]
struct State {
    used: Amounts,
    reserved: Amounts,
    /// How many of its agents run, and since when any does.
    running: usize,
    since: Option<Instant>,
    /// Those that spend from it, the deepest last.
    members: BTreeMap<(u32, u64), Weak<AgentCell>>,
    next_member: u64,
    swept: bool,
}

/// What came of asking for a part of a budget.
pub(super) enum Taken {
    /// It is reserved.
    Yes,
    /// Nothing is left, but for what others have reserved and may give back.
    Wait,
    /// Nothing is left.
    Spent(BudgetSpent),
}

impl Ledger {
    pub(super) fn new(owner: SessionId, tree: bool, budget: Budget, used: Amounts) -> Arc<Self> {
        let state = Mutex::new(State { used, ..State::default() });
        Arc::new(Self { owner, tree, budget, state, freed: Notify::new() })
    }

    /// The agent whose budget it is.
    pub fn owner(&self) -> &SessionId {
        &self.owner
    }

    /// Whether all below that agent spend from it.
    pub fn is_tree(&self) -> bool {
        self.tree
    }

    /// The limits.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// What is used and reserved now.
    pub fn status(&self) -> BudgetStatus {
        let state = self.state();
        let used = state.used_now();
        let resource = |(resource, limit): (Resource, u64)| ResourceStatus {
            resource: resource.name(),
            limit,
            used: used.get(resource),
            reserved: state.reserved.get(resource),
        };
        let resources = self.budget.limits().map(resource).collect();
        BudgetStatus { owner: self.owner.clone(), tree: self.tree, resources }
    }

    /// The first resource that requests spend of which nothing is left.
    pub(super) fn spent(&self) -> Option<BudgetSpent> {
        let used = self.state().used_now();
        [Resource::Tokens, Resource::Cost, Resource::WallTime].into_iter().find_map(|resource| {
            let limit = self.budget.limit(resource)?;
            (used.get(resource) >= limit).then(|| said(resource, limit, used.get(resource)))
        })
    }

    /// Reserves, if anything is left of all that is asked for. Who is not patient does not wait for what
    /// others may give back.
    pub(super) fn take(&self, amounts: &Amounts, patient: bool) -> Taken {
        let mut state = self.state();
        let used = state.used_now();
        let mut wait = false;
        for (resource, limit) in self.budget.limits() {
            if amounts.get(resource) == 0 && resource != Resource::WallTime {
                continue;
            }
            if used.get(resource) >= limit {
                return Taken::Spent(said(resource, limit, used.get(resource)));
            }
            wait |= used.get(resource).saturating_add(state.reserved.get(resource)) >= limit;
        }
        if wait && patient {
            return Taken::Wait;
        }
        state.reserved.add_all(amounts);
        Taken::Yes
    }

    /// Uses at once, if anything is left of all that is asked for.
    pub(super) fn charge(&self, amounts: &Amounts) -> Result<(), BudgetSpent> {
        let mut state = self.state();
        for (resource, limit) in self.budget.limits() {
            let used = state.used.get(resource);
            if amounts.get(resource) > 0 && used >= limit {
                return Err(said(resource, limit, used));
            }
        }
        state.used.add_all(amounts);
        Ok(())
    }

    /// Takes a charge back.
    pub(super) fn refund(&self, amounts: &Amounts) {
        self.state().used.take(amounts);
    }

    /// Gives a reservation back, and counts what was really used.
    pub(super) fn settle(&self, reserved: &Amounts, used: &Amounts) {
        let mut state = self.state();
        state.reserved.take(reserved);
        state.used.add_all(used);
        drop(state);
        self.freed.notify_waiters();
    }

    /// Told whenever a reservation is given back.
    pub(super) fn freed(&self) -> &Notify {
        &self.freed
    }

    /// One more agent below, if one more may live.
    pub(super) fn add_child(&self) -> Result<(), BudgetSpent> {
        let mut state = self.state();
        let would_be = state.used.get(Resource::LiveChildren) + 1;
        match self.budget.limit(Resource::LiveChildren) {
            Some(limit) if would_be > limit => Err(said(Resource::LiveChildren, limit, would_be)),
            _ => {
                state.used.add(Resource::LiveChildren, 1);
                Ok(())
            }
        }
    }

    pub(super) fn remove_child(&self) {
        self.state().used.take(&Amounts::of(Resource::LiveChildren, 1));
    }

    /// Whether an agent may stand so many levels below the owner.
    pub(super) fn admits_depth(&self, level: u32) -> Result<(), BudgetSpent> {
        match self.budget.limit(Resource::Depth) {
            Some(limit) if u64::from(level) > limit => {
                Err(said(Resource::Depth, limit, u64::from(level)))
            }
            _ => Ok(()),
        }
    }

    /// An agent that spends from it, so many levels below the owner.
    pub(super) fn join(&self, level: u32, cell: Weak<AgentCell>) -> u64 {
        let mut state = self.state();
        let number = state.next_member;
        state.next_member += 1;
        state.members.insert((level, number), cell);
        number
    }

    pub(super) fn leave(&self, level: u32, number: u64) {
        self.state().members.remove(&(level, number));
    }

    /// The owner, if it lives.
    pub(super) fn owner_agent(&self) -> Option<Agent> {
        let state = self.state();
        let ((level, _), cell) = state.members.first_key_value()?;
        (*level == 0).then(|| cell.upgrade().map(Agent::new))?
    }

    /// Ends the turns of all that spend from it, the deepest first: so that nobody's end looks like
    /// that of its parent. Does so once; whoever asks later is refused by itself.
    pub(super) fn run_out(&self, spent: &BudgetSpent) {
        let members: Vec<_> = {
            let mut state = self.state();
            if std::mem::replace(&mut state.swept, true) {
                return;
            }
            state.members.values().rev().filter_map(Weak::upgrade).collect()
        };
        for cell in members {
            Agent::new(cell).cancel_with(CancelCause::Budget(spent.clone()), true);
        }
    }

    /// An agent begins to run.
    pub(super) fn begin(&self) {
        let mut state = self.state();
        state.running += 1;
        state.since.get_or_insert_with(Instant::now);
    }

    /// An agent rests again.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        if state.running == 0 {
            state.used = state.used_now();
            state.since = None;
        }
    }

    /// How long its agents may still run.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let limit = self.budget.limit(Resource::WallTime)?;
        let used = self.state().used_now().get(Resource::WallTime);
        Some(Duration::from_millis(limit.saturating_sub(used)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What is used, the time that runs included.
    fn used_now(&self) -> Amounts {
        let running = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        let millis = u64::try_from(running.as_millis()).unwrap_or(u64::MAX);
        self.used.and(Resource::WallTime, millis)
    }
}

fn said(resource: Resource, limit: u64, used: u64) -> BudgetSpent {
    BudgetSpent { resource: resource.name().to_owned(), limit, used }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("owner", &self.owner)
            .field("tree", &self.tree)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}
