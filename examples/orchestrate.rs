//! Children under one program: all, the first, one for each input, through stages, once more.
//!
//! `cargo run --example orchestrate`

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use playhouse::{
    AgentOptions, CancelCause, NewAgent,
    models::scripted::{Reply, Script, ScriptedAdapter, When},
    subagents::{ChildGroup, ChildRequest, ChildRetries},
};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let harness = playhouse::base().start().await?;
    let when = |text: &str| When::default().user_contains(text);
    let vote = Reply::call("structured_output", json!({"score": 7}));
    let script = Script::new()
        .rule(when("the slow way"), Reply::text("never seen").at_gate("closed"))
        .rule(when("try 1"), Reply::error("BAD_REQUEST", "the model is unwell"))
        .rule(when("score"), vote)
        .reply(Reply::text("[{{prompt}}]"));
    harness.world().models.register(["scripted"], Arc::new(ScriptedAdapter::new(script)))?;
    let options = AgentOptions::new().model("scripted", "any");
    let parent = harness.create(NewAgent::new(options)).await?;
    let ask = |prompt: &str| ChildRequest::new(&parent, prompt);

    // One cancel for all; a child is disposed as soon as it has answered.
    let group = ChildGroup::new(harness.world());

    for angle in group.join_all(["cost", "speed", "risk"].map(ask)).await {
        println!("joined: {}", angle?.text());
    }

    // The loser is gone when the race returns.
    let first = group.race(["the slow way", "the quick way"].map(ask)).await;
    println!("first: {}", first.map_err(|mut failed| failed.remove(0))?.text());

    // Ten inputs, never more than three children.
    let notes = group.map(1..=10, 3, |page| ask(&format!("page {page}"))).await;
    println!("mapped: {} pages", notes.iter().filter(|note| note.is_ok()).count());

    // The second stage of one item does not wait for the first stage of another.
    let reviewed = group
        .pipeline(|topic: &&str| ask(&format!("draft on {topic}")))
        .then(|_, draft| ask(&format!("review of {}", draft.text())))
        .run(["tea", "coffee"], 2)
        .await;
    for review in reviewed {
        println!("reviewed: {}", review?.text());
    }

    let tries = AtomicU32::new(0);
    let again = || ask(&format!("try {}", tries.fetch_add(1, Ordering::Relaxed) + 1));
    let retried = group.retry(ChildRetries::default(), again).await?;
    println!("retried: {}", retried.text());

    // A result that a program can read: the child answers by a tool with these parameters.
    let score = json!({"type": "object", "properties": {"score": {"type": "integer"}}});
    let judged = group.run(ask("score the drafts").output_schema(score)).await?;
    println!("judged: {}", judged.structured.unwrap_or_default());

    // Whoever holds the group, or a clone of it, can end all that it does.
    group.cancel(CancelCause::User);
    let late = group.run(ask("too late")).await;
    println!("after the cancel: {}", late.expect_err("it is not started").code());

    println!("children left: {}", harness.children(parent.id()).len());
    harness.shutdown().await?;
    Ok(())
}
