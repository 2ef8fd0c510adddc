//! Sub-agents as a plugin.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    plugin::{Plugin, PluginContext},
    tool::ToolFilter,
};

use crate::{
    ChildError, ChildOptions, ChildProviders, Continuations, Fork, Slots, Spawn, ToolConfig,
    descriptor::DESCRIPTOR_KIND, spawn::SPAWN, subagent_tool,
};

/// The service under which the plugin offers its [`ChildProviders`].
pub const SUBAGENTS_SERVICE: &str = "subagents";

/// The event kinds that a harness with sub-agents must know: register them on its builder, or the
/// sessions of children do not load.
pub const EVENT_KINDS: [&str; 1] = [DESCRIPTOR_KIND];

/// The plugin: the provider [`Spawn`], and a tool that delegates to it.
///
/// ```
/// use playhouse_subagents::Subagents;
/// use playhouse_supervisor::harness::Harness;
///
/// let plugin = Subagents::new().max_children(8).max_depth(2).tool_name("delegate");
/// let slots = plugin.slots().clone();
/// let builder = Harness::builder().plugin(plugin);
/// assert_eq!((slots.taken(), slots.limit()), (0, 8));
/// # drop(builder);
/// ```
#[derive(Debug, Clone)]
pub struct Subagents {
    tool: ToolConfig,
    slots: Slots,
}

impl Subagents {
    /// The defaults: a tool named `subagent`, depth as the agents' own options say, 32 children at
    /// once.
    pub fn new() -> Self {
        Self { tool: ToolConfig::new(SPAWN), slots: Slots::default() }
    }

    /// Names the tool.
    #[must_use]
    pub fn tool_name(mut self, name: impl Into<String>) -> Self {
        self.tool.name = name.into();
        self
    }

    /// The deepest that a child of the tool may stand; 0 forbids delegation by the tool.
    #[must_use]
    pub fn max_depth(mut self, max_depth: u32) -> Self {
        self.tool.max_depth = Some(max_depth);
        self
    }

    /// How many children may live at once, those that code spawns included.
    #[must_use]
    pub fn max_children(mut self, limit: usize) -> Self {
        self.slots = Slots::new(limit);
        self
    }

    /// What children of the tool do otherwise than their parent.
    #[must_use]
    pub fn options(mut self, options: ChildOptions) -> Self {
        self.tool.options = options;
        self
    }

    /// Masks tools that children of the tool would see.
    #[must_use]
    pub fn tool_filter(mut self, filter: ToolFilter) -> Self {
        self.tool.tool_filter = Some(filter);
        self
    }

    /// Who children of the tool are to be.
    #[must_use]
    pub fn persona(mut self, persona: impl Into<String>) -> Self {
        self.tool.persona = Some(persona.into());
        self
    }

    /// The slots, to see how many are taken.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    fn check(&self) -> Result<(), ChildError> {
        let empty = |filter: &ToolFilter| filter.allow.is_none() && filter.deny.is_empty();
        if self.tool.tool_filter.as_ref().is_some_and(empty) {
            let text = "the sub-agents' tool filter needs an allow list or a deny list";
            return Err(ChildError::Config(text.to_owned()));
        }
        Ok(())
    }
}

impl Default for Subagents {
    fn default() -> Self {
        Self::new()
    }
}

impl Plugin for Subagents {
    fn name(&self) -> &str {
        "subagents"
    }

    fn event_kinds(&self) -> Vec<&'static str> {
        EVENT_KINDS.to_vec()
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let plugin = self.clone();
        async move {
            plugin.check()?;
            let world = ctx.world()?;
            let providers = ChildProviders::new();
            let spawn = Spawn::new(world.clone(), plugin.slots.clone());
            providers.register(&ctx.scope, Arc::new(spawn))?;
            let fork = Fork::new(world.clone(), plugin.slots.clone());
            providers.register(&ctx.scope, Arc::new(fork))?;
            let service = Arc::new(providers.clone());
            ctx.services.provide(&ctx.scope, SUBAGENTS_SERVICE, service)?;
            Continuations::host(&ctx, providers.clone(), plugin.slots)?;
            let tool = subagent_tool(providers, plugin.tool);
            ctx.tie(world.tools.registry().register(&world.scope, tool)?)?;
            Ok(())
        }
        .boxed()
    }
}
