//! A parent with children at work: three that answer, then work that is cancelled as one tree.
//!
//! `cargo run --example team`

use std::sync::Arc;

use playhouse::{
    Agent, AgentOptions, CancelCause, NewAgent, Status,
    models::scripted::{Reply, Script, ScriptedAdapter, When},
    subagents::{ChildRequest, spawn},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let harness = playhouse::base().start().await?;

    // The first rule that fits a request answers it. The gate never opens: who waits there, waits.
    let script = Script::new()
        .rule(When::default().user_contains("quick"), Reply::text("Done: {{prompt}}."))
        .reply(Reply::text("never seen").at_gate("closed"));
    let model = Arc::new(ScriptedAdapter::new(script));
    harness.world().models.register(["scripted"], model)?;
    let options = AgentOptions::new().model("scripted", "any");
    let parent = harness.create(NewAgent::new(options)).await?;

    // A child is an agent with a session of its own; its parent's disposal disposes it. A model
    // delegates by the tool `subagent`, code by `spawn`.
    let mut runs = Vec::new();
    for angle in ["cost", "speed", "risk"] {
        let request = ChildRequest::new(&parent, format!("a quick look at {angle}"));
        runs.push(spawn(harness.world(), request).await?);
    }
    for run in &runs {
        println!("{}", run.result().await?.text());
        run.dispose().await?;
    }

    // Work that would not end by itself.
    parent.followup("supervise").await?;
    for angle in ["cost", "speed", "risk"] {
        spawn(harness.world(), ChildRequest::new(&parent, format!("dig into {angle}"))).await?;
    }
    println!("children: {}", harness.children(parent.id()).len());
    println!("running: {}", running(&harness.agents()));

    let reached = harness.cancel_tree(&parent, CancelCause::User).await.reached;
    println!("cancelled {reached}; running: {}", running(&harness.agents()));

    parent.dispose().await?;
    println!("left after the parent's disposal: {}", harness.agents().len());
    harness.shutdown().await?;
    Ok(())
}

fn running(agents: &[Agent]) -> usize {
    agents.iter().filter(|agent| agent.status() == Status::Running).count()
}
