//! Budgets as a plugin: on the hook points, before anything is spent.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    machine::{Decision, Status},
};
use playhouse_plugin_api::{
    agent::Agent,
    budget::{Account, BUDGETS_SERVICE, Prices, Refused, Resource},
    hook::{HookResult, Next},
    llm::{ModelCall, ModelStream},
    plugin::{Plugin, PluginContext},
    points::{PreStep, StatusChange},
    tool::{PreVerdict, ToolCallContext},
    world::World,
};

use crate::metered;

/// The plugin that enforces budgets. Agents with a budget are refused where it is not.
///
/// Everything is checked before it is spent: turns and steps before a step opens, tool calls at the
/// policy stage, tokens, cost and time before a request is sent, children and depth before an agent is
/// made. What has been spent lives with the agents, so a plugin that is set up anew goes on with it.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    prices: Arc<Prices>,
}

impl Budgets {
    /// Without prices: cost budgets are refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// With the prices by which cost budgets count.
    #[must_use]
    pub fn prices(mut self, prices: Prices) -> Self {
        self.prices = Arc::new(prices);
        self
    }
}

impl Plugin for Budgets {
    fn name(&self) -> &str {
        "budgets"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let prices = self.prices.clone();
        async move {
            let world = ctx.world()?;
            let (scope, hooks) = (&world.scope, &world.hooks);
            // Outside the others: what they decide is spent only once it is allowed.
            ctx.tie(hooks.pre_step.add_first(scope, step)?)?;
            ctx.tie(world.tools.hooks().pre.add_first(scope, call)?)?;
            ctx.tie(hooks.status.add(scope, status)?)?;
            let weak = Arc::downgrade(&world);
            ctx.tie(
                world
                    .models
                    .on_stream()
                    .add_first(scope, move |call, next| request(weak.upgrade(), call, next))?,
            )?;
            ctx.services.provide(&ctx.scope, BUDGETS_SERVICE, prices)?;
            Ok(())
        }
        .boxed()
    }
}

async fn step(step: PreStep, next: Next<PreStep, Decision>) -> HookResult<Decision> {
    let Some(account) = step.agent.account().cloned() else { return next.run(step).await };
    let (agent, at, owed) = (step.agent.clone(), step.at, step.owed);
    if let Err(refused) = account.check() {
        return Ok(stop(&agent, &refused));
    }
    let decision = next.run(step).await?;
    let opens = match &decision {
        Decision::Enter(entry) => owed || !entry.messages.is_empty(),
        Decision::Reject => false,
    };
    if !opens {
        return Ok(decision);
    }
    let turn = if at.step == 1 { account.spend(Resource::Turns) } else { Ok(()) };
    match turn.and_then(|()| account.spend(Resource::Steps)) {
        Ok(()) => Ok(decision),
        Err(refused) => Ok(stop(&agent, &refused)),
    }
}

/// The cancel that this makes beats what the hook answers.
fn stop(agent: &Agent, refused: &Refused) -> Decision {
    refused.end_turns(agent);
    Decision::Reject
}

async fn call(
    call: ToolCallContext,
    next: Next<ToolCallContext, PreVerdict>,
) -> HookResult<PreVerdict> {
    if let Some(agent) = call.agent()
        && let Some(account) = agent.account()
        && let Err(refused) = account.spend(Resource::ToolCalls)
    {
        refused.end_turns(agent);
        return Ok(PreVerdict::Deny { reason: refused.to_string() });
    }
    next.run(call).await
}

async fn request(
    world: Option<Arc<World>>,
    call: ModelCall,
    next: Next<ModelCall, ModelStream>,
) -> HookResult<ModelStream> {
    let agent = match (&call, world) {
        (ModelCall::Step(step), _) => Some(step.agent().clone()),
        (ModelCall::Direct(_), Some(world)) => {
            call.session_id().and_then(|id| world.agents.get(id))
        }
        (ModelCall::Direct(_), None) => None,
    };
    let account = agent.as_ref().and_then(Agent::account).cloned();
    match (agent, account) {
        (Some(agent), Some(account)) => metered::request(&agent, account, call, next).await,
        _ => next.run(call).await,
    }
}

fn status(change: &StatusChange) {
    let Some(account) = change.agent.account() else { return };
    match change.status {
        Status::Running => {
            account.run();
            if account.time_left().is_some() {
                change.agent.scope().spawn(watch_time(change.agent.clone(), account.clone()));
            }
        }
        Status::Idle => {
            account.rest();
            tell_owners(&change.agent, account);
        }
    }
}

/// Ends the turn once the agent's time is over, unless the agent rests before.
async fn watch_time(agent: Agent, account: Arc<Account>) {
    let mut status = agent.watch_status();
    while let Some(left) = account.time_left() {
        tokio::select! {
            biased;
            _ = status.wait_for(|status| *status == Status::Idle) => return,
            () = tokio::time::sleep(left) => {}
        }
        if let Err(refused) = account.check() {
            return refused.end_turns(&agent);
        }
    }
}

/// Writes what an agent has spent into the logs of those above whose budgets count it.
fn tell_owners(agent: &Agent, account: &Account) {
    let Some((charged, owners)) = account.take_untold(agent.id()) else { return };
    for owner in owners {
        let (event, session) = (charged.event(), owner.session().clone());
        owner.scope().spawn(async move {
            if let Err(error) = session.append(event).await {
                tracing::warn!(session = %session.id(), %error, "a charge is not in the log");
            }
        });
    }
}
