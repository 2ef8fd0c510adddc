//! The live agents of a harness, and how they are related.

mod table;
mod tree;

use std::{
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use playhouse_messages::{event::CancelCause, id::SessionId};

use self::table::{Relations, Table};
pub use self::tree::{CancelledTree, CancellingTree};
use crate::{
    agent::Agent,
    cancel::CancelToken,
    scope::{Scope, ScopeId},
    watch,
};

/// How long the cancel of a tree waits for it to come to rest, unless told otherwise.
const PATIENCE_DEFAULT: Duration = Duration::from_secs(25);

/// Who lives, and who is being made. Three relations are kept apart: an agent's scope says who owns
/// it, its lineage who is told, its supervisor who restarts it. All of them are indexed: what is done
/// with a tree costs as much as the tree is large, however many agents live beside it.
#[derive(Debug, Clone)]
pub struct AgentRegistry(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: RwLock<State>,
    changes: watch::Sender<u64>,
    patience: Duration,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    reserved: usize,
    table: Table<Entry>,
}

#[derive(Debug)]
enum Entry {
    /// The id is taken by a creation under way, which may have made the agent already.
    Reserved(UnderWay),
    Live(Agent),
}

impl Entry {
    fn live(&self) -> Option<&Agent> {
        match self {
            Self::Live(agent) => Some(agent),
            Self::Reserved(_) => None,
        }
    }

    fn made(&self) -> Option<&Agent> {
        match self {
            Self::Live(agent) => Some(agent),
            Self::Reserved(under_way) => under_way.agent.as_ref(),
        }
    }
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

/// A creation under way, as others see it.
#[derive(Debug, Clone)]
pub struct UnderWay {
    id: SessionId,
    number: u64,
    making: Making,
    agent: Option<Agent>,
    over: CancelToken,
}

impl UnderWay {
    /// The id that is taken.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The agent, if it is made already.
    pub fn agent(&self) -> Option<&Agent> {
        self.agent.as_ref()
    }

    /// Tells creations apart, also those of one id.
    fn number(&self) -> u64 {
        self.number
    }

    /// Gives the creation up: nobody gets the agent, and its creation fails with `ABORTED`. Returns
    /// whether somebody had done so before.
    pub fn give_up(&self, cause: CancelCause) -> bool {
        let first = !self.making.cancel.is_cancelled();
        self.making.cancel.cancel(cause);
        !first
    }

    /// Resolves once the creation is over: its agent is handed out, or nothing is left of it.
    pub async fn over(&self) {
        self.over.cancelled().await;
    }
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
    /// Fires when the creation is over, however it ends.
    over: CancelToken,
}

impl AgentRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::with_patience(PATIENCE_DEFAULT)
    }

    /// An empty registry, whose [`cancel_tree`](Self::cancel_tree) waits so long at most.
    pub fn with_patience(patience: Duration) -> Self {
        let (state, changes) = (RwLock::default(), watch::Sender::new(0));
        Self(Arc::new(Shared { state, changes, patience }))
    }

    /// Takes an id, before anything is made for it.
    pub fn reserve(&self, id: SessionId, making: Making) -> Result<Reservation, ReserveError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let over = CancelToken::new();
        let mut state = self.write();
        if state.closed {
            return Err(ReserveError::Closed);
        }
        if state.table.get(&id).is_some() {
            return Err(ReserveError::Taken { id });
        }
        let relations = Relations::new(making.lineage.clone(), &making.owner);
        let under_way =
            UnderWay { id: id.clone(), number, making, agent: None, over: over.clone() };
        state.table.insert(id.clone(), relations, Entry::Reserved(under_way));
        state.reserved += 1;
        drop(state);
        self.changed();
        Ok(Reservation { registry: self.clone(), id, number, over })
    }

    /// Takes nobody any more, and gives up every creation under way.
    pub fn close(&self) {
        let mut state = self.write();
        state.closed = true;
        for entry in state.table.iter() {
            if let Entry::Reserved(under_way) = entry {
                under_way.give_up(CancelCause::Disposed);
            }
        }
    }

    /// Removes exactly this agent; a successor of the same id stays, and so does the reservation of
    /// a creation that has not given up its id. Returns whether the agent was live.
    pub fn remove(&self, agent: &Agent) -> bool {
        let mut state = self.write();
        let live = matches!(state.table.get(agent.id()), Some(Entry::Live(held)) if held == agent);
        if live {
            let removed = state.table.remove(agent.id());
            drop(state);
            drop(removed);
            self.changed();
        }
        live
    }

    /// The live agent of this id.
    pub fn get(&self, id: &SessionId) -> Option<Agent> {
        self.read().table.get(id)?.live().cloned()
    }

    /// Whether an agent has this id, or a creation under way.
    pub fn is_taken(&self, id: &SessionId) -> bool {
        self.read().table.get(id).is_some()
    }

    /// The agent of this id, live or still being made: for its supervisors.
    pub fn made(&self, id: &SessionId) -> Option<Agent> {
        self.read().table.get(id)?.made().cloned()
    }

    /// How many ids are taken: by live agents, and by creations under way.
    pub fn count(&self) -> (usize, usize) {
        let state = self.read();
        (state.table.len() - state.reserved, state.reserved)
    }

    /// All live agents, ordered by id.
    pub fn list(&self) -> Vec<Agent> {
        self.read().table.iter().filter_map(|entry| entry.live().cloned()).collect()
    }

    /// All agents, live or still being made.
    pub fn all(&self) -> Vec<Agent> {
        self.read().table.iter().filter_map(|entry| entry.made().cloned()).collect()
    }

    /// The live agents that this one delegated to, ordered by id.
    pub fn children(&self, id: &SessionId) -> Vec<Agent> {
        self.read().table.children(id).filter_map(|entry| entry.live().cloned()).collect()
    }

    /// The live agents below this one, parents before children. An agent that is gone does not hide
    /// those below it.
    pub fn descendants(&self, id: &SessionId) -> Vec<Agent> {
        self.read().table.below(id).filter_map(|entry| entry.live().cloned()).collect()
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
    pub fn owned(&self, scope: ScopeId) -> (Vec<Agent>, Vec<UnderWay>) {
        split(self.read().table.owned(scope))
    }

    /// Cancels an agent with this cause and every agent below it with [`CancelCause::Parent`], top
    /// down: all their tokens have fired when this returns. An agent that is being made for one of
    /// them is given up. Await what is returned to know that all of them have come to rest.
    pub fn cancel_tree(&self, root: &Agent, cause: CancelCause) -> CancellingTree {
        CancellingTree::announce(self, root, cause, self.0.patience)
    }

    /// The agents below this one, and those that are being made.
    fn tree_below(&self, id: &SessionId) -> (Vec<Agent>, Vec<UnderWay>) {
        split(self.read().table.below(id))
    }

    /// Counts the changes of who lives and who is being made.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn changed(&self) {
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for AgentRegistry {
    fn default() -> Self {
        Self::new()
    }
}

/// Who is live, and who is being made.
fn split<'a>(entries: impl Iterator<Item = &'a Entry>) -> (Vec<Agent>, Vec<UnderWay>) {
    let (mut live, mut making) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            Entry::Live(agent) => live.push(agent.clone()),
            Entry::Reserved(under_way) => making.push(under_way.clone()),
        }
    }
    (live, making)
}

impl Reservation {
    /// The agent is made, and not yet live.
    pub fn made(&self, agent: &Agent) {
        let mut state = self.registry.write();
        if let Some(mut under_way) = self.take(&mut state) {
            // A resumed agent's parent stands in its header, which is read after the reservation.
            under_way.making.lineage = agent.lineage().clone();
            under_way.agent = Some(agent.clone());
            state.table.insert(self.id.clone(), relations(agent), Entry::Reserved(under_way));
            state.reserved += 1;
        }
    }

    /// The agent is live under the reserved id. Does nothing if it was removed meanwhile.
    ///
    /// # Panics
    ///
    /// If the agent has another id.
    pub fn commit(&self, agent: &Agent) {
        assert_eq!(&self.id, agent.id(), "a reservation is for its own id");
        let mut state = self.registry.write();
        if self.take(&mut state).is_some() {
            state.table.insert(self.id.clone(), relations(agent), Entry::Live(agent.clone()));
            drop(state);
            self.registry.changed();
        }
    }

    /// Takes its entry out of the table, if that is still its own.
    fn take(&self, state: &mut State) -> Option<UnderWay> {
        let own = |under_way: &UnderWay| under_way.number == self.number;
        if !matches!(state.table.get(&self.id), Some(Entry::Reserved(it)) if own(it)) {
            return None;
        }
        match state.table.remove(&self.id)? {
            Entry::Reserved(under_way) => {
                state.reserved -= 1;
                Some(under_way)
            }
            Entry::Live(_) => None,
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let given_back = self.take(&mut self.registry.write());
        if given_back.is_some() {
            self.registry.changed();
        }
        self.over.cancel(CancelCause::Disposed);
    }
}

fn relations(agent: &Agent) -> Relations {
    Relations::new(agent.lineage().clone(), agent.owner())
}
