//! The harness that most programs start from.

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    plugin::{Plugin, PluginContext},
    prompt::identity_section,
};

use crate::{HarnessBuilder, minimal};

/// A harness with the defaults: the identity section of the system prompt; with the feature
/// `policies`, retry of failed requests, a notice when the model has changed, and a reminder of
/// repeated tool calls; with `context`, a budget of images; with `subagents`, delegation to child
/// agents; with `sessions`, a title for each session from its first prompt. It has no store and no models yet.
///
/// ```
/// use std::sync::Arc;
/// use playhouse::{AgentOptions, NewAgent, models::scripted::{Script, ScriptedAdapter}};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let harness = playhouse::base().start().await?;
/// let model = Arc::new(ScriptedAdapter::new(Script::team()));
/// harness.world().models.register(["scripted"], model)?;
/// let options = AgentOptions::new().model("scripted", "team");
/// let agent = harness.create(NewAgent::new(options)).await?;
/// let report = agent.prompt("Which cache should we use?").await?.text;
/// assert!(report.starts_with("Report on \"Which cache should we use?\""));
/// harness.shutdown().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn base() -> HarnessBuilder {
    let builder = minimal().plugin(Identity);
    #[cfg(feature = "context")]
    let builder = builder.plugin(playhouse_context::ImageOffload::new());
    #[cfg(feature = "subagents")]
    let builder = builder.plugin(playhouse_subagents::Subagents::new());
    #[cfg(feature = "sessions")]
    let builder = builder.plugin(playhouse_sessions::Titles::new());
    #[cfg(feature = "policies")]
    let builder = builder
        .plugin(playhouse_policies::ModelNotice)
        .plugin(playhouse_policies::Retry::new())
        .plugin(playhouse_policies::RepeatReminder::default());
    builder
}

/// Says in the system prompt what the harness is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Identity;

impl Plugin for Identity {
    fn name(&self) -> &str {
        "identity"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        async move {
            let world = ctx.world()?;
            ctx.tie(world.prompts.section(&world.scope, identity_section())?)?;
            Ok(())
        }
        .boxed()
    }
}
