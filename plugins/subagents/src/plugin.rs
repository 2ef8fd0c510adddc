//! Sub-agents as a plugin.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    plugin::{Plugin, PluginContext},
    tool::ToolFilter,
};

use crate::{
    Background, ChildOptions, ChildProviders, Continuations, DepthLimit, Fork, Slots, Spawn,
    ToolConfig, descriptor::DESCRIPTOR_KIND, fork::FORK, mount_tool, spawn::SPAWN,
};

/// The service under which the plugin offers its [`ChildProviders`].
pub const SUBAGENTS_SERVICE: &str = "subagents";

/// The event kinds that a harness with sub-agents must know: register them on its builder, or the
/// sessions of children do not load.
pub const EVENT_KINDS: [&str; 1] = [DESCRIPTOR_KIND];

/// The plugin: the providers [`Spawn`] and [`Fork`], and tools that delegate to them.
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
    fork_tool: Option<String>,
    further: Vec<ToolConfig>,
    slots: Slots,
}

impl Subagents {
    /// The defaults: a tool named `subagent` for fresh children, three levels deep, 32 children at
    /// once.
    pub fn new() -> Self {
        let tool = ToolConfig::new(SPAWN);
        Self { tool, fork_tool: None, further: Vec::new(), slots: Slots::default() }
    }

    /// Names the tool.
    #[must_use]
    pub fn tool_name(mut self, name: impl Into<String>) -> Self {
        self.tool.name = name.into();
        self
    }

    /// What a call of the tool means that asks to run in the background.
    #[must_use]
    pub fn background(mut self, background: Background) -> Self {
        self.tool.background = background;
        self
    }

    /// Adds a tool of this name for children that know what their parent has completed; otherwise as
    /// the tool for fresh ones. They have no persona of their own and cannot be continued, which would
    /// change what stands before the history, and so its price.
    #[must_use]
    pub fn fork_tool(mut self, name: impl Into<String>) -> Self {
        self.fork_tool = Some(name.into());
        self
    }

    /// Adds a tool, perhaps for a provider that another plugin registers in [`ChildProviders`]: it is
    /// there while that is.
    #[must_use]
    pub fn with_tool(mut self, tool: ToolConfig) -> Self {
        self.further.push(tool);
        self
    }

    /// The deepest that a child of the tool may stand; 0 forbids delegation by the tool. An agent's
    /// own limit counts all the same.
    #[must_use]
    pub fn max_depth(mut self, max_depth: u32) -> Self {
        self.tool.max_depth = DepthLimit::At(max_depth);
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

    fn tools(&self) -> Vec<ToolConfig> {
        let fork = self.fork_tool.clone().map(|name| ToolConfig {
            name,
            provider: FORK.to_owned(),
            persona: None,
            background: match self.tool.background {
                Background::Continuable => Background::OneShot,
                background => background,
            },
            ..self.tool.clone()
        });
        let tools = [Some(self.tool.clone()), fork].into_iter().flatten();
        tools.chain(self.further.iter().cloned()).collect()
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
            let world = ctx.world()?;
            let providers = ChildProviders::new();
            let spawn = Spawn::new(world.clone(), plugin.slots.clone());
            providers.register(&ctx.scope, Arc::new(spawn))?;
            let fork = Fork::new(world.clone(), plugin.slots.clone());
            providers.register(&ctx.scope, Arc::new(fork))?;
            let service = Arc::new(providers.clone());
            ctx.services.provide(&ctx.scope, SUBAGENTS_SERVICE, service)?;
            let tools = plugin.tools();
            let by_models = tools.iter().any(|tool| tool.background == Background::Continuable);
            Continuations::host(&ctx, providers.clone(), plugin.slots.clone(), by_models)?;
            for tool in tools {
                mount_tool(&ctx, &providers, tool)?;
            }
            Ok(())
        }
        .boxed()
    }
}
