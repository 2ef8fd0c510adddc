//! Tools that behave as their arguments say.

use std::{sync::Arc, time::Duration};

use playhouse_messages::{
    config::ModelChoice,
    event::{CancelCause, EventBody, NewEvent},
    message::{Message, Source},
};
use playhouse_plugin_api::{
    tool::{Tool, ToolError, ToolFilter, ToolRun, tool_fn},
    world::World,
};
use playhouse_subagents::{ChildRequest, spawn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{plan::ROUTES, witness::Witness};
use crate::testing::Victim;

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// What the call does.
    how: String,
    /// How long it takes.
    ms: u64,
}

/// One tool whose calls may overlap, and one whose calls may not.
pub(super) fn tools(witness: &Arc<Witness>, world: &Arc<World>) -> [Arc<dyn Tool>; 2] {
    let body = |witness: &Arc<Witness>| {
        // The world's registry holds the tool: it must not hold the world.
        let (witness, world) = (witness.clone(), Arc::downgrade(world));
        move |args: Args, run: ToolRun| {
            let (witness, world) = (witness.clone(), world.clone());
            async move {
                let world = world.upgrade().ok_or("the world is gone")?;
                behave(&witness, &world, args, run).await
            }
        }
    };
    [
        Arc::new(tool_fn("look", "Looks.", body(witness)).parallel()),
        Arc::new(tool_fn("act", "Acts.", body(witness)).timeout(Duration::from_secs(3))),
    ]
}

async fn behave(
    witness: &Witness,
    world: &Arc<World>,
    args: Args,
    run: ToolRun,
) -> Result<String, ToolError> {
    let Some(agent) = run.agent().cloned() else { return Err("nobody called".into()) };
    let wait = tokio::time::sleep(Duration::from_millis(args.ms));
    if args.how == "ignore" {
        witness.count("tool ignores its cancel");
        wait.await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        return Ok("at last".to_owned());
    }
    if run.cancel().race(wait).await.is_none() {
        return Err(ToolError::aborted());
    }
    let message = |kind: &str| {
        let content = vec![crate::ContentBlock::text(format!("a {kind} of {}", run.call_id()))];
        Message::user_from(run.new_message_id(), content, Source::notice("simulation", "a notice"))
    };
    match args.how.as_str() {
        "fail" => {
            witness.count("tool fails");
            return Err("simulated".into());
        }
        "panic" => {
            witness.count("tool panics");
            panic!("simulated: a tool");
        }
        "steer" | "inject" => {
            let message = message(&args.how);
            let id = message.id.clone();
            // A call that is waited for must not wait for its own turn's end: being accepted is all.
            let sent = if args.how == "steer" {
                agent.steer(message).await
            } else {
                agent.inject(message).await
            };
            if sent.is_ok() {
                witness.promise(agent.id(), &id);
            }
            sent.map_err(|fault| ToolError::new(fault.to_string()))?;
        }
        "append" => {
            let event = NewEvent::custom("simulation/note", json!({"call": run.call_id()}));
            agent.session().append(event.ignorable()).await.map_err(|fault| fault.to_string())?;
        }
        "note" => run.defer_context(message("context")),
        "conclude" => run.conclude_turn(),
        "cancel" => agent.cancel(CancelCause::Hook { reason: "a tool".to_owned() }),
        "select" => {
            let provider = ROUTES[usize::from(args.ms.is_multiple_of(2))].to_owned();
            let choice = ModelChoice { provider, model: "m".to_owned(), reasoning_effort: None };
            let event = NewEvent::log_only(EventBody::ModelSelection(choice));
            agent.session().append(event).await.map_err(|fault| fault.to_string())?;
        }
        "restrict" => {
            let registry = world.tools.registry();
            let filter = ToolFilter::deny(["look"]);
            let restricted = registry.restrict(agent.scope(), filter);
            restricted.map_err(|fault| ToolError::new(fault.to_string()))?;
        }
        "kill" => kill(witness, world, &agent),
        "delegate" => return delegate(world, &agent, &run).await,
        _ => {}
    }
    Ok("done".to_owned())
}

/// Kills what the call's own agent depends on: the batch, or one of those that wait for it.
fn kill(witness: &Witness, world: &World, agent: &crate::Agent) {
    let (victim, name) = match witness.below(5) {
        0 => (Victim::Agent, "agent killed by its tool"),
        1 => (Victim::Session, "session killed by a tool"),
        2 => (Victim::Writer, "writer killed by a tool"),
        _ => (Victim::ToolExecutor, "tool executor killed by its tool"),
    };
    if victim.strike(world, agent) {
        witness.count(name);
        witness.note(format!("{name}: {}", agent.id()));
    }
}

/// A child from code. Whatever becomes of it, it is disposed.
async fn delegate(
    world: &Arc<World>,
    agent: &crate::Agent,
    run: &ToolRun,
) -> Result<String, ToolError> {
    let mut request = ChildRequest::new(agent, "Look around.");
    request.cancel = run.cancel().child();
    let child = spawn(world, request).await.map_err(|fault| ToolError::new(fault.to_string()))?;
    let result = run.cancel().race(child.result()).await;
    child.dispose().await?;
    match result {
        Some(result) => Ok(result?.text()),
        None => Err(ToolError::aborted()),
    }
}
