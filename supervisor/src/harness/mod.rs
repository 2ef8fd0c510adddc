//! The harness: a world, its roots, and the way in and out.

mod builder;
mod hibernation;

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

pub use builder::{HarnessBuilder, HarnessError};
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use playhouse_messages::{
    chunk::Failure, event::CancelCause, id::SessionId, protocol::AgentsRootMessage,
};
use playhouse_plugin_api::{
    agent::Agent,
    creation::{AgentHandle, AgentMaker, CreateError, NewAgent},
    fork::ForkPoint,
    plugin::Plugin,
    registry::CancellingTree,
    store::EventBatch,
    tool::Tool,
    watch,
    world::World,
};
use ractor::ActorRef;
use tokio::task::JoinHandle;

use crate::{
    agents::{
        disposal::{self, STORE_TIMEOUT, in_time, store_failure},
        maker::Maker,
    },
    children::count,
    plugin_host::{HostError, PluginHandle, Plugins},
    providers::ProvidersRootMessage,
    restart_policy::RestartBook,
};

/// Runs agents. Clones are the same harness. Dropping every clone ends nothing:
/// [`Harness::shutdown`] does, and makes all logs durable.
#[derive(Clone)]
pub struct Harness {
    inner: Arc<Inner>,
}

struct Inner {
    world: Arc<World>,
    root: ActorRef<AgentsRootMessage>,
    providers: ActorRef<ProvidersRootMessage>,
    maker: Maker,
    plugins: Plugins,
    book: RestartBook,
    state: watch::Sender<HarnessState>,
    guard: JoinHandle<()>,
    /// The shutdown that is under way, or done.
    ending: OnceLock<Shared<BoxFuture<'static, Result<(), Failure>>>>,
}

/// How a harness is.
#[derive(Debug, Clone, PartialEq)]
pub enum HarnessState {
    /// It takes work.
    Running,
    /// It ends its work, and takes none.
    ShuttingDown,
    /// The root of its agents died; what was accepted was made durable.
    Failed(Failure),
    /// Nothing of it is left.
    Down,
}

impl Harness {
    /// What a harness is built from.
    pub fn builder() -> HarnessBuilder {
        HarnessBuilder::new()
    }

    /// Makes an agent: see [`NewAgent`] for what it can be made from. All or nothing.
    pub async fn create(&self, new: NewAgent) -> Result<AgentHandle, CreateError> {
        self.inner.maker.create(new).await
    }

    /// Makes an agent over a stored session. A turn that a crash left open is closed first, with
    /// all that had been shown kept.
    pub async fn resume(
        &self,
        id: impl Into<SessionId>,
        new: NewAgent,
    ) -> Result<AgentHandle, CreateError> {
        self.inner.maker.resume(new.id(id)).await
    }

    /// Makes an agent over a copy of a session's log, up to an event or whole: see
    /// [`AgentMaker::fork`].
    ///
    /// ```
    /// # use playhouse_plugin_api::{creation::{CreateError, NewAgent}, fork::ForkPoint, options::AgentOptions};
    /// # use playhouse_supervisor::harness::Harness;
    /// # async fn run(harness: &Harness, options: AgentOptions) -> Result<(), CreateError> {
    /// let all_of_it = harness.fork("the-novel", NewAgent::new(options.clone())).await?;
    /// let new = NewAgent::new(options).id("another-ending");
    /// let up_to_event_41 = harness.fork(ForkPoint::at("the-novel", 41), new).await?;
    /// # Ok(()) }
    /// ```
    pub async fn fork(
        &self,
        from: impl Into<ForkPoint>,
        new: NewAgent,
    ) -> Result<AgentHandle, CreateError> {
        self.inner.maker.fork(from.into(), new).await
    }

    /// The live agent of this id.
    pub fn agent(&self, id: &SessionId) -> Option<Agent> {
        self.inner.world.agents.get(id)
    }

    /// All live agents.
    pub fn agents(&self) -> Vec<Agent> {
        self.inner.world.agents.list()
    }

    /// The live agents that this one delegated to.
    pub fn children(&self, id: &SessionId) -> Vec<Agent> {
        self.inner.world.agents.children(id)
    }

    /// Cancels an agent and all below it, at once; await what is returned to know that all of them
    /// have come to rest. See [`Agent::cancel_tree`].
    pub fn cancel_tree(&self, agent: &Agent, cause: CancelCause) -> CancellingTree {
        self.inner.world.agents.cancel_tree(agent, cause)
    }

    /// Registers a tool for all agents.
    pub fn register_tool(&self, tool: Arc<dyn Tool>) -> Result<(), Failure> {
        let registry = self.inner.world.tools.registry();
        let registered = registry.register(&self.inner.world.scope, tool);
        registered.map(drop).map_err(|fault| Failure::new(fault.code(), fault.to_string()))
    }

    /// Hosts a further plugin.
    pub async fn host(&self, plugin: impl Plugin) -> Result<PluginHandle, HostError> {
        self.inner.plugins.host(Arc::new(plugin)).await
    }

    /// How many actors of agents and providers died and were started again.
    pub fn restarts(&self) -> u64 {
        self.inner.book.restarts()
    }

    /// How many actors it has: of agents, of provider routes and of plugins, with those that keep
    /// them.
    pub fn actors(&self) -> usize {
        let Inner { root, providers, plugins, .. } = &*self.inner;
        [root.get_cell(), providers.get_cell(), plugins.root()].iter().map(count).sum()
    }

    /// What agents and plugins share.
    pub fn world(&self) -> &Arc<World> {
        &self.inner.world
    }

    /// Reads the harness's state along.
    pub fn watch(&self) -> watch::Receiver<HarnessState> {
        self.inner.state.subscribe()
    }

    /// Cancels all agents, waits until their turns have ended durably, and releases everything.
    /// Pending input stays in the logs, for a resume to run; creations under way are given up.
    /// Always finishes, and goes on if this future is dropped. Every caller awaits the same end;
    /// what went wrong on the way is returned after.
    pub async fn shutdown(&self) -> Result<(), Failure> {
        let start = || {
            let inner = self.inner.clone();
            let ending = tokio::spawn(async move { inner.shut_down().await });
            let ending = async {
                let ended = ending.await;
                ended.unwrap_or_else(|fault| Err(Failure::new("PANIC", fault.to_string())))
            };
            ending.boxed().shared()
        };
        self.inner.ending.get_or_init(start).clone().await
    }
}

impl Inner {
    async fn shut_down(&self) -> Result<(), Failure> {
        let Self { world, root, providers, maker, plugins, state, guard, .. } = self;
        state.send_if_modified(|state| {
            let running = *state == HarnessState::Running;
            if running {
                *state = HarnessState::ShuttingDown;
            }
            running
        });
        let mut failures = Vec::new();
        world.agents.close();
        for agent in world.agents.list() {
            agent.cancel_with(CancelCause::Disposed, true);
        }
        maker.close().await;
        loop {
            let agents = world.agents.list();
            if agents.is_empty() {
                break;
            }
            let ends = agents
                .into_iter()
                .map(|agent| async move { AgentHandle::new(agent).dispose_keeping_inbox().await });
            failures
                .extend(futures::future::join_all(ends).await.into_iter().filter_map(Result::err));
            if root.get_status() == ractor::ActorStatus::Stopped {
                break;
            }
        }
        plugins.shutdown().await;
        world.scope.close_and_wait().await;
        guard.abort();
        let stops = [
            root.stop_and_wait(None, None).await.err(),
            providers.stop_and_wait(None, None).await.err(),
        ];
        for fault in stops.into_iter().flatten() {
            tracing::debug!(%fault, "a root had ended before");
        }
        if let Some(store) = &world.store {
            let patience = world.limits.grace + disposal::PATIENCE;
            failures.extend(match tokio::time::timeout(patience, store.close()).await {
                Ok(closed) => closed.err().map(store_failure),
                Err(_) => {
                    let text = format!(
                        "{} did not close in {patience:?}: what was accepted last may not be durable",
                        store.describe()
                    );
                    Some(Failure::new(STORE_TIMEOUT, text))
                }
            });
        }
        state.send_replace(HarnessState::Down);
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0)),
            _ => {
                let all: Vec<_> = failures.iter().map(ToString::to_string).collect();
                Err(Failure::new("SHUTDOWN_FAILED", format!("[{}]", all.join("; "))))
            }
        }
    }
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").field("world", &self.inner.world).finish_non_exhaustive()
    }
}

/// The root of the agents died, and all their actors with it: the harness has failed. What was
/// accepted is made durable, and the state says so.
async fn watch_root(root: JoinHandle<()>, mut held: LetGo, state: watch::Sender<HarnessState>) {
    let _ = root.await;
    // The runtime is still there.
    let Some(maker) = held.0.take() else { return };
    let world = maker.world();
    if *state.borrow() != HarnessState::Running {
        return;
    }
    tracing::error!("the root of all agents died: the harness has failed");
    maker.give_up();
    let mut text =
        "the root of all agents died; restart the harness and resume its sessions".to_owned();
    for agent in world.agents.all() {
        if let Some(handle) = agent.session().cell().handle() {
            let durable = agent.session().marks().borrow().durable;
            let rest: Vec<_> = agent.session().log().range(durable..u64::MAX).cloned().collect();
            let storing = async {
                handle.append(EventBatch::encode(&rest)).await.map_err(store_failure)?;
                handle.close().await.map_err(store_failure)
            };
            let patience = world.limits.grace + disposal::PATIENCE;
            if let Err(failure) = in_time(patience, agent.id(), storing).await {
                text = format!("{text}; session `{}`: {}", agent.id(), failure.message);
            }
        }
        // What the agent's scope holds belongs to nobody now.
        agent.scope().close();
        agent.session().cell().feed().close();
        agent.cell().supervisor.close();
        agent.cell().actor.close();
        agent.session().cell().appender.close();
        agent.session().cell().close_writer();
        agent.cell().set_disposal(playhouse_plugin_api::agent::Disposal::Disposed);
        if world.agents.remove(&agent) {
            world.hooks.disposed.tell(agent.scope(), &agent);
        }
    }
    state.send_replace(HarnessState::Failed(Failure::new("HARNESS_FAILED", text)));
}

/// Lets go of the world if the runtime goes without a shutdown, and all tasks with it: nothing of it
/// runs any more, and its registrations would hold each other, and the store's lock, for ever.
struct LetGo(Option<Maker>);

impl Drop for LetGo {
    fn drop(&mut self) {
        let Some(maker) = &self.0 else { return };
        let world = maker.world();
        world.scope.close();
        for agent in world.agents.all() {
            world.agents.remove(&agent);
        }
    }
}
