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
/// agents. It has no store and no models yet.
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
    #[cfg(feature = "policies")]
    let builder = builder.plugin(playhouse_policies::ModelNotice);
    #[cfg(feature = "context")]
    let builder = builder.plugin(playhouse_context::ImageOffload::new());
    #[cfg(feature = "subagents")]
    let builder = with_subagents(builder, playhouse_subagents::Subagents::new());
    #[cfg(feature = "policies")]
    let builder = with_retry(builder, playhouse_policies::Retry::new());
    #[cfg(feature = "policies")]
    let builder = builder.plugin(playhouse_policies::RepeatReminder::default());
    builder
}

/// A builder with this plugin, and with the event kinds that sessions of children hold.
///
/// ```
/// use playhouse::subagents::Subagents;
///
/// let builder = playhouse::with_subagents(playhouse::minimal(), Subagents::new().max_children(4));
/// # drop(builder);
/// ```
#[cfg(feature = "subagents")]
pub fn with_subagents(
    builder: HarnessBuilder,
    plugin: playhouse_subagents::Subagents,
) -> HarnessBuilder {
    let kinds = playhouse_subagents::EVENT_KINDS.into_iter();
    kinds.fold(builder.plugin(plugin), |builder, kind| builder.event_kind(kind))
}

/// A builder with this plugin, and with the event kinds of all policies.
///
/// ```
/// use playhouse::policies::Retry;
///
/// // As in the default harness, but with delays that are not spread.
/// let builder = playhouse::with_retry(playhouse::minimal(), Retry::new().random(|| 0.5));
/// # drop(builder);
/// ```
#[cfg(feature = "policies")]
pub fn with_retry(builder: HarnessBuilder, plugin: playhouse_policies::Retry) -> HarnessBuilder {
    let kinds = playhouse_policies::EVENT_KINDS.into_iter();
    kinds.fold(builder.plugin(plugin), |builder, kind| builder.event_kind(kind))
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
