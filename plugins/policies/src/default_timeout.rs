//! A time budget for tools that have none of their own.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{chunk::Failure, event::CancelCause};
use playhouse_plugin_api::{
    cancel::CancelToken,
    hook::{HookResult, Next},
    patterns::Patterns,
    plugin::{Plugin, PluginContext},
    tool::{ToolCallContext, ToolError, ToolExecution, ToolOutcome, ToolRegistry},
};

/// A plugin that gives a time budget to tools without [`Tool::timeout`]. It is the same sort of
/// budget: from the start of the body on, and cooperative. When it is over, the body's token fires,
/// the body is awaited, and whatever it returns, the result is `TOOL_TIMEOUT`. A cancel of the
/// caller that comes first is a cancel.
///
/// [`Tool::timeout`]: playhouse_plugin_api::tool::Tool::timeout
///
/// ```
/// use std::time::Duration;
/// use playhouse_policies::DefaultTimeout;
///
/// // Delegation takes as long as the child does.
/// let plugin = DefaultTimeout::new(Duration::from_secs(120)).exempt(["subagent*"]);
/// # drop(plugin);
/// ```
#[derive(Debug, Clone)]
pub struct DefaultTimeout {
    timeout: Duration,
    exempt: Patterns,
}

impl DefaultTimeout {
    /// This budget, which must not be zero.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, exempt: Patterns::default() }
    }

    /// Tools that keep running without a budget.
    #[must_use]
    pub fn exempt(mut self, tools: impl Into<Patterns>) -> Self {
        self.exempt = tools.into();
        self
    }

    fn applies(&self, registry: &ToolRegistry, call: &ToolCallContext) -> bool {
        let tool = registry.lookup(call.scope(), call.name());
        tool.is_some_and(|tool| tool.tool().timeout().is_none()) && !self.exempt.fit(call.name())
    }
}

impl Plugin for DefaultTimeout {
    fn name(&self) -> &str {
        "default-tool-timeout"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let policy = self.clone();
        async move {
            if policy.timeout.is_zero() {
                let text =
                    "default-tool-timeout: the budget must not be zero; leave the plugin out";
                return Err(Failure::new("INVALID_CONFIG", text));
            }
            let world = ctx.world()?;
            let registry = world.tools.registry().clone();
            let execute = move |execution: ToolExecution,
                                next: Next<ToolExecution, ToolOutcome>| {
                if policy.applies(&registry, &execution.call) {
                    within(policy.timeout, execution, next).boxed()
                } else {
                    next.run(execution)
                }
            };
            ctx.tie(world.tools.hooks().execute.add(&world.scope, execute)?)?;
            Ok(())
        }
        .boxed()
    }
}

async fn within(
    timeout: Duration,
    execution: ToolExecution,
    next: Next<ToolExecution, ToolOutcome>,
) -> HookResult<ToolOutcome> {
    let ToolExecution { call, cancel: outer } = execution;
    let own: CancelToken = outer.child();
    let mut running = next.run(ToolExecution { call, cancel: own.clone() });
    tokio::select! {
        biased;
        () = outer.cancelled() => return running.await,
        outcome = &mut running => return outcome,
        () = tokio::time::sleep(timeout) => {}
    }
    own.cancel(CancelCause::Hook { reason: "the tool's time budget ran out".to_owned() });
    let late = running.await?;
    let timed_out = ToolOutcome::failure(ToolError::timeout(timeout.as_millis()));
    Ok(late.contexts().iter().cloned().fold(timed_out, ToolOutcome::with_context))
}

#[cfg(test)]
mod tests;
