//! The live agents of a harness, and how they are related.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, PoisonError, RwLock},
};

use playhouse_messages::{event::CancelCause, id::SessionId};

use crate::agent::Agent;

/// Who lives. Three relations are kept apart: an agent's scope says who owns it, its runtime parent
/// who is told, its supervisor who restarts it.
#[derive(Debug, Clone, Default)]
pub struct AgentRegistry {
    agents: Arc<RwLock<BTreeMap<SessionId, Entry>>>,
}

#[derive(Debug)]
enum Entry {
    /// The id is taken by a creation under way, which may have made the agent already.
    Reserved(Option<Agent>),
    Live(Agent),
}

/// The id is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("session \"{id}\" already exists: an agent drives it, or is being made")]
pub struct IdTaken {
    /// The id.
    pub id: SessionId,
}

/// A reserved id. Dropping it gives the id back; [`Reservation::commit`] makes an agent live.
#[derive(Debug)]
pub struct Reservation {
    registry: AgentRegistry,
    id: Option<SessionId>,
}

impl AgentRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes an id, before anything is made for it.
    pub fn reserve(&self, id: SessionId) -> Result<Reservation, IdTaken> {
        let mut agents = self.agents.write().unwrap_or_else(PoisonError::into_inner);
        if agents.contains_key(&id) {
            return Err(IdTaken { id });
        }
        agents.insert(id.clone(), Entry::Reserved(None));
        Ok(Reservation { registry: self.clone(), id: Some(id) })
    }

    /// Removes exactly this agent; a successor of the same id stays, and so does the reservation of
    /// a creation that has not given up its id. Returns whether the agent was live.
    pub fn remove(&self, agent: &Agent) -> bool {
        let mut agents = self.agents.write().unwrap_or_else(PoisonError::into_inner);
        let live = matches!(agents.get(agent.id()), Some(Entry::Live(held)) if held == agent);
        if live {
            agents.remove(agent.id());
        }
        live
    }

    /// The live agent of this id.
    pub fn get(&self, id: &SessionId) -> Option<Agent> {
        let agents = self.agents.read().unwrap_or_else(PoisonError::into_inner);
        match agents.get(id)? {
            Entry::Live(agent) => Some(agent.clone()),
            Entry::Reserved(_) => None,
        }
    }

    /// The agent of this id, live or still being made: for its supervisors.
    pub fn made(&self, id: &SessionId) -> Option<Agent> {
        let agents = self.agents.read().unwrap_or_else(PoisonError::into_inner);
        match agents.get(id)? {
            Entry::Live(agent) => Some(agent.clone()),
            Entry::Reserved(agent) => agent.clone(),
        }
    }

    /// All live agents, ordered by id.
    pub fn list(&self) -> Vec<Agent> {
        let agents = self.agents.read().unwrap_or_else(PoisonError::into_inner);
        let live = agents.values().filter_map(|entry| match entry {
            Entry::Live(agent) => Some(agent.clone()),
            Entry::Reserved(_) => None,
        });
        live.collect()
    }

    /// All agents, live or still being made.
    pub fn all(&self) -> Vec<Agent> {
        let agents = self.agents.read().unwrap_or_else(PoisonError::into_inner);
        let made = agents.values().filter_map(|entry| match entry {
            Entry::Live(agent) => Some(agent.clone()),
            Entry::Reserved(agent) => agent.clone(),
        });
        made.collect()
    }

    /// The live agents that this one delegated to, ordered by id.
    pub fn children(&self, id: &SessionId) -> Vec<Agent> {
        self.list().into_iter().filter(|agent| agent.runtime_parent() == Some(id)).collect()
    }

    /// The live agents below this one, parents before children.
    pub fn descendants(&self, id: &SessionId) -> Vec<Agent> {
        let mut by_parent: BTreeMap<SessionId, Vec<Agent>> = BTreeMap::new();
        for agent in self.list() {
            if let Some(parent) = agent.runtime_parent() {
                by_parent.entry(parent.clone()).or_default().push(agent);
            }
        }
        let mut found = Vec::new();
        let mut queue = VecDeque::from([id.clone()]);
        while let Some(parent) = queue.pop_front() {
            // Taken out, so that a cycle of records cannot loop.
            for child in by_parent.remove(&parent).into_iter().flatten() {
                queue.push_back(child.id().clone());
                found.push(child);
            }
        }
        found
    }

    /// Cancels an agent and every agent below it, top down, and returns once each was reached: all
    /// their tokens have fired. A child that was being made meanwhile is reached too.
    pub fn cancel_tree(&self, root: &Agent, cause: &CancelCause) -> usize {
        root.cancel(cause.clone());
        let mut reached = vec![root.clone()];
        loop {
            let fresh: Vec<_> = self
                .descendants(root.id())
                .into_iter()
                .filter(|agent| !reached.contains(agent))
                .collect();
            if fresh.is_empty() {
                return reached.len();
            }
            for agent in fresh {
                agent.cancel(CancelCause::Parent);
                reached.push(agent);
            }
        }
    }
}

impl Reservation {
    /// The agent is made, and not yet live.
    pub fn made(&self, agent: &Agent) {
        let mut agents = self.registry.agents.write().unwrap_or_else(PoisonError::into_inner);
        if self.id.as_ref() == Some(agent.id()) {
            agents.insert(agent.id().clone(), Entry::Reserved(Some(agent.clone())));
        }
    }

    /// The agent is live under the reserved id.
    ///
    /// # Panics
    ///
    /// If the agent has another id.
    pub fn commit(&mut self, agent: &Agent) {
        let id = self.id.take();
        assert_eq!(id.as_ref(), Some(agent.id()), "a reservation is for its own id");
        let mut agents = self.registry.agents.write().unwrap_or_else(PoisonError::into_inner);
        agents.insert(agent.id().clone(), Entry::Live(agent.clone()));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.registry.agents.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
    }
}
