//! What is put into a child's scope before it is live: the same for a fresh child, for a fork, and
//! for one that is made again from its descriptor.

use playhouse_messages::{chunk::Failure, session::InboxEdit};
use playhouse_plugin_api::{
    agent::Agent,
    creation::NewAgent,
    options::AgentOptions,
    prompt::{Context, Section},
    tool::ToolFilter,
    world::World,
};

use crate::{ChildOptions, Depth, descriptor::Descriptor, structured::Structured};

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

/// What a child's scope holds from its first moment on.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Composition {
    filters: Vec<ToolFilter>,
    persona: Option<String>,
    structured: Option<Structured>,
}

impl Composition {
    /// What every child of this agent gets: it knows what it is, and its parent's tool restrictions
    /// hold for it too, though it does not stand in its parent's scope.
    pub fn below(world: &World, parent: &Agent) -> Self {
        let filters = world.tools.registry().restrictions(parent.scope());
        Self { filters, ..Self::default() }
    }

    /// Seeing fewer tools.
    pub fn filtered(mut self, filter: Option<ToolFilter>) -> Self {
        self.filters.extend(filter);
        self
    }

    /// Being somebody.
    pub fn persona(mut self, persona: Option<String>) -> Self {
        self.persona = persona;
        self
    }

    /// Answering by a tool.
    pub fn structured(mut self, structured: Option<Structured>) -> Self {
        self.structured = structured;
        self
    }

    /// Puts it into the scope of a child that is not yet live.
    ///
    /// # Errors
    ///
    /// `UNKNOWN_TOOL` for a filter that names what the child would not see anyway, and what the
    /// registries say. What was registered goes with the child's scope.
    pub fn apply(&self, world: &World, child: &Agent) -> Result<(), Failure> {
        let (scope, prompts) = (child.scope(), &world.prompts);
        let context = Context::text(DELEGATION_CONTEXT, DELEGATION_ORDER, DELEGATION_TEXT);
        prompts.context(scope, context)?;
        if let Some(persona) = &self.persona {
            prompts.section(scope, Section::text(PERSONA_SECTION, 0.0, persona.as_str()))?;
        }
        for filter in &self.filters {
            world.tools.registry().restrict(scope, filter.clone())?;
        }
        if let Some(structured) = &self.structured {
            structured.install(world, scope)?;
        }
        Ok(())
    }
}

/// A child of this agent: told to it, as deep as it may stand, and seeing what is registered above
/// its parent, not in its parent's own scope. Owned by nobody yet.
pub fn child_of(parent: &Agent, options: AgentOptions) -> NewAgent {
    let beside_parent = parent.scope().parent().unwrap_or_else(|| parent.scope()).clone();
    NewAgent::new(options).delegated_by(parent).within(beside_parent)
}

/// The parent's options, overlaid.
pub fn child_options(parent: &Agent, own: &ChildOptions, depth: Depth) -> AgentOptions {
    let mut options = parent.options().clone();
    options.model = own.model.clone().or_else(|| parent.model().current());
    options.max_tokens = own.max_tokens.or(options.max_tokens);
    options.max_steps = own.max_steps.unwrap_or(options.max_steps);
    options.max_depth = depth.max_depth;
    // What the parent has is the parent's; the trees that it stands in count the child anyway.
    (options.budget, options.tree_budget) = (own.budget, own.tree_budget);
    options
}

/// Says in a new child's log who it is, before anything else of its own; and that what waited for
/// its parent when it was forked does not wait for it.
///
/// # Errors
///
/// What the log says.
pub async fn record(child: &Agent, descriptor: &Descriptor) -> Result<(), Failure> {
    child.session().append(descriptor.event()).await?;
    if !child.inbox().is_empty() {
        child.edit_inbox(InboxEdit::Clear).await?;
    }
    Ok(())
}
