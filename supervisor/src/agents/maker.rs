//! Who makes agents: takes creations, gives them up, and delivers what they made.

use std::sync::Arc;

use futures::future::BoxFuture;
use playhouse_messages::{chunk::Failure, event::CancelCause, protocol::AgentsRootMessage};
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

/// Makes the agents of a harness.
#[derive(Debug, Clone)]
pub struct Maker {
    pub(super) world: Arc<World>,
    pub(super) root: ActorRef<AgentsRootMessage>,
    /// Fires when no agent can be made any more.
    pub(super) ended: CancelToken,
    /// Creations under way: each ends by itself when it is given up.
    tasks: TaskTracker,
    /// Claims on storage that the store has not answered yet.
    pub(super) claims: TaskTracker,
}

impl Maker {
    /// A maker whose agents hang under `root`.
    pub fn new(world: Arc<World>, root: ActorRef<AgentsRootMessage>) -> Self {
        let (tasks, claims) = (TaskTracker::new(), TaskTracker::new());
        Self { world, root, ended: CancelToken::new(), tasks, claims }
    }

    /// The world that its agents live in.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Takes no further creations, and gives up those under way.
    pub fn give_up(&self) {
        self.tasks.close();
        self.claims.close();
        self.ended.cancel(CancelCause::Disposed);
    }

    /// As [`Maker::give_up`], and waits until nothing is left of them. A store that does not answer
    /// is not waited for long.
    pub async fn close(&self) {
        self.give_up();
        self.tasks.wait().await;
        let patience = self.world.limits.grace + disposal::PATIENCE;
        if tokio::time::timeout(patience, self.claims.wait()).await.is_err() {
            tracing::warn!("the store still holds back claims on sessions");
        }
    }

    /// Runs a creation in a task of its own, so that it is rolled back whole if the caller goes.
    fn make(
        &self,
        new: NewAgent,
        basis: Basis,
    ) -> BoxFuture<'static, Result<AgentHandle, CreateError>> {
        let maker = self.clone();
        Box::pin(async move {
            if maker.tasks.is_closed() {
                return Err(shutting_down().into());
            }
            let cancel = new.cancel.as_ref().map_or_else(CancelToken::new, CancelToken::child);
            let mut guard = CancelOnDrop(Some(cancel.clone()));
            let tracker = maker.tasks.clone();
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

    fn fork(
        &self,
        from: ForkPoint,
        new: NewAgent,
    ) -> BoxFuture<'static, Result<AgentHandle, CreateError>> {
        self.make(new, Basis::Fork(from))
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

pub(super) fn shutting_down() -> Failure {
    Failure::new("SHUTTING_DOWN", "the harness is shutting down")
}
