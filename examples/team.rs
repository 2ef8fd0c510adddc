//! A parent with three children at work, steered and then cancelled as one tree.
//!
//! `cargo run --example team`

use std::sync::Arc;

use playhouse::{
    Agent, AgentOptions, CancelCause, NewAgent, Status,
    models::scripted::{Reply, Script, ScriptedAdapter, When},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let harness = playhouse::minimal().start().await?;

    // The first rule that fits a request answers it. The gate never opens: who works, works on.
    let script = Script::new()
        .rule(When::default().user_contains("quick"), Reply::text("Done: {{prompt}}."))
        .reply(Reply::text("never seen").at_gate("closed"));
    let _ =
        harness.world().models.register(["scripted"], Arc::new(ScriptedAdapter::new(script)))?;
    let options = || AgentOptions::new().model("scripted", "any");

    let parent = harness.create(NewAgent::new(options()).id("lead")).await?;
    let mut children = Vec::new();
    for name in ["cost", "speed", "risk"] {
        // Delegated by the parent, and owned by it too: its disposal disposes the children.
        let new = NewAgent::new(options())
            .id(name)
            .delegated_by(&parent)
            .owned_by(parent.scope().clone());
        children.push(harness.create(new).await?);
    }

    // Children run at the same time, each with a result of its own.
    let answers =
        children.iter().map(|child| child.prompt(format!("a quick look at {}", child.id())));
    for answer in futures::future::join_all(answers).await {
        println!("{}", answer?.text);
    }

    // Work that would not end by itself.
    parent.followup("supervise").await?;
    for child in &children {
        child.followup("dig deep").await?;
    }
    println!("running: {}", running(&harness.agents()));

    let reached = harness.cancel_tree(&parent, CancelCause::User);
    for agent in harness.agents() {
        agent.when_idle().await?;
    }
    println!("cancelled {reached} agents; running: {}", running(&harness.agents()));

    parent.dispose().await?;
    println!("left after the parent's disposal: {}", harness.agents().len());
    harness.shutdown().await?;
    Ok(())
}

fn running(agents: &[Agent]) -> usize {
    agents.iter().filter(|agent| agent.status() == Status::Running).count()
}
