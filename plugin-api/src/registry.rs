//! The live agents of a harness, and how they are related.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use playhouse_messages::{event::CancelCause, id::SessionId};

use crate::{
    agent::Agent,
    cancel::CancelToken,
    scope::{Scope, ScopeId},
    watch,
};

/// Who lives, and who is being made. Three relations are kept apart: an agent's scope says who owns
/// it, its lineage who is told, its supervisor who restarts it.
#[derive(Debug, Clone)]
pub struct AgentRegistry(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: RwLock<Table>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Table {
    closed: bool,
    entries: BTreeMap<SessionId, Entry>,
}

#[derive(Debug)]
enum Entry {
    /// The id is taken by a creation under way, which may have made the agent already.
    Reserved {
        number: u64,
        making: Making,
        agent: Option<Agent>,
    },
    Live(Agent),
}

/// A creation under way: an agent is cancelled and owned before it exists.
#[derive(Debug, Clone)]
pub struct Making {
    /// The agents that it is delegated by, nearest first.
    pub lineage: Arc<[SessionId]>,
    /// The scope that will own it.
    pub owner: Scope,
    /// Gives the creation up.
    pub cancel: CancelToken,
}

/// Why an id was not reserved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The id is taken.
    #[error("session \"{id}\" already exists: an agent drives it, or is being made")]
    Taken {
        /// The id.
        id: SessionId,
    },
    /// The registry takes nobody any more.
    #[error("the harness is shutting down")]
    Closed,
}

impl ReserveError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Taken { .. } => "SESSION_ALREADY_EXISTS",
            Self::Closed => "SHUTTING_DOWN",
        }
    }
}

/// A reserved id. Dropping it gives the id back; [`Reservation::commit`] makes an agent live.
#[derive(Debug)]
pub struct Reservation {
    registry: AgentRegistry,
    id: SessionId,
    number: u64,
}

impl AgentRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        let (table, changes) = (RwLock::default(), watch::Sender::new(0));
        Self(Arc::new(Shared { table, changes }))
    }

    /// Takes an id, before anything is made for it.
    pub fn reserve(&self, id: SessionId, making: Making) -> Result<Reservation, ReserveError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut table = self.write();
        if table.closed {
            return Err(ReserveError::Closed);
        }
        if table.entries.contains_key(&id) {
            return Err(ReserveError::Taken { id });
        }
        let entry = Entry::Reserved { number, making, agent: None };
        table.entries.insert(id.clone(), entry);
        drop(table);
        self.changed();
        Ok(Reservation { registry: self.clone(), id, number })
    }

    /// Takes nobody any more, and gives up every creation under way.
    pub fn close(&self) {
        let mut table = self.write();
        table.closed = true;
        for entry in table.entries.values() {
            if let Entry::Reserved { making, .. } = entry {
                making.cancel.cancel(CancelCause::Disposed);
            }
        }
    }

    /// Removes exactly this agent; a successor of the same id stays, and so does the reservation of
    /// a creation that has not given up its id. Returns whether the agent was live.
    pub fn remove(&self, agent: &Agent) -> bool {
        let mut table = self.write();
        let live =
            matches!(table.entries.get(agent.id()), Some(Entry::Live(held)) if held == agent);
        if live {
            table.entries.remove(agent.id());
            drop(table);
            self.changed();
        }
        live
    }

    /// The live agent of this id.
    pub fn get(&self, id: &SessionId) -> Option<Agent> {
        match self.read().entries.get(id)? {
            Entry::Live(agent) => Some(agent.clone()),
            Entry::Reserved { .. } => None,
        }
    }

    /// Whether an agent has this id, or a creation under way.
    pub fn is_taken(&self, id: &SessionId) -> bool {
        self.read().entries.contains_key(id)
    }

    /// The agent of this id, live or still being made: for its supervisors.
    pub fn made(&self, id: &SessionId) -> Option<Agent> {
        match self.read().entries.get(id)? {
            Entry::Live(agent) => Some(agent.clone()),
            Entry::Reserved { agent, .. } => agent.clone(),
        }
    }

    /// All live agents, ordered by id.
    pub fn list(&self) -> Vec<Agent> {
        self.read().live().cloned().collect()
    }

    /// All agents, live or still being made.
    pub fn all(&self) -> Vec<Agent> {
        let table = self.read();
        let made = table.entries.values().filter_map(|entry| match entry {
            Entry::Live(agent) => Some(agent.clone()),
            Entry::Reserved { agent, .. } => agent.clone(),
        });
        made.collect()
    }

    /// The live agents that this one delegated to, ordered by id.
    pub fn children(&self, id: &SessionId) -> Vec<Agent> {
        let table = self.read();
        table.live().filter(|agent| agent.runtime_parent() == Some(id)).cloned().collect()
    }

    /// The live agents below this one, parents before children. An agent that is gone does not hide
    /// those below it.
    pub fn descendants(&self, id: &SessionId) -> Vec<Agent> {
        let table = self.read();
        let mut found: Vec<_> =
            table.live().filter(|agent| agent.lineage().contains(id)).cloned().collect();
        found.sort_by_key(Agent::depth);
        found
    }

    /// The lineage of an agent that `parent` delegates to.
    pub fn lineage_below(&self, parent: Option<&SessionId>) -> Arc<[SessionId]> {
        let Some(parent) = parent else { return Arc::default() };
        let above = self.made(parent);
        let above = above.iter().flat_map(|parent| parent.lineage().iter());
        // A stored parent that names a descendant would make a circle.
        std::iter::once(parent).chain(above.filter(|id| *id != parent)).cloned().collect()
    }

    /// The agents whose owner is this scope or one below it: those alive, and the creations under
    /// way.
    pub fn owned(&self, scope: ScopeId) -> (Vec<Agent>, Vec<Making>) {
        let table = self.read();
        let live = table.live().filter(|agent| agent.owner().is_within(scope)).cloned().collect();
        let making = table.making().filter(|(making, _)| making.owner.is_within(scope));
        (live, making.map(|(making, _)| making.clone()).collect())
    }

    /// Cancels an agent and every agent below it, top down, and returns how many were reached, once
    /// all their tokens have fired. An agent that is being made for one of them is given up: nobody
    /// gets it, and its creation fails with `ABORTED`.
    pub fn cancel_tree(&self, root: &Agent, cause: &CancelCause) -> usize {
        root.cancel(cause.clone());
        let mut reached = vec![root.clone()];
        let mut given_up = 0;
        loop {
            let fresh: Vec<_> = self
                .descendants(root.id())
                .into_iter()
                .filter(|agent| !reached.contains(agent))
                .collect();
            let making: Vec<_> = {
                let table = self.read();
                let below = table.making().filter(|(making, _)| {
                    making.lineage.contains(root.id()) && !making.cancel.is_cancelled()
                });
                below.map(|(making, agent)| (making.clone(), agent.cloned())).collect()
            };
            if fresh.is_empty() && making.is_empty() {
                return reached.len() + given_up;
            }
            for agent in fresh {
                agent.cancel(CancelCause::Parent);
                reached.push(agent);
            }
            for (making, agent) in making {
                making.cancel.cancel(CancelCause::Parent);
                match agent {
                    // It may become live before its creation looks at the token.
                    Some(agent) => {
                        agent.cancel(CancelCause::Parent);
                        reached.push(agent);
                    }
                    None => given_up += 1,
                }
            }
        }
    }

    /// Counts the changes of who lives and who is being made.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn changed(&self) {
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for AgentRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    fn live(&self) -> impl Iterator<Item = &Agent> {
        self.entries.values().filter_map(|entry| match entry {
            Entry::Live(agent) => Some(agent),
            Entry::Reserved { .. } => None,
        })
    }

    fn making(&self) -> impl Iterator<Item = (&Making, Option<&Agent>)> {
        self.entries.values().filter_map(|entry| match entry {
            Entry::Live(_) => None,
            Entry::Reserved { making, agent, .. } => Some((making, agent.as_ref())),
        })
    }
}

impl Reservation {
    /// The agent is made, and not yet live.
    pub fn made(&self, agent: &Agent) {
        let mut table = self.registry.write();
        if let Some(Entry::Reserved { number, making, agent: made }) =
            table.entries.get_mut(&self.id)
            && *number == self.number
        {
            // A resumed agent's parent stands in its header, which is read after the reservation.
            making.lineage = agent.lineage().clone();
            *made = Some(agent.clone());
        }
    }

    /// The agent is live under the reserved id. Does nothing if it was removed meanwhile.
    ///
    /// # Panics
    ///
    /// If the agent has another id.
    pub fn commit(&self, agent: &Agent) {
        assert_eq!(&self.id, agent.id(), "a reservation is for its own id");
        let mut table = self.registry.write();
        if let Some(entry @ Entry::Reserved { .. }) = table.entries.get_mut(&self.id)
            && matches!(entry, Entry::Reserved { number, .. } if *number == self.number)
        {
            *entry = Entry::Live(agent.clone());
            drop(table);
            self.registry.changed();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut table = self.registry.write();
        if let Some(Entry::Reserved { number, .. }) = table.entries.get(&self.id)
            && *number == self.number
        {
            table.entries.remove(&self.id);
            drop(table);
            self.registry.changed();
        }
    }
}
