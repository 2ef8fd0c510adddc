//! A session in the journal store: written by one harness, resumed by the next.
//!
//! `cargo run --example durable`

use std::sync::Arc;

use playhouse::{
    AgentOptions, Harness, NewAgent, SessionId,
    models::scripted::{Reply, Script, ScriptedAdapter},
    stores::{JournalStore, JournalStoreConfig},
};

/// A harness over the store in this directory, with a model that will answer `answer`.
async fn open(dir: &std::path::Path, answer: &str) -> Result<Harness, Box<dyn std::error::Error>> {
    let store = JournalStore::open(dir, JournalStoreConfig::default()).await?;
    let harness = playhouse::base().store(store).start().await?;
    let script = Script::sequence([Reply::text(answer)]);
    harness.world().models.register(["scripted"], Arc::new(ScriptedAdapter::new(script)))?;
    Ok(harness)
}

fn options() -> AgentOptions {
    AgentOptions::new().model("scripted", "any")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;

    let harness = open(dir.path(), "Noted: the launch is on Tuesday.").await?;
    let agent = harness.create(NewAgent::new(options())).await?;
    println!("{}", agent.prompt("The launch is on Tuesday.").await?.text);
    // Idle means durable: the end of the turn was synced before this returns.
    agent.when_idle().await?;
    let id: SessionId = agent.id().clone();
    let marks = *agent.session().marks().borrow();
    println!("events: {}, durable: {}", agent.session().log().len(), marks.durable);
    harness.shutdown().await?;

    // Another process would do the same. A turn that a crash had left open would be closed first.
    let harness = open(dir.path(), "On Tuesday.").await?;
    let agent = harness.resume(id, NewAgent::new(options())).await?;
    println!("{}", agent.prompt("When is the launch?").await?.text);
    println!("events: {}", agent.session().log().len());
    harness.shutdown().await?;
    Ok(())
}
