//! The world: what a harness owns and its actors borrow.
//!
//! A plain value, so that two harnesses in one process share nothing, and no actor holds the only
//! copy of anything that matters.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use playhouse_messages::{
    id::MessageId, protocol::ProviderMessage, session::Mint, session_state::KnownKinds,
};

use crate::{
    attachment::AttachmentStore,
    blueprint::Blueprints,
    clock::{Clock, Ids},
    creation::AgentMaker,
    factory::AgentFactory,
    llm::LlmRegistry,
    options::{Durability, Limits},
    points::Hooks,
    prompt::PromptRegistry,
    registry::AgentRegistry,
    scope::Scope,
    service::Services,
    slot::Slot,
    store::Store,
    tool::{ToolBatchExecutor, ToolPipeline},
    undurable::Undurable,
    validators::Validators,
};

/// Everything that the actors of a harness share.
pub struct World {
    /// Wall-clock time.
    pub clock: Arc<dyn Clock>,
    /// Where ids come from.
    pub ids: Arc<dyn Ids>,
    /// The span that all work is traced in.
    pub span: tracing::Span,
    /// The scope above all others; closing it ends the harness's registrations.
    pub scope: Scope,
    /// The hook points of the loop.
    pub hooks: Hooks,
    /// The model adapters.
    pub models: LlmRegistry,
    /// The tools, and the stages that a call of one goes through.
    pub tools: ToolPipeline,
    /// The prompt's sections, variables and runtime contexts.
    pub prompts: PromptRegistry,
    /// What plugins offer each other.
    pub services: Services,
    /// The live agents.
    pub agents: AgentRegistry,
    /// Where sessions are kept; `None` keeps them in memory only.
    pub store: Option<Arc<dyn Store>>,
    /// What its sessions have accepted and not made durable.
    pub undurable: Arc<Undurable>,
    /// Where the images of messages are kept.
    pub attachments: Arc<dyn AttachmentStore>,
    /// The event kinds of plugins that this build understands.
    pub known: Arc<KnownKinds>,
    /// The rules that every event is held against before it is committed.
    pub validators: Validators,
    /// Limits that can be changed while running.
    pub limits: Limits,
    /// When logs are made durable, unless an agent's options say.
    pub durability: Durability,
    /// What runs batches of tool calls.
    pub executor: Arc<dyn ToolBatchExecutor>,
    /// What agents can be made from, and made again.
    pub blueprints: Blueprints,
    /// What drives agents.
    pub factory: Arc<dyn AgentFactory>,
    /// The actors of the provider routes.
    pub providers: Providers,
    /// Makes agents; set once the harness stands.
    pub maker: OnceLock<Arc<dyn AgentMaker>>,
}

impl World {
    /// Time and ids for a session's commands.
    pub fn mint(&self) -> WorldMint<'_> {
        WorldMint(self)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.store.as_ref().map(|store| store.describe());
        f.debug_struct("World")
            .field("store", &store)
            .field("agents", &self.agents.list().len())
            .finish_non_exhaustive()
    }
}

/// Mints from the world's clock and ids.
#[derive(Debug)]
pub struct WorldMint<'a>(&'a World);

impl Mint for WorldMint<'_> {
    fn now(&mut self) -> i64 {
        self.0.clock.now_ms()
    }

    fn message_id(&mut self) -> MessageId {
        self.0.ids.message()
    }
}

/// The actors of the provider routes, each made when it is first asked for.
#[derive(Default)]
pub struct Providers {
    slots: Mutex<BTreeMap<String, Arc<Slot<ProviderMessage>>>>,
    start: OnceLock<StartProvider>,
}

type StartProvider = Box<dyn Fn(String, Arc<Slot<ProviderMessage>>) + Send + Sync>;

impl Providers {
    /// No providers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how a route's actor is started; the supervisor does so once. Only the first counts.
    pub fn on_first_use(
        &self,
        start: impl Fn(String, Arc<Slot<ProviderMessage>>) + Send + Sync + 'static,
    ) {
        let _ = self.start.set(Box::new(start));
    }

    /// The slot of a route's actor.
    pub fn slot(&self, provider: &str) -> Arc<Slot<ProviderMessage>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(provider) {
            return slot.clone();
        }
        let slot = Arc::new(Slot::new());
        slots.insert(provider.to_owned(), slot.clone());
        match self.start.get() {
            Some(start) => start(provider.to_owned(), slot.clone()),
            None => slot.close(),
        }
        slot
    }
}

impl fmt::Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_list().entries(slots.keys()).finish()
    }
}
