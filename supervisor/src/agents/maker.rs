//! Who makes agents: takes creations, gives them up, and delivers what they made.

use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use playhouse_messages::{
    chunk::Failure, event::CancelCause, id::SessionId, protocol::AgentsRootMessage,
};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    creation::{AgentHandle, AgentMaker, CreateError, NewAgent},
    fork::ForkPoint,
    world::World,
};
use ractor::ActorRef;
use tokio_util::task::TaskTracker;

use super::{
    creation::{Basis, Creation},
    disposal,
};
use crate::hibernation::wake::Flights;

/// Makes the agents of a harness.
#[derive(Debug, Clone)]
pub struct Maker {
    pub(crate) world: Arc<World>,
    pub(crate) means: Means,
}

/// What a maker makes agents with, beside the world.
#[derive(Debug, Clone)]
pub(crate) struct Means {
    pub(super) root: ActorRef<AgentsRootMessage>,
    /// Fires when no agent can be made any more.
    pub(crate) ended: CancelToken,
    /// What is under way: creations, which end by themselves when they are given up, and what sends
    /// agents to sleep and wakes them.
    pub(crate) tasks: TaskTracker,
    /// Claims on storage that the store has not answered yet.
    pub(super) claims: TaskTracker,
    pub(crate) flights: Flights,
}

impl Maker {
    /// A maker whose agents hang under `root`.
    pub fn new(world: Arc<World>, root: ActorRef<AgentsRootMessage>) -> Self {
        let (tasks, claims) = (TaskTracker::new(), TaskTracker::new());
        let (ended, flights) = (CancelToken::new(), Flights::default());
        Self { world, means: Means { root, ended, tasks, claims, flights } }
    }

    /// The world that its agents live in.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// The same maker for the world to hold, which it does not keep alive.
    pub fn from_within(&self) -> impl AgentMaker + use<> {
        Within { world: Arc::downgrade(&self.world), means: self.means.clone() }
    }

    /// Takes no further creations, and gives up those under way.
    pub fn give_up(&self) {
        self.means.tasks.close();
        self.means.claims.close();
        self.means.ended.cancel(CancelCause::Disposed);
    }

    /// As [`Maker::give_up`], and waits until nothing is left of them. A store that does not answer
    /// is not waited for long.
    pub async fn close(&self) {
        self.give_up();
        self.means.tasks.wait().await;
        let patience = self.world.limits.grace + disposal::PATIENCE;
        if tokio::time::timeout(patience, self.means.claims.wait()).await.is_err() {
            tracing::warn!("the store still holds back claims on sessions");
        }
    }

    /// Runs a creation in a task of its own, so that it is rolled back whole if the caller goes.
    pub(crate) fn make(
        &self,
        new: NewAgent,
        basis: Basis,
    ) -> BoxFuture<'static, Result<AgentHandle, CreateError>> {
        let maker = self.clone();
        Box::pin(async move {
            if maker.means.tasks.is_closed() {
                return Err(shutting_down().into());
            }
            let cancel = new.cancel.as_ref().map_or_else(CancelToken::new, CancelToken::child);
            let mut guard = CancelOnDrop(Some(cancel.clone()));
            let tracker = maker.means.tasks.clone();
            let (runtime, tasks) = (tokio::runtime::Handle::current(), tracker.clone());
            let creation = async move {
                let agent = Creation::run(&maker, new, basis, cancel).await?;
                Ok::<_, Failure>(Undelivered { agent: Some(agent), tasks, runtime })
            };
            let ended = tracker.spawn(creation).await;
            // It is done: whoever kept the token must not take it for given up.
            guard.0 = None;
            match ended {
                Ok(made) => Ok(made?.deliver()),
                Err(fault) => Err(Failure::new("PANIC", fault.to_string()).into()),
            }
        })
    }
}

impl AgentMaker for Maker {
    fn create(&self, new: NewAgent) -> BoxFuture<'static, Result<AgentHandle, CreateError>> {
        self.make(new, Basis::Fresh)
    }

    fn resume(&self, new: NewAgent) -> BoxFuture<'static, Result<AgentHandle, CreateError>> {
        self.make(new, Basis::Stored)
    }

    fn wake(&self, id: SessionId) -> BoxFuture<'static, Result<Agent, CreateError>> {
        self.woken(id)
    }

    fn fork(
        &self,
        from: ForkPoint,
        new: NewAgent,
    ) -> BoxFuture<'static, Result<AgentHandle, CreateError>> {
        self.make(new, Basis::Fork(from))
    }
}

/// A maker in the world that it makes agents for: it must not keep that alive.
struct Within {
    world: Weak<World>,
    means: Means,
}

impl Within {
    fn maker(&self) -> Result<Maker, CreateError> {
        let world = self.world.upgrade().ok_or_else(shutting_down)?;
        Ok(Maker { world, means: self.means.clone() })
    }
}

impl AgentMaker for Within {
    fn create(&self, new: NewAgent) -> BoxFuture<'static, Result<AgentHandle, CreateError>> {
        let maker = self.maker();
        Box::pin(async move { maker?.create(new).await })
    }

    fn resume(&self, new: NewAgent) -> BoxFuture<'static, Result<AgentHandle, CreateError>> {
        let maker = self.maker();
        Box::pin(async move { maker?.resume(new).await })
    }

    fn wake(&self, id: SessionId) -> BoxFuture<'static, Result<Agent, CreateError>> {
        let maker = self.maker();
        Box::pin(async move { maker?.wake(id).await })
    }

    fn fork(
        &self,
        from: ForkPoint,
        new: NewAgent,
    ) -> BoxFuture<'static, Result<AgentHandle, CreateError>> {
        let maker = self.maker();
        Box::pin(async move { maker?.fork(from, new).await })
    }
}

/// An agent that is live and that nobody has yet: if its asker goes now, it goes too.
struct Undelivered {
    agent: Option<Agent>,
    tasks: TaskTracker,
    runtime: tokio::runtime::Handle,
}

impl Undelivered {
    fn deliver(mut self) -> AgentHandle {
        let agent = self.agent.take();
        AgentHandle::new(agent.expect("it is delivered once, by value"))
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        let dispose = async move {
            if let Err(failure) = AgentHandle::new(agent.clone()).dispose_keeping_inbox().await {
                tracing::warn!(agent = %agent.id(), %failure, "an agent that nobody took");
            }
        };
        self.tasks.spawn_on(dispose, &self.runtime);
    }
}

struct CancelOnDrop(Option<CancelToken>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(cancel) = &self.0 {
            cancel.cancel(CancelCause::Parent);
        }
    }
}

pub(crate) fn shutting_down() -> Failure {
    Failure::new("SHUTTING_DOWN", "the harness is shutting down")
}
