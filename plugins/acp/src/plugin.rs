//! Agents of other programs as a plugin.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::plugin::{Plugin, PluginContext};
use playhouse_subagents::{ChildProviders, DepthLimit, SUBAGENTS_SERVICE, ToolConfig, mount_tool};

use crate::{AcpConfig, AcpProvider};

/// The plugin: providers of other programs' agents, beside those that the plugin `subagents` has, for
/// which it waits; and for each that is given one, a tool that delegates to it.
///
/// ```
/// use playhouse_acp::{AcpAgents, AcpConfig};
/// use playhouse_subagents::Subagents;
/// use playhouse_supervisor::harness::Harness;
///
/// let agents = AcpAgents::new()
///     .tool("ask_other", AcpConfig::new("other-agent").name("other"))
///     // For code alone: `ChildProviders::start("quiet", ...)`.
///     .agent(AcpConfig::new("quiet-agent").name("quiet"));
/// let builder = Harness::builder().plugin(Subagents::new()).plugin(agents);
/// # drop(builder);
/// ```
#[derive(Debug, Clone, Default)]
pub struct AcpAgents(Vec<(AcpConfig, Option<String>)>);

impl AcpAgents {
    /// No agents yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this one.
    #[must_use]
    pub fn agent(mut self, config: AcpConfig) -> Self {
        self.0.push((config, None));
        self
    }

    /// With this one, to which models delegate by the tool `name`.
    #[must_use]
    pub fn tool(mut self, name: impl Into<String>, config: AcpConfig) -> Self {
        self.0.push((config, Some(name.into())));
        self
    }
}

impl Plugin for AcpAgents {
    fn name(&self) -> &str {
        "acp"
    }

    fn requires(&self) -> Vec<&'static str> {
        vec![SUBAGENTS_SERVICE]
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let agents = self.0.clone();
        async move {
            let ids = ctx.world()?.ids.clone();
            let providers = ctx.services.require::<ChildProviders>(SUBAGENTS_SERVICE)?;
            for (config, tool) in agents {
                let provider = AcpProvider::new(&config, ids.clone())?;
                providers.register(&ctx.scope, Arc::new(provider))?;
                let Some(name) = tool else { continue };
                let mut tool = ToolConfig::new(config.name);
                tool.name = name;
                tool.max_depth = DepthLimit::ProviderManaged;
                mount_tool(&ctx, &providers, tool)?;
            }
            Ok(())
        }
        .boxed()
    }
}
