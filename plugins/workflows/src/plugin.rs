//! Workflows as a plugin.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    plugin::{Plugin, PluginContext},
    prompt::Section,
};
use playhouse_subagents::{ChildProviders, SUBAGENTS_SERVICE};

use crate::{
    EngineConfig, WORKFLOW_ENGINE_SERVICE, WorkflowEngine,
    ralph::{RALPH_GUIDANCE, RALPH_SECTION, RalphConfig, ralph_tool},
    record::{EVENT_KINDS, RecordsHold},
    tool::{ToolConfig, WORKFLOW_GUIDANCE, WORKFLOW_SECTION, workflow_tool},
};

/// The plugin: the engine as the service [`WORKFLOW_ENGINE_SERVICE`], and the tools `workflow` and
/// `ralph`. It needs the plugin of the sub-agents.
///
/// ```
/// use playhouse_subagents::Subagents;
/// use playhouse_supervisor::harness::Harness;
/// use playhouse_workflows::{EngineConfig, Workflows};
///
/// let mut limits = EngineConfig::default();
/// limits.max_concurrent_agents = 4;
/// # drop(
/// Harness::builder().plugin(Subagents::new()).plugin(Workflows::new().engine(limits).ralph(None))
/// # );
/// ```
#[derive(Debug, Clone)]
pub struct Workflows {
    engine: EngineConfig,
    tool: Option<ToolConfig>,
    ralph: Option<RalphConfig>,
}

impl Workflows {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            engine: EngineConfig::default(),
            tool: Some(ToolConfig::default()),
            ralph: Some(RalphConfig::default()),
        }
    }

    /// The limits of runs.
    #[must_use]
    pub fn engine(mut self, config: EngineConfig) -> Self {
        self.engine = config;
        self
    }

    /// The tool `workflow`, or none.
    #[must_use]
    pub fn tool(mut self, config: impl Into<Option<ToolConfig>>) -> Self {
        self.tool = config.into();
        self
    }

    /// The tool `ralph`, or none.
    #[must_use]
    pub fn ralph(mut self, config: impl Into<Option<RalphConfig>>) -> Self {
        self.ralph = config.into();
        self
    }
}

impl Default for Workflows {
    fn default() -> Self {
        Self::new()
    }
}

impl Plugin for Workflows {
    fn name(&self) -> &str {
        "workflows"
    }

    fn requires(&self) -> Vec<&'static str> {
        vec![SUBAGENTS_SERVICE]
    }

    fn event_kinds(&self) -> Vec<&'static str> {
        EVENT_KINDS.to_vec()
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let plugin = self.clone();
        async move {
            let world = ctx.world()?;
            let providers = ctx.services.require::<ChildProviders>(SUBAGENTS_SERVICE)?;
            plugin.tool.as_ref().map_or(Ok(()), ToolConfig::check)?;
            plugin.ralph.as_ref().map_or(Ok(()), RalphConfig::check)?;
            let providers = ChildProviders::clone(&providers);
            let engine = WorkflowEngine::new(providers, world.ids.clone(), plugin.engine)?;
            world.validators.register(&ctx.scope, RecordsHold)?;
            ctx.services.provide(&ctx.scope, WORKFLOW_ENGINE_SERVICE, Arc::new(engine.clone()))?;
            let tools = [
                plugin.tool.map(|config| {
                    (workflow_tool(engine.clone(), config), WORKFLOW_SECTION, WORKFLOW_GUIDANCE)
                }),
                plugin.ralph.map(|config| {
                    (ralph_tool(engine.clone(), config), RALPH_SECTION, RALPH_GUIDANCE)
                }),
            ];
            for (tool, (name, order), guidance) in tools.into_iter().flatten() {
                ctx.tie(world.tools.registry().register(&world.scope, tool)?)?;
                let section = Section::text(name, order, guidance);
                ctx.tie(world.prompts.section(&world.scope, section)?)?;
            }
            Ok(())
        }
        .boxed()
    }
}
