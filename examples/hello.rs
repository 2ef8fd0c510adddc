//! Embeds a harness, makes one agent and asks it one question.
//!
//! `cargo run --example hello`

use std::sync::Arc;

use playhouse::{
    AgentOptions, NewAgent,
    models::scripted::{Reply, Script, ScriptedAdapter},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let harness = playhouse::base().start().await?;

    // A model that plays a script: no key, no network. `playhouse::models::openai_compatible` speaks
    // to a real one, and is registered the same way.
    let script = Script::sequence([Reply::text("Hello. What shall we build?")]);
    let model = Arc::new(ScriptedAdapter::new(script));
    // The guard that `register` returns only serves to swap or remove the adapter later.
    harness.world().models.register(["scripted"], model)?;

    let options = AgentOptions::new().model("scripted", "any");
    let agent = harness.create(NewAgent::new(options)).await?;

    let outcome = agent.prompt("Hi there").await?;
    println!("{}", outcome.text);
    println!("The turn ended: {}.", outcome.reason.kind());

    // Everything that happened is in the session's log.
    for event in agent.session().log().iter() {
        println!("{:>3} {}", event.seq, event.body.kind());
    }

    harness.shutdown().await?;
    Ok(())
}
