//! The harness: a world, its roots, and the way in and out.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use playhouse_actors::{agent::LoopFactory, tool_executor::ToolExecutor};
use playhouse_messages::{
    chunk::Failure, event::CancelCause, id::SessionId, protocol::AgentsRootMessage,
    session_state::KnownKinds,
};
use playhouse_plugin_api::{
    agent::Agent,
    clock::{Clock, Ids, SystemClock, UuidIds},
    creation::{AgentHandle, AgentMaker, CreateError, NewAgent},
    factory::AgentFactory,
    llm::LlmRegistry,
    options::Limits,
    plugin::{Plugin, WORLD_SERVICE},
    points::Hooks,
    prompt::{PromptRegistry, ToolOffer},
    registry::AgentRegistry,
    scope::Scope,
    service::Services,
    store::{EventBatch, Store},
    tool::{Tool, ToolBatchExecutor, ToolPipeline, ToolRegistry},
    world::{Providers, World},
};
use ractor::{Actor, ActorRef};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    agents::{creation::Maker, root::AgentsRoot},
    plugin_host::{HostError, PluginHandle, PluginStatus, Plugins, RestartLimits},
    providers::{ProvidersRoot, ProvidersRootMessage},
};

/// How long the setup of a plugin may take while the harness starts.
const SETUP_PATIENCE: Duration = Duration::from_secs(30);

/// What a harness is built from. Every part has a default: no store (sessions live in memory), the
/// loop of this library, the system's clock, fresh UUIDs, no plugins.
pub struct HarnessBuilder {
    store: Option<Arc<dyn Store>>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    factory: Arc<dyn AgentFactory>,
    executor: Option<Arc<dyn ToolBatchExecutor>>,
    plugins: Vec<Arc<dyn Plugin>>,
    known: KnownKinds,
    limits: Limits,
    plugin_limits: RestartLimits,
}

/// Why a harness did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HarnessError {
    /// An actor could not be started.
    #[error("the harness could not start an actor: {0}")]
    Spawn(#[from] ractor::SpawnErr),
    /// A plugin was not hosted.
    #[error(transparent)]
    Plugin(#[from] HostError),
    /// A part of the harness refused its registration.
    #[error("{0}")]
    Setup(Failure),
}

impl HarnessError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Spawn(_) => "SPAWN",
            Self::Plugin(error) => error.code(),
            Self::Setup(failure) => &failure.code,
        }
    }
}

impl HarnessBuilder {
    fn new() -> Self {
        Self {
            store: None,
            clock: Arc::new(SystemClock),
            ids: Arc::new(UuidIds),
            factory: Arc::new(LoopFactory),
            executor: None,
            plugins: Vec::new(),
            known: KnownKinds::new(),
            limits: Limits::new(),
            plugin_limits: RestartLimits::default(),
        }
    }

    /// Keeps sessions in this store. The harness closes it when it shuts down.
    #[must_use]
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// As [`HarnessBuilder::store`], for a store that is shared.
    #[must_use]
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Takes the time from this clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Takes ids from here.
    #[must_use]
    pub fn ids(mut self, ids: impl Ids) -> Self {
        self.ids = Arc::new(ids);
        self
    }

    /// Drives agents by another loop.
    #[must_use]
    pub fn agent_factory(mut self, factory: impl AgentFactory) -> Self {
        self.factory = Arc::new(factory);
        self
    }

    /// Runs tool batches by another executor.
    #[must_use]
    pub fn tool_executor(mut self, executor: impl ToolBatchExecutor) -> Self {
        self.executor = Some(Arc::new(executor));
        self
    }

    /// Hosts a plugin, in the order of the calls.
    #[must_use]
    pub fn plugin(mut self, plugin: impl Plugin) -> Self {
        self.plugins.push(Arc::new(plugin));
        self
    }

    /// Understands a plugin's required event kind: logs that hold it load.
    #[must_use]
    pub fn event_kind(mut self, kind: impl Into<Arc<str>>) -> Self {
        self.known.insert(kind);
        self
    }

    /// How many tool calls of one batch run at once; must be positive. Can be changed later.
    #[must_use]
    pub fn max_parallel_tool_calls(self, calls: usize) -> Self {
        self.limits.set_max_parallel_tool_calls(calls);
        self
    }

    /// How long started tools and hooks are awaited after a cancel.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.limits.grace = grace;
        self
    }

    /// Starts the harness on the current tokio runtime; the library makes none. Its plugins are set
    /// up when this returns, except those that wait for a service.
    ///
    /// # Errors
    ///
    /// What could not be started. A plugin that fails, or is not set up within 30 s, ends the start.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn start(self) -> Result<Harness, HarnessError> {
        let scope = Scope::root("harness");
        let tools = ToolPipeline::new(ToolRegistry::new());
        let executor = self.executor.unwrap_or_else(|| Arc::new(ToolExecutor::new(tools.clone())));
        let store = self.store.as_ref().map_or_else(|| "memory".to_owned(), |it| it.describe());
        let world = Arc::new(World {
            span: tracing::info_span!("harness", store),
            clock: self.clock,
            ids: self.ids,
            scope: scope.clone(),
            hooks: Hooks::default(),
            models: LlmRegistry::new(),
            tools,
            prompts: PromptRegistry::new(),
            services: Services::new(),
            agents: AgentRegistry::new(),
            store: self.store,
            known: Arc::new(self.known),
            limits: self.limits,
            executor,
            factory: self.factory,
            providers: Providers::new(),
            maker: std::sync::OnceLock::new(),
        });
        let set_up = |fault: &dyn fmt::Display| {
            HarnessError::Setup(Failure::new("SETUP", fault.to_string()))
        };
        let registry = world.tools.registry().clone();
        world
            .prompts
            .tools(&scope, move |ctx| ToolOffer::from(registry.schemas(&ctx.scope).to_vec()))
            .map_err(|fault| set_up(&fault))?;
        world
            .services
            .provide(&scope, WORLD_SERVICE, world.clone())
            .map_err(|fault| set_up(&fault))?;

        let (providers, _) = ProvidersRoot::spawn(None, ProvidersRoot, world.clone()).await?;
        let starter = providers.clone();
        world.providers.on_first_use(move |provider, slot| {
            if starter.cast(ProvidersRootMessage::Start { provider, slot: slot.clone() }).is_err() {
                slot.close();
            }
        });
        let (root, ended) = AgentsRoot::spawn(None, AgentsRoot, world.clone()).await?;
        let maker = Maker::new(world.clone(), root.clone());
        // Set once: this is the only place, and the world is new.
        let _ = world.maker.set(Arc::new(maker.clone()));
        let (plugins, _) =
            Plugins::start(scope.clone(), world.services.clone(), self.plugin_limits, None).await?;
        let state = watch::Sender::new(HarnessState::Running);
        let guard = tokio::spawn(watch_root(ended, maker.clone(), state.clone()));
        let harness = Harness {
            inner: Arc::new(Inner {
                world,
                root,
                providers,
                maker,
                plugins,
                state,
                guard,
                ending: OnceLock::new(),
            }),
        };
        match harness.furnish(self.plugins).await {
            Ok(()) => Ok(harness),
            Err(error) => {
                if let Err(failure) = harness.shutdown().await {
                    tracing::error!(%failure, "a harness that did not start did not end well");
                }
                Err(error)
            }
        }
    }
}

impl Harness {
    /// Hosts the first plugins, and waits until each is set up or waits for a service: what they
    /// register is there for the first agent.
    async fn furnish(&self, plugins: Vec<Arc<dyn Plugin>>) -> Result<(), HarnessError> {
        let mut hosted = Vec::new();
        for plugin in plugins {
            hosted.push(self.inner.plugins.host(plugin).await?);
        }
        for plugin in &hosted {
            let mut status = plugin.watch();
            let services = &self.inner.world.services;
            let settled = |status: &PluginStatus| match status {
                PluginStatus::SettingUp => false,
                // One that misses nothing has only not been looked at yet.
                PluginStatus::Waiting { missing } => {
                    missing.iter().any(|name| services.instance(name).is_none())
                }
                _ => true,
            };
            let settled = tokio::time::timeout(SETUP_PATIENCE, status.wait_for(settled)).await;
            let failure = match settled.as_ref().map(|status| status.as_deref()) {
                Ok(Ok(PluginStatus::Failed { failure })) => failure.clone(),
                Ok(_) => continue,
                Err(_) => Failure::new("PLUGIN_TIMEOUT", "its setup does not end"),
            };
            let text = format!("plugin `{}` is not set up: {}", plugin.name(), failure.message);
            return Err(HarnessError::Setup(Failure::new(failure.code, text)));
        }
        Ok(())
    }
}

impl fmt::Debug for HarnessBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HarnessBuilder")
            .field("plugins", &self.plugins.len())
            .finish_non_exhaustive()
    }
}

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

    /// Cancels an agent and all below it; returns how many were reached, once all were.
    pub fn cancel_tree(&self, agent: &Agent, cause: CancelCause) -> usize {
        self.inner.world.agents.cancel_tree(agent, &cause)
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
        if let Some(store) = &world.store
            && let Err(error) = store.close().await
        {
            failures.push(Failure::new(error.code(), error.to_string()));
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
async fn watch_root(root: JoinHandle<()>, maker: Maker, state: watch::Sender<HarnessState>) {
    let _ = root.await;
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
            let stored = match handle.append(EventBatch::encode(&rest)).await {
                Ok(()) => handle.close().await,
                Err(error) => Err(error),
            };
            if let Err(error) = stored {
                text = format!("{text}; session `{}`: {error}", agent.id());
            }
        }
        // What the agent's scope holds belongs to nobody now.
        agent.scope().close();
        agent.session().cell().feed().close();
        agent.cell().supervisor.close();
        agent.cell().actor.close();
        agent.session().cell().appender.close();
        agent.session().cell().writer.close();
        agent.cell().set_disposal(playhouse_plugin_api::agent::Disposal::Disposed);
        if world.agents.remove(&agent) {
            world.hooks.disposed.tell(agent.scope(), &agent);
        }
    }
    state.send_replace(HarnessState::Failed(Failure::new("HARNESS_FAILED", text)));
}
