//! What survives the death of each actor: one test a row of the table in `docs/architecture.md`.
//!
//! Each victim is killed by signal while it works: no `post_stop`, its state and mailbox dropped.

use std::sync::Arc;

use playhouse::{
    Agent, AgentHandle, AgentOptions, Event, EventBody, Harness, HarnessState, NewAgent, SessionId,
    TurnEndReason,
    messages::{event::InboxTarget, frame::Frame},
    models::scripted::{Reply, Script, ScriptedAdapter},
    plugin_api::{
        store::{StoreReader, StoredSession},
        tool::tool_fn,
    },
};
use playhouse_stores::MemoryStore;
use ractor::{ActorCell, Message};
use tokio::sync::Notify;

struct Rig {
    harness: Harness,
    model: Arc<ScriptedAdapter>,
    store: Arc<MemoryStore>,
    agent: AgentHandle,
}

async fn rig(replies: impl IntoIterator<Item = Reply>) -> Rig {
    let store = Arc::new(MemoryStore::new());
    let harness = Harness::builder().shared_store(store.clone()).start().await.unwrap();
    let model = Arc::new(ScriptedAdapter::new(Script::sequence(replies)));
    let _ = harness.world().models.register(["scripted"], model.clone()).unwrap();
    let options = AgentOptions::new().model("scripted", "any");
    let agent = harness.create(NewAgent::new(options)).await.unwrap();
    Rig { harness, model, store, agent }
}

fn kill<M: Message>(slot: &playhouse::plugin_api::slot::Slot<M>) -> ActorCell {
    let victim = slot.live().expect("the victim lives").get_cell();
    victim.kill();
    victim
}

impl Rig {
    /// Sends a prompt, and waits until the model's answer has begun to show.
    async fn streaming(&self, prompt: &str) -> String {
        let mut frames = self.agent.session().frames();
        self.agent.followup(prompt).await.unwrap();
        loop {
            match frames.next().await.unwrap() {
                Frame::Chunks { chunks, .. } => {
                    let text: String =
                        chunks.iter().filter_map(|timed| text_of(&timed.chunk)).collect();
                    if !text.is_empty() {
                        return text;
                    }
                }
                Frame::Start { .. } | Frame::End { .. } => {}
            }
        }
    }

    async fn stored(&self) -> StoredSession {
        self.store.read(self.agent.id()).await.unwrap()
    }

    fn events(&self) -> Vec<Arc<Event>> {
        self.agent.session().log().iter().cloned().collect()
    }

    fn turn_ends(&self) -> Vec<TurnEndReason> {
        let ends = self.events().into_iter().filter_map(|event| match &event.body {
            EventBody::TurnEnd(end) => Some(end.reason.clone()),
            _ => None,
        });
        ends.collect()
    }

    /// The agent still works, and its log is whole.
    async fn works(&self, expected: &str) {
        let outcome = self.agent.prompt("still there?").await.unwrap();
        assert_eq!((outcome.text.as_str(), outcome.reason), (expected, TurnEndReason::Completed));
        self.agent.when_idle().await.unwrap();
        self.agent.session().flush().await.unwrap();
        let stored = self.stored().await;
        let log: Vec<_> = self.events().iter().map(|event| event.to_json()).collect();
        let stored: Vec<_> =
            stored.events.iter().map(|json| String::from_utf8(json.to_vec()).unwrap()).collect();
        assert_eq!(stored, log);
        self.harness.shutdown().await.unwrap();
    }
}

fn text_of(chunk: &playhouse::messages::chunk::StreamChunk) -> Option<&str> {
    match chunk {
        playhouse::messages::chunk::StreamChunk::TextDelta { text, .. } => Some(text),
        _ => None,
    }
}

fn stalls_after_some_text() -> Reply {
    use playhouse::models::scripted::{Fault, FaultKind};
    Reply::text("Half of an answer that never ends")
        .with_fault(Fault::new(FaultKind::Stall).after(4))
}

#[tokio::test]
async fn a_dead_agent_costs_its_turn_and_keeps_what_was_shown() {
    let rig = rig([stalls_after_some_text(), Reply::text("next"), Reply::text("yes")]).await;
    let shown = rig.streaming("go").await;
    rig.agent.send("later", InboxTarget::NextTurn, true).await.unwrap();
    kill(&rig.agent.cell().actor);
    rig.agent.when_idle().await.unwrap();
    // The prompt that waited has been run by the successor.
    assert_eq!(rig.turn_ends(), [TurnEndReason::Interrupted, TurnEndReason::Completed]);
    let kept = rig.events().into_iter().find_map(|event| match &event.body {
        EventBody::AssistantMessage(data) if data.interrupted => Some(data.message.text()),
        _ => None,
    });
    assert!(kept.unwrap().starts_with(&shown));
    rig.works("yes").await;
}

#[tokio::test]
async fn a_dead_session_actor_costs_nothing() {
    let reply = Reply::text("a whole answer").at_gate("answer");
    let rig = rig([reply, Reply::text("yes")]).await;
    let id = rig.agent.followup("go").await.unwrap();
    kill(&rig.agent.session().cell().appender);
    rig.model.gate("answer").open();
    let outcome = rig.agent.outcome(&id, 0).await.unwrap();
    assert_eq!(
        (outcome.text.as_str(), outcome.reason),
        ("a whole answer", TurnEndReason::Completed)
    );
    rig.works("yes").await;
}

#[tokio::test]
async fn a_dead_writer_costs_nothing_that_was_accepted() {
    let reply = Reply::text("a whole answer").at_gate("answer");
    let rig = rig([reply, Reply::text("yes")]).await;
    let id = rig.agent.followup("go").await.unwrap();
    kill(&rig.agent.session().cell().writer);
    rig.model.gate("answer").open();
    let outcome = rig.agent.outcome(&id, 0).await.unwrap();
    assert_eq!(outcome.text, "a whole answer");
    rig.works("yes").await;
}

#[tokio::test]
async fn a_dead_supervisor_costs_what_its_agents_death_costs() {
    let rig = rig([stalls_after_some_text(), Reply::text("yes")]).await;
    rig.streaming("go").await;
    kill(&rig.agent.cell().supervisor);
    rig.agent.when_idle().await.unwrap();
    assert_eq!(rig.turn_ends(), [TurnEndReason::Interrupted]);
    rig.works("yes").await;
}

#[tokio::test]
async fn a_dead_tool_executor_leaves_started_calls_with_an_unknown_outcome() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Nothing {}
    let call = Reply::call("hang", serde_json::json!({}));
    let rig = rig([call, Reply::text("yes")]).await;
    let started = Arc::new(Notify::new());
    let signal = started.clone();
    let hang = tool_fn("hang", "Never returns.", move |_: Nothing, _run| {
        let signal = signal.clone();
        async move {
            signal.notify_one();
            std::future::pending::<()>().await;
            Ok("unreachable")
        }
    });
    rig.harness.register_tool(Arc::new(hang)).unwrap();
    rig.agent.followup("go").await.unwrap();
    started.notified().await;
    let parts = [
        rig.agent.cell().actor.live().unwrap().get_id(),
        rig.agent.session().cell().appender.live().unwrap().get_id(),
        rig.agent.session().cell().writer.live().unwrap().get_id(),
    ];
    let supervisor = rig.agent.cell().supervisor.live().unwrap();
    let executor =
        supervisor.get_children().into_iter().find(|child| !parts.contains(&child.get_id()));
    executor.expect("a batch runs in an actor of its own").kill();
    rig.agent.when_idle().await.unwrap();
    let codes: Vec<_> = rig
        .events()
        .into_iter()
        .filter_map(|event| match &event.body {
            EventBody::ToolResult(result) => result.error.clone().map(|error| error.code),
            _ => None,
        })
        .collect();
    assert_eq!(codes, ["TOOL_OUTCOME_UNKNOWN"]);
    assert!(
        matches!(&rig.turn_ends()[..], [TurnEndReason::Error(failure)] if failure.code == "TOOL_EXECUTOR_DOWN")
    );
    rig.works("yes").await;
}

#[tokio::test]
async fn a_dead_provider_ends_its_streams_with_a_retryable_failure() {
    let rig = rig([stalls_after_some_text(), Reply::text("yes")]).await;
    rig.streaming("go").await;
    kill(&rig.harness.world().providers.slot("scripted"));
    rig.agent.when_idle().await.unwrap();
    assert!(
        matches!(&rig.turn_ends()[..], [TurnEndReason::Error(failure)] if failure.code == "TRANSPORT")
    );
    rig.works("yes").await;
}

#[tokio::test]
async fn a_dead_root_fails_the_harness_which_says_so_and_keeps_every_event() {
    let rig = rig([stalls_after_some_text()]).await;
    rig.streaming("go").await;
    let root = rig.agent.cell().supervisor.live().unwrap().try_get_supervisor().unwrap();
    root.kill();
    let mut states = rig.harness.watch();
    let failed = |state: &HarnessState| matches!(state, HarnessState::Failed(_));
    states.wait_for(failed).await.unwrap();
    let log: Vec<_> = rig.events().iter().map(|event| event.to_json()).collect();
    let stored = rig.stored().await;
    assert_eq!(stored.events.len(), log.len());
    assert!(stored.tail.is_some(), "what was shown of the answer is in the store too");
    let gone: &Agent = &rig.agent;
    assert!(gone.followup("anyone?").await.is_err());
    rig.harness.shutdown().await.unwrap();

    // A new harness resumes from the same store.
    let harness = Harness::builder().store(rig.store.reopen()).start().await.unwrap();
    let model = Arc::new(ScriptedAdapter::new(Script::sequence([Reply::text("yes")])));
    let _ = harness.world().models.register(["scripted"], model).unwrap();
    let options = AgentOptions::new().model("scripted", "any");
    let id: SessionId = rig.agent.id().clone();
    let agent = harness.resume(id, NewAgent::new(options)).await.unwrap();
    assert_eq!(agent.prompt("still there?").await.unwrap().text, "yes");
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_agent_that_dies_while_it_is_made_still_waits_for_its_creation() {
    let rig = rig([Reply::text("yes")]).await;
    let (killed, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, go) = (killed.clone(), release.clone());
    let set_up = move |agent: Agent| {
        let (told, go) = (told.clone(), go.clone());
        async move {
            agent.followup("early").await?;
            let dead = kill(&agent.cell().actor).get_id();
            let _ = agent.cell().actor.next(Some(dead)).await;
            // The successor answers, so it has looked at what waits.
            assert!(agent.run_maintenance(|_| async {}).await.is_err());
            told.notify_one();
            go.notified().await;
            Ok(())
        }
    };
    let options = AgentOptions::new().model("scripted", "any");
    let harness = rig.harness.clone();
    let made = tokio::spawn(async move {
        harness.create(NewAgent::new(options).id("made").set_up(set_up)).await
    });
    killed.notified().await;
    let making = rig.harness.world().agents.made(&"made".into()).unwrap();
    assert_eq!(making.session().view().last_turn, 0, "nothing has run");
    release.notify_one();
    let agent = made.await.unwrap().unwrap();
    agent.when_idle().await.unwrap();
    assert_eq!(agent.session().view().last_turn, 1);
    rig.harness.shutdown().await.unwrap();
}
