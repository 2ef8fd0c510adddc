//! The cancel of a whole tree: announced at once, awaited until all of it has come to rest.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    future::IntoFuture,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use playhouse_messages::{event::CancelCause, id::SessionId};
use tokio::time::{Instant, timeout_at};

use super::{AgentRegistry, UnderWay};
use crate::agent::Agent;

/// A tree that was cancelled: every token has fired. Await it to know that it has come to rest;
/// dropping it takes nothing back.
pub struct CancellingTree {
    registry: AgentRegistry,
    agents: HashSet<Agent>,
    /// The numbers of the creations that were met.
    creations: HashSet<u64>,
    /// Creations that were given up before they had made an agent.
    given_up: usize,
    fresh: Vec<Met>,
    patience: Duration,
}

/// What a cancelled tree came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CancelledTree {
    /// How many agents were cancelled, and how many creations given up.
    pub reached: usize,
    /// Who did not come to rest in time: the grace of tools and hooks twice, and 5 s.
    pub unfinished: Vec<SessionId>,
}

/// What was cancelled, and is to come to rest.
enum Met {
    Agent(Agent),
    Creation(UnderWay),
}

impl Met {
    fn id(&self) -> &SessionId {
        match self {
            Self::Agent(agent) => agent.id(),
            Self::Creation(creation) => creation.id(),
        }
    }

    async fn rests(&self) {
        match self {
            // One that is gone is at rest.
            Self::Agent(agent) => drop(agent.when_idle().await),
            Self::Creation(creation) => creation.over().await,
        }
    }
}

impl CancellingTree {
    pub(super) fn announce(
        registry: &AgentRegistry,
        root: &Agent,
        cause: CancelCause,
        patience: Duration,
    ) -> Self {
        let registry = registry.clone();
        let (agents, creations, fresh) = (HashSet::new(), HashSet::new(), Vec::new());
        let mut tree = Self { registry, agents, creations, given_up: 0, fresh, patience };
        tree.cancel(root.clone(), cause);
        tree.spread(root.id());
        tree
    }

    /// How many were reached so far: agents, and creations that had not made one.
    pub fn reached(&self) -> usize {
        self.agents.len() + self.given_up
    }

    /// Whether it is the first to meet this agent.
    fn cancel(&mut self, agent: Agent, cause: CancelCause) -> bool {
        let first = self.agents.insert(agent.clone());
        if first {
            agent.cancel(cause);
            self.fresh.push(Met::Agent(agent));
        }
        first
    }

    /// Reaches all below `root` that were not reached before, until nobody is new.
    fn spread(&mut self, root: &SessionId) {
        loop {
            let (live, making) = self.registry.tree_below(root);
            let mut news = false;
            for agent in live {
                news |= self.cancel(agent, CancelCause::Parent);
            }
            for creation in making {
                if !self.creations.insert(creation.number()) {
                    continue;
                }
                news = true;
                let given_up_before = creation.give_up(CancelCause::Parent);
                match creation.agent() {
                    // It may become live before its creation looks at the token.
                    Some(agent) if !given_up_before => {
                        self.cancel(agent.clone(), CancelCause::Parent);
                    }
                    Some(_) => {}
                    None => self.given_up += usize::from(!given_up_before),
                }
                self.fresh.push(Met::Creation(creation));
            }
            if !news {
                return;
            }
        }
    }

    /// Waits for all that were reached. Who was delegated to by one of them before that one came to
    /// rest belongs to the tree: it is reached then.
    async fn rest(mut self) -> CancelledTree {
        let deadline = Instant::now() + self.patience;
        let mut waits = FuturesUnordered::new();
        let (mut unfinished, mut number) = (BTreeMap::new(), 0_u64);
        loop {
            for met in std::mem::take(&mut self.fresh) {
                unfinished.insert(number, met.id().clone());
                waits.push(async move {
                    met.rests().await;
                    (number, met)
                });
                number += 1;
            }
            let Ok(Some((rested, met))) = timeout_at(deadline, waits.next()).await else { break };
            unfinished.remove(&rested);
            self.spread(met.id());
        }
        CancelledTree { reached: self.reached(), unfinished: unfinished.into_values().collect() }
    }
}

impl IntoFuture for CancellingTree {
    type Output = CancelledTree;
    type IntoFuture = BoxFuture<'static, CancelledTree>;

    fn into_future(self) -> Self::IntoFuture {
        self.rest().boxed()
    }
}

impl fmt::Debug for CancellingTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancellingTree").field("reached", &self.reached()).finish_non_exhaustive()
    }
}
