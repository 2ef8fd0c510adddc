//! Turns as a user of the library sees them.

use std::sync::Arc;

use playhouse::{
    AgentHandle, AgentOptions, Harness, NewAgent, TurnEndReason,
    models::scripted::{Reply, Script, ScriptedAdapter},
};

async fn stage(script: Script) -> (Harness, Arc<ScriptedAdapter>, AgentHandle) {
    let harness = playhouse::minimal().start().await.unwrap();
    let adapter = Arc::new(ScriptedAdapter::new(script));
    harness.world().models.register(["scripted"], adapter.clone()).unwrap();
    let options = AgentOptions::new().model("scripted", "any");
    let agent = harness.create(NewAgent::new(options)).await.unwrap();
    (harness, adapter, agent)
}

fn kinds(agent: &AgentHandle) -> Vec<String> {
    agent.session().log().iter().map(|event| event.body.kind().to_owned()).collect()
}

#[tokio::test]
async fn a_prompt_is_answered_and_the_log_tells_the_turn() {
    let (harness, adapter, agent) = stage(Script::sequence([Reply::text("Hello.")])).await;
    let outcome = agent.prompt("Hi").await.unwrap();
    assert_eq!((outcome.text.as_str(), outcome.reason), ("Hello.", TurnEndReason::Completed));
    agent.when_idle().await.unwrap();
    assert_eq!(
        kinds(&agent),
        [
            "agent/inbox/spliced",
            "turn/start",
            "agent/inbox/spliced",
            "step/start",
            "system/message",
            "user/message",
            "request/header",
            "request/context",
            "assistant/message",
            "step/end",
            "turn/end",
        ]
    );
    adapter.assert_consumed();
    harness.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_works_as_soon_as_it_is_made() {
    let script = Script::new().reply(Reply::text("Hello."));
    let (harness, _, first) = stage(script).await;
    first.prompt("Hi").await.unwrap();
    // Its actors start beside its maker, sooner or later.
    for _ in 0..100 {
        let options = AgentOptions::new().model("scripted", "any");
        let agent = harness.create(NewAgent::new(options)).await.unwrap();
        assert_eq!(agent.prompt("Hi").await.unwrap().text, "Hello.");
        agent.dispose().await.unwrap();
    }
    harness.shutdown().await.unwrap();
}
