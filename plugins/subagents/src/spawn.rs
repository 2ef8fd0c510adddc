//! The provider of this library: a fresh agent in this process.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    event::CancelCause,
    message::{Message, Source},
};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    creation::NewAgent,
    options::AgentOptions,
    prompt::{Context, Section},
    tool::ToolFilter,
    world::World,
};

use crate::{
    Capabilities, ChildError, ChildProvider, ChildProviders, ChildRequest, Run, Slot, Slots,
    descriptor::Descriptor, plugin::SUBAGENTS_SERVICE,
};

/// The provider's name.
pub const SPAWN: &str = "spawn";

/// The runtime fact by which a child knows what it is.
pub const DELEGATION_CONTEXT: &str = "subagent:delegation";

/// Where that fact stands among the others.
pub const DELEGATION_ORDER: f64 = 120.0;

/// The section that a persona is put in; a deployment's own has the same name.
pub const PERSONA_SECTION: &str = "deployment:persona";

const DELEGATION_TEXT: &str = "\
You are a sub-agent: another agent delegated this task to you, and gets your last answer as its \
result. Your permissions are fixed for the whole task, and nobody can approve more: a request for \
approval is rejected at once. Do not retry an operation that was denied; say in your answer what \
you could not do and why.";

/// Starts a fresh agent with its parent's options and without its history.
///
/// The child sees what is registered in the scopes above its parent, not in its parent's own; but
/// its parent's tool restrictions hold for it too. A slot is taken before anything is made, and
/// goes with the child's scope.
#[derive(Debug, Clone)]
pub struct Spawn {
    world: Arc<World>,
    slots: Slots,
}

impl Spawn {
    /// A provider that makes agents in this world, as long as slots are free.
    pub fn new(world: Arc<World>, slots: Slots) -> Self {
        Self { world, slots }
    }

    async fn run(self, request: ChildRequest) -> Result<Run, ChildError> {
        let Self { world, slots } = self;
        let parent = &request.parent;
        if request.output_schema.is_some() {
            let provider = SPAWN.to_owned();
            return Err(ChildError::UnsupportedCapability { provider, capability: "outputSchema" });
        }
        let own_limit = parent.options().max_depth;
        let max_depth = request.max_depth.map_or(own_limit, |asked| asked.min(own_limit));
        let depth = parent.depth().saturating_add(1);
        if depth > max_depth {
            return Err(ChildError::Depth { depth, max_depth });
        }
        let maker = world.maker.get().cloned().ok_or_else(|| {
            ChildError::Start(Failure::new("NO_HARNESS", "no harness makes agents in this world"))
        })?;
        let slot = slots.take()?;
        let registry = world.tools.registry();
        let source = Source::delegation(parent.id().as_str());
        let set_up = Arc::new(SetUp {
            slot: Mutex::new(Some(slot)),
            descriptor: Descriptor::one_shot(SPAWN, request.label.clone()),
            filters: registry
                .restrictions(parent.scope())
                .into_iter()
                .chain(request.tool_filter.clone())
                .collect(),
            persona: request.persona.clone(),
            prompt: Message::user_from(world.ids.message(), request.prompt.clone(), source),
            cancel: request.cancel.clone(),
            world,
        });
        let beside_parent = parent.scope().parent().unwrap_or_else(|| parent.scope()).clone();
        let owner = request.owner.clone().unwrap_or_else(|| parent.scope().clone());
        let new = NewAgent::new(options(&request, max_depth))
            .delegated_by(parent)
            .owned_by(owner)
            .within(beside_parent)
            .cancelled_by(request.cancel.clone())
            .set_up(move |child| set_up.clone().run(child));
        Ok(Run::local(maker.create(new).await?, request.cancel))
    }
}

impl ChildProvider for Spawn {
    fn name(&self) -> &str {
        SPAWN
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { output_schema: false, depth_limit: true, tool_filter: true, persona: true }
    }

    fn start(&self, request: ChildRequest) -> BoxFuture<'static, Result<Run, ChildError>> {
        self.clone().run(request).boxed()
    }
}

/// Starts a child from code, by the [`Spawn`] provider of the world's harness; see the crate's
/// example. It takes one of the plugin's slots; without the plugin nothing limits their number.
///
/// # Errors
///
/// As [`ChildProviders::start`]; nothing is left of the child then.
pub async fn spawn(world: &Arc<World>, request: ChildRequest) -> Result<Run, ChildError> {
    match world.services.get::<ChildProviders>(SUBAGENTS_SERVICE) {
        Some(providers) => providers.start(SPAWN, request).await,
        None => Spawn::new(world.clone(), Slots::new(usize::MAX)).run(request).await,
    }
}

/// The parent's options, overlaid.
fn options(request: &ChildRequest, max_depth: u32) -> AgentOptions {
    let mut options = request.parent.options().clone();
    options.model = request.options.model.clone().or_else(|| request.parent.model().current());
    options.max_tokens = request.options.max_tokens.or(options.max_tokens);
    options.max_steps = request.options.max_steps.unwrap_or(options.max_steps);
    options.max_depth = max_depth;
    // The trees above count it anyway.
    (options.budget, options.tree_budget) = (None, None);
    options
}

/// What happens to a child before it is live.
struct SetUp {
    /// Held by the creation until the child's scope takes it, so that it is given back when
    /// whatever was made is gone, and not before.
    slot: Mutex<Option<Slot>>,
    descriptor: Descriptor,
    filters: Vec<ToolFilter>,
    persona: Option<String>,
    prompt: Message,
    cancel: CancelToken,
    world: Arc<World>,
}

impl SetUp {
    async fn run(self: Arc<Self>, child: Agent) -> Result<(), Failure> {
        let scope = child.scope();
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        scope.on_close(move || drop(slot))?;
        let prompts = &self.world.prompts;
        let context = Context::text(DELEGATION_CONTEXT, DELEGATION_ORDER, DELEGATION_TEXT);
        prompts.context(scope, context)?;
        if let Some(persona) = &self.persona {
            prompts.section(scope, Section::text(PERSONA_SECTION, 0.0, persona.as_str()))?;
        }
        for filter in &self.filters {
            self.world.tools.registry().restrict(scope, filter.clone())?;
        }
        child.session().append(self.descriptor.event()).await?;
        let (cancel, cancelled) = (self.cancel.clone(), Arc::downgrade(child.cell()));
        scope.spawn(async move {
            cancel.cancelled().await;
            if let Some(child) = cancelled.upgrade() {
                Agent::new(child).cancel(CancelCause::Parent);
            }
        });
        // Accepted while input is held back: whoever cancels the child from now on, also in the
        // moment in which it becomes live, cancels its prompt.
        child.followup(self.prompt.clone()).await?;
        Ok(())
    }
}
