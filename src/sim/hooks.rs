//! Hooks that meddle: they reject, rewrite, fail, panic and take their time.

use std::{sync::Arc, time::Duration};

use playhouse_messages::{
    chunk::Failure,
    machine::{Decision, Recovery},
    message::{Message, Source},
};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    hook::HookResult,
    scope::ScopeClosed,
    tool::{PostVerdict, PreVerdict},
    world::World,
};

use super::witness::Witness;
use crate::ContentBlock;

/// What a hook of the simulation fails with.
pub(super) const HOOK_FAILED: &str = "SIMULATED_HOOK";

/// What may happen in any hook: a wait, a failure or a panic.
async fn trouble(witness: &Witness, cancel: &CancelToken) -> HookResult<()> {
    let odds = witness.plan.odds.hooks;
    if witness.happens(odds) {
        witness.count("hook waits");
        let wait = Duration::from_millis(witness.below(80));
        let _ = cancel.race(tokio::time::sleep(wait)).await;
    }
    if witness.happens(odds / 8) {
        witness.count("hook ignores its cancel");
        tokio::time::sleep(Duration::from_secs(90)).await;
    }
    if witness.happens(odds / 6) {
        witness.count("hook fails");
        return Err(Failure::new(HOOK_FAILED, "simulated"));
    }
    if witness.happens(odds / 10) {
        witness.count("hook panics");
        panic!("simulated: a hook");
    }
    Ok(())
}

/// Registers all of them for the whole world.
pub(super) fn meddle(witness: &Arc<Witness>, world: &World) -> Result<(), ScopeClosed> {
    let (scope, hooks) = (&world.scope, &world.hooks);
    let odds = witness.plan.odds.hooks;
    // First, so that nobody hides an agent from it.
    let w = witness.clone();
    hooks.created.add(scope, move |created| {
        let w = w.clone();
        async move {
            let agent: Agent = created.agent;
            w.enter(&agent);
            tokio::spawn(w.clone().watch(agent.clone()));
            let turn = agent.session().view().last_turn;
            if w.happens(200) {
                // What comes early waits, whatever dies meanwhile.
                let message = notice(&w);
                let id = message.id.clone();
                if agent.followup(message).await.is_ok() {
                    w.promise(agent.id(), &id);
                }
                tokio::time::sleep(Duration::from_millis(w.below(30))).await;
            }
            if w.happens(w.plan.odds.hooks / 3) {
                trouble(&w, &created.cancel).await?;
            }
            if agent.session().view().last_turn != turn {
                w.fail(format!("{} ran a turn before its creation was over", agent.id()));
            }
            Ok(())
        }
    })?;
    let w = witness.clone();
    hooks.pre_step.add(scope, move |mut input, next| {
        let w = w.clone();
        async move {
            trouble(&w, &input.cancel).await?;
            if w.happens(odds / 5) {
                w.count("hook rejects a step");
                return Ok(Decision::Reject);
            }
            if w.happens(odds / 3) {
                w.count("hook rewrites a step");
                let added = Arc::new(notice(&w));
                input.messages = input.messages.iter().cloned().chain([added]).collect();
            }
            let mut decision = next.run(input).await?;
            if let Decision::Enter(entry) = &mut decision
                && w.happens(odds / 4)
            {
                entry.starts_series = true;
            }
            Ok(decision)
        }
    })?;
    let w = witness.clone();
    hooks.request.add(scope, move |mut input, next| {
        let w = w.clone();
        async move {
            trouble(&w, &input.cancel).await?;
            if w.happens(odds) {
                input.config.temperature = Some(0.5);
            }
            if w.happens(odds / 10) {
                w.count("hook changes the model");
                input.config.model = "other".to_owned();
            }
            next.run(input).await
        }
    })?;
    let w = witness.clone();
    hooks.request_error.add(scope, move |input, next| {
        let w = w.clone();
        async move {
            trouble(&w, &input.cancel).await?;
            if w.happens(w.plan.odds.retry) {
                w.count("retry");
                let wait = Duration::from_millis(w.below(50));
                let _ = input.cancel.race(tokio::time::sleep(wait)).await;
                return Ok(Recovery::Retry);
            }
            next.run(input).await
        }
    })?;
    let w = witness.clone();
    hooks.turn_stopping.add(scope, move |input| {
        let w = w.clone();
        async move {
            trouble(&w, &input.cancel).await?;
            if w.happens(odds / 4) {
                let message = notice(&w);
                let id = message.id.clone();
                if input.agent.steer(message).await.is_ok() {
                    w.count("hook steers");
                    w.promise(input.agent.id(), &id);
                }
            }
            Ok(())
        }
    })?;
    let w = witness.clone();
    hooks.disposed.add(scope, move |_| {
        if w.happens(odds / 10) {
            w.count("listener panics");
            panic!("simulated: a listener");
        }
    })?;
    let w = witness.clone();
    hooks.error.add(scope, move |fault| {
        w.note(format!(
            "{} reports {}: {}",
            fault.agent, fault.failure.code, fault.failure.message
        ));
    })?;
    meddle_with_tools(witness, world)
}

fn meddle_with_tools(witness: &Arc<Witness>, world: &World) -> Result<(), ScopeClosed> {
    let (scope, hooks) = (&world.scope, world.tools.hooks());
    let odds = witness.plan.odds.hooks;
    let w = witness.clone();
    hooks.pre.add(scope, move |call, next| {
        let w = w.clone();
        async move {
            trouble(&w, call.cancel()).await?;
            if w.happens(odds / 3) {
                w.count("hook denies a call");
                return Ok(PreVerdict::Deny { reason: "simulated".to_owned() });
            }
            if w.happens(odds / 3) {
                return Ok(PreVerdict::Ask { reason: None });
            }
            next.run(call).await
        }
    })?;
    let w = witness.clone();
    hooks.execute.add(scope, move |execution, next| {
        let w = w.clone();
        async move {
            trouble(&w, &execution.cancel).await?;
            if w.happens(odds / 5) {
                w.count("hook runs a call twice");
                let _ = next.clone().run(execution.clone()).await;
            }
            next.run(execution).await
        }
    })?;
    let w = witness.clone();
    hooks.post.add(scope, move |settled, next| {
        let w = w.clone();
        async move {
            trouble(&w, settled.call.cancel()).await?;
            let contexts = vec![Arc::new(notice(&w))];
            if w.happens(odds / 4) {
                w.count("hook blocks a result");
                let feedback = vec![ContentBlock::text("simulated")];
                return Ok(PostVerdict::Block { feedback, contexts });
            }
            if w.happens(odds / 4) {
                return Ok(PostVerdict::Accept { replacement: None, contexts });
            }
            next.run(settled).await
        }
    })?;
    Ok(())
}

fn notice(witness: &Witness) -> Message {
    use playhouse_plugin_api::clock::Ids;
    let content = vec![ContentBlock::text("By the way.")];
    Message::user_from(witness.ids.message(), content, Source::notice("simulation", "a notice"))
}
