//! What a harness is built from, and how it starts.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use playhouse_actors::{agent::LoopFactory, tool_executor::ToolExecutor};
use playhouse_messages::{chunk::Failure, invariants::InvariantsHold, session_state::KnownKinds};
use playhouse_plugin_api::{
    attachment::{AttachmentStore, MemoryAttachments},
    blueprint::{Blueprint, Blueprints},
    clock::{Clock, Ids, SystemClock, UuidIds},
    factory::AgentFactory,
    llm::LlmRegistry,
    options::{Durability, Limits},
    plugin::{Plugin, WORLD_SERVICE},
    points::Hooks,
    prompt::{PromptRegistry, ToolOffer},
    registry::AgentRegistry,
    scope::Scope,
    service::Services,
    store::Store,
    tool::{ToolBatchExecutor, ToolPipeline, ToolRegistry},
    undurable::Undurable,
    validators::{ValidatorFilter, Validators},
    watch,
    world::{Providers, World},
};
use ractor::Actor;

use super::{Harness, HarnessState, Inner, LetGo, watch_root};
use crate::{
    agents::{disposal, maker::Maker, root::AgentsRoot},
    hibernation::{HibernationPolicy, sleeper},
    plugin_host::{HostError, PluginStatus, Plugins},
    providers::{ProvidersRoot, ProvidersRootMessage},
    restart_policy::{RestartBook, RestartPolicy},
};

/// How long the setup of a plugin may take while the harness starts.
const SETUP_PATIENCE: Duration = Duration::from_secs(30);

/// What a harness is built from. Every part has a default: no store (sessions live in memory), images in memory, the
/// loop of this library, the system's clock, fresh UUIDs, no plugins.
pub struct HarnessBuilder {
    store: Option<Arc<dyn Store>>,
    attachments: Arc<dyn AttachmentStore>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    factory: Arc<dyn AgentFactory>,
    executor: Option<Arc<dyn ToolBatchExecutor>>,
    plugins: Vec<Arc<dyn Plugin>>,
    known: KnownKinds,
    invariants: bool,
    validators: ValidatorFilter,
    limits: Limits,
    durability: Durability,
    restarts: RestartPolicy,
    blueprints: Vec<(String, Blueprint)>,
    hibernation: Option<HibernationPolicy>,
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
    pub(super) fn new() -> Self {
        Self {
            store: None,
            attachments: Arc::new(MemoryAttachments::new()),
            clock: Arc::new(SystemClock),
            ids: Arc::new(UuidIds),
            factory: Arc::new(LoopFactory),
            executor: None,
            plugins: Vec::new(),
            known: KnownKinds::new(),
            invariants: cfg!(debug_assertions),
            validators: ValidatorFilter::default(),
            limits: Limits::new(),
            durability: Durability::default(),
            restarts: RestartPolicy::default(),
            blueprints: Vec::new(),
            hibernation: None,
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

    /// Keeps the images of messages here; in memory unless told otherwise. Sessions that a store
    /// keeps need one that lasts as long, such as `context::DirectoryAttachments`.
    #[must_use]
    pub fn attachments(mut self, attachments: impl AttachmentStore) -> Self {
        self.attachments = Arc::new(attachments);
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

    /// Hosts a plugin, in the order of the calls, and understands the event kinds that it writes.
    #[must_use]
    pub fn plugin(mut self, plugin: impl Plugin) -> Self {
        for kind in plugin.event_kinds() {
            self.known.insert(kind);
        }
        self.plugins.push(Arc::new(plugin));
        self
    }

    /// Understands a plugin's required event kind: logs that hold it load.
    #[must_use]
    pub fn event_kind(mut self, kind: impl Into<Arc<str>>) -> Self {
        self.known.insert(kind);
        self
    }

    /// Whether events that break an invariant of the log are refused
    /// ([`InvariantsHold`], by name `invariants`). On by default in builds with debug assertions: a
    /// fault shows where it is made. What is stored already loads in any case.
    #[must_use]
    pub fn invariants(mut self, hold: bool) -> Self {
        self.invariants = hold;
        self
    }

    /// Selects which validators hold, whoever registers them. Without a filter, all do.
    #[must_use]
    pub fn validators(mut self, filter: ValidatorFilter) -> Self {
        self.validators = filter;
        self
    }

    /// How many tool calls of one batch run at once; must be positive. Can be changed later.
    #[must_use]
    pub fn max_parallel_tool_calls(self, calls: usize) -> Self {
        self.limits.set_max_parallel_tool_calls(calls);
        self
    }

    /// When logs are made durable, for agents whose options do not say:
    /// [`AgentOptions::durability`](playhouse_plugin_api::options::AgentOptions::durability)
    /// overrules it. [`Durability::Strict`] unless told otherwise.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long started tools and hooks are awaited after a cancel.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.limits.grace = grace;
        self
    }

    /// How many bytes all sessions together may have accepted and not made durable before senders and
    /// streams wait for the store; 64 MiB unless told otherwise. A machine of 256 MiB does well with 4.
    #[must_use]
    pub fn undurable_bytes(mut self, bytes: u64) -> Self {
        self.limits.undurable_bytes = bytes;
        self
    }

    /// How often its actors may die before they are given up.
    #[must_use]
    pub fn restart_policy(mut self, policy: RestartPolicy) -> Self {
        self.restarts = policy;
        self
    }

    /// Registers what agents of a kind are made from: see [`Harness::blueprint`].
    #[must_use]
    pub fn blueprint(mut self, name: impl Into<String>, blueprint: Blueprint) -> Self {
        self.blueprints.push((name.into(), blueprint));
        self
    }

    /// Lets idle agents hibernate that were made from a blueprint. Without a policy they do when they
    /// are told to: see [`Harness::hibernate`].
    #[must_use]
    pub fn hibernation(mut self, policy: HibernationPolicy) -> Self {
        self.hibernation = Some(policy);
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
            models: LlmRegistry::at(scope.clone()),
            tools,
            prompts: PromptRegistry::new(),
            services: Services::new(),
            agents: AgentRegistry::with_patience(self.limits.grace * 2 + disposal::PATIENCE),
            store: self.store,
            undurable: Undurable::new(self.limits.undurable_bytes),
            attachments: self.attachments,
            known: Arc::new(self.known),
            validators: Validators::new(self.validators),
            limits: self.limits,
            durability: self.durability,
            executor,
            blueprints: Blueprints::new(),
            factory: self.factory,
            providers: Providers::new(),
            maker: std::sync::OnceLock::new(),
        });
        let set_up = |fault: &dyn fmt::Display| {
            HarnessError::Setup(Failure::new("SETUP", fault.to_string()))
        };
        if self.invariants {
            world.validators.register(&scope, InvariantsHold).map_err(|fault| set_up(&fault))?;
        }
        let registry = world.tools.registry().clone();
        world
            .prompts
            .tools(&scope, move |ctx| ToolOffer::from(registry.schemas(&ctx.scope).to_vec()))
            .map_err(|fault| set_up(&fault))?;
        for (name, blueprint) in self.blueprints {
            let registered = world.blueprints.register(&scope, name, blueprint);
            registered.map_err(|fault| HarnessError::Setup(fault.into()))?;
        }
        world
            .services
            .provide(&scope, WORLD_SERVICE, world.clone())
            .map_err(|fault| set_up(&fault))?;

        let book = RestartBook::new(self.restarts);
        let (providers, _) =
            ProvidersRoot::spawn(None, ProvidersRoot, (world.clone(), book.clone())).await?;
        let starter = providers.clone();
        world.providers.on_first_use(move |provider, slot| {
            if starter.cast(ProvidersRootMessage::Start { provider, slot: slot.clone() }).is_err() {
                slot.close();
            }
        });
        let (root, ended) =
            AgentsRoot::spawn(None, AgentsRoot, (world.clone(), book.clone())).await?;
        let maker = Maker::new(world.clone(), root.clone());
        // Set once: this is the only place, and the world is new.
        let _ = world.maker.set(Arc::new(maker.from_within()));
        if let Some(policy) = self.hibernation {
            sleeper::begin(&maker, policy).map_err(|fault| set_up(&fault))?;
        }
        let (plugins, _) =
            Plugins::start(scope.clone(), world.services.clone(), book.policy.plugins, None)
                .await?;
        let state = watch::Sender::new(HarnessState::Running);
        let guard = tokio::spawn(watch_root(ended, LetGo(Some(maker.clone())), state.clone()));
        let harness = Harness {
            inner: Arc::new(Inner {
                world,
                root,
                providers,
                maker,
                plugins,
                book,
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
                // One whose need has come meanwhile has only not been looked at yet.
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
