//! A workflow as a script and one in Rust, over the same host; offline.
//!
//! `cargo run --example workflow`. The same script from the command line:
//! `playhouse workflow run docs/cookbook/review.js --args '{"files": ["a.rs", "b.rs"]}'`

use std::sync::Arc;

use playhouse::{
    AgentOptions, NewAgent,
    models::scripted::{Reply, Script, ScriptedAdapter, When},
    workflows::{
        AgentRequest, Cx, Halt, Meta, NoticeKind, WORKFLOW_ENGINE_SERVICE, WorkflowEngine,
        WorkflowRequest, Workflows,
    },
};
use serde_json::{Value, json};

const SCRIPT: &str = include_str!("../docs/cookbook/review.js");

/// Asks three experts for a typed verdict each, one at a time and all at once.
async fn vote(cx: Cx) -> Result<Value, Halt> {
    let schema = json!({
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
    });
    cx.phase("Vote").await?;
    let ballots = ["cost", "speed", "risk"].map(|angle| {
        let request = AgentRequest::new(format!("Judge the plan by its {angle}."));
        cx.agent(request.label(angle).schema(schema.clone()))
    });
    // One that fails is null, and no vote.
    let votes = cx.parallel(ballots).await?;
    let yes = votes.iter().filter(|vote| vote["yes"] == json!(true)).count();
    Ok(json!({"yes": yes, "votes": votes.len()}))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The plugin is not among the defaults. It brings the engine, and the tools `workflow` and
    // `ralph` for models.
    let harness = playhouse::base().plugin(Workflows::new()).start().await?;
    let script = Script::new()
        .rule(
            When::default().has_tool("structured_output"),
            Reply::call("structured_output", json!({"yes": true})),
        )
        .reply(Reply::text("I have seen: {{prompt}}"));
    harness.world().models.register(["scripted"], Arc::new(ScriptedAdapter::new(script)))?;
    let options = AgentOptions::new().model("scripted", "any");
    let parent = harness.create(NewAgent::new(options)).await?;
    let engine = harness.world().services.require::<WorkflowEngine>(WORKFLOW_ENGINE_SERVICE)?;

    let meta = Meta::new("review", "Reviews each file of a list, and summarises");
    let request = WorkflowRequest::new(parent.agent(), meta)
        .args(json!({"files": ["lib.rs", "main.rs"]}))
        .observed_by(|notice| {
            if let NoticeKind::Phase { title } = notice {
                println!("== {title}");
            }
        });
    let run = engine.start(request, SCRIPT).await?;
    println!("{:#}", run.result().await.value.unwrap_or_default()["reviews"]);
    run.dispose().await?;

    let request = WorkflowRequest::new(parent.agent(), Meta::new("vote", "Three experts vote"));
    let run = engine.start_native(request, vote)?;
    println!("{}", run.result().await.value.unwrap_or_default());
    run.dispose().await?;

    println!("left: {:?}", engine.live());
    harness.shutdown().await?;
    Ok(())
}
