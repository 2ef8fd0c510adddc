use std::sync::Arc;

use playhouse::{
    CancelCause, Event, EventBody, Harness, Message, NewAgent, NewEvent, TurnEndReason,
    messages::{
        chunk::Failure,
        event::{AssistantMessage, StepAt},
        message::{Role, Source},
    },
    plugin_api::{
        agent::Agent,
        factory::{OpenTurn, loop_fn},
        store::StoreReader,
    },
};
use playhouse_stores::MemoryStore;

use super::rig::{self, Diary, Pause, kinds, soon, turn_ends, user_texts};

/// A loop in a few lines: it says back what it is told, in capitals.
async fn echo(turn: OpenTurn) -> Result<(), Failure> {
    let at = StepAt { turn: turn.turn, step: 1 };
    let heard: Vec<_> = turn.messages.iter().map(|message| message.text()).collect();
    let answer = Message {
        id: format!("echo-{}", turn.turn).into(),
        role: Role::Assistant,
        tool_call_id: None,
        is_error: None,
        content: vec![playhouse::ContentBlock::text(heard.join(" ").to_uppercase())],
        source: Source::model("toy", "echo", None),
    };
    let answer = AssistantMessage {
        turn: at.turn,
        step: at.step,
        message: Arc::new(answer),
        stream: Vec::new(),
        usage: None,
        interrupted: false,
    };
    let mut events = vec![NewEvent::log_only(EventBody::StepStart(at))];
    events.extend(turn.messages.iter().cloned().map(EventBody::UserMessage).map(NewEvent::append));
    events.push(NewEvent::append(EventBody::AssistantMessage(answer)));
    events.push(NewEvent::log_only(EventBody::StepEnd(at)));
    turn.agent.session().append_all(events).await?;
    Ok(())
}

async fn harness(pause: Arc<Pause>, store: MemoryStore) -> Harness {
    let toy = loop_fn(move |turn| {
        let pause = pause.clone();
        async move {
            match turn.messages[0].text().as_str() {
                "wait" => pause.pass().await,
                "fail" => return Err(Failure::new("MINE", "as asked")),
                "panic" => panic!("as asked"),
                _ => {}
            }
            if turn.cancel.is_cancelled() { Ok(()) } else { echo(turn).await }
        }
    });
    Harness::builder().agent_factory(toy).store(store).start().await.unwrap()
}

fn new(id: &str) -> NewAgent {
    NewAgent::new(rig::options()).id(id)
}

fn aborted() -> TurnEndReason {
    TurnEndReason::Aborted(CancelCause::User)
}

#[tokio::test]
async fn a_loop_of_a_few_lines_drives_agents_with_all_that_makes_input_safe() {
    let (pause, store) = (Pause::closed(), MemoryStore::new());
    let harness = harness(pause.clone(), store.clone()).await;
    let told = Diary::default();
    let note = told.clone();
    let status = move |change: &playhouse::plugin_api::points::StatusChange| {
        note.note(format!("{:?}", change.status));
    };
    harness.world().hooks.status.add(&harness.world().scope, status).unwrap();
    let early = |agent: Agent| async move {
        agent.followup("early").await?;
        assert_eq!(agent.session().log().len(), 1);
        Ok(())
    };
    let agent = harness.create(new("a").set_up(early)).await.unwrap();
    let outcome = soon(agent.prompt("hello")).await.unwrap();
    assert_eq!((outcome.text.as_str(), outcome.reason), ("HELLO", TurnEndReason::Completed));
    soon(agent.when_idle()).await.unwrap();
    assert_eq!(user_texts(&agent), ["early", "hello"]);
    assert_eq!(told.read().len() % 2, 0);
    assert_eq!(told.read()[..2], ["Running", "Idle"]);
    let failed = soon(agent.prompt("fail")).await.unwrap().reason;
    assert!(matches!(failed, TurnEndReason::Error(failure) if failure.code == "MINE"));
    let failed = soon(agent.prompt("panic")).await.unwrap().reason;
    assert!(matches!(failed, TurnEndReason::Error(failure) if failure.code == "PANIC"));

    // A cancel ends the running turn and drops what waits; what comes after runs.
    let waiting = agent.followup("wait").await.unwrap();
    pause.arrived(1).await;
    let dropped = agent.followup("dropped").await.unwrap();
    let busy = agent.run_maintenance(|_| async {}).await.unwrap_err();
    assert_eq!(busy.code(), "AGENT_BUSY");
    agent.cancel(CancelCause::User);
    let later = agent.followup("later").await.unwrap();
    pause.open();
    assert_eq!(soon(agent.outcome(&waiting, 0)).await.unwrap().reason, aborted());
    let error = soon(agent.outcome(&dropped, 0)).await.unwrap_err();
    assert_eq!(error.code(), "MESSAGE_CANCELED");
    assert_eq!(soon(agent.outcome(&later, 0)).await.unwrap().text, "LATER");
    let kept = agent.run_maintenance(|_| agent.followup("kept")).await.unwrap().unwrap();
    assert_eq!(soon(agent.outcome(&kept, 0)).await.unwrap().text, "KEPT");
    soon(agent.when_idle()).await.unwrap();
    rig::assert_stored(&store, &agent).await;

    // The session goes on where it was, with this loop.
    agent.dispose().await.unwrap();
    let agent = harness.resume("a", new("a")).await.unwrap();
    assert_eq!(soon(agent.prompt("again")).await.unwrap().text, "AGAIN");
    soon(harness.shutdown()).await.unwrap();
    rig::assert_stored(&store.reopen(), &agent).await;
}

#[tokio::test]
async fn a_toy_loop_survives_deaths_as_the_real_one_does() {
    let (pause, store) = (Pause::closed(), MemoryStore::new());
    let harness = harness(pause.clone(), store.clone()).await;
    let agent = harness.create(new("a")).await.unwrap();
    agent.followup("wait").await.unwrap();
    pause.arrived(1).await;
    let queued = agent.followup("queued").await.unwrap();
    agent.cell().actor.live().unwrap().kill();
    assert_eq!(soon(agent.outcome(&queued, 0)).await.unwrap().text, "QUEUED");
    let done = TurnEndReason::Completed;
    assert_eq!(turn_ends(&agent), [TurnEndReason::Interrupted, done.clone()]);
    soon(agent.when_idle()).await.unwrap();

    let waiting = agent.followup("wait").await.unwrap();
    pause.arrived(2).await;
    agent.session().cell().appender.live().unwrap().kill();
    pause.open();
    assert_eq!(soon(agent.outcome(&waiting, 0)).await.unwrap().text, "WAIT");
    assert_eq!(turn_ends(&agent), [TurnEndReason::Interrupted, done.clone(), done]);
    soon(harness.shutdown()).await.unwrap();
    let stored = store.reopen().read(agent.id()).await.unwrap();
    let parse = |json: &bytes::Bytes| Event::from_json(std::str::from_utf8(json).unwrap()).unwrap();
    let stored: Vec<_> =
        stored.events.iter().map(|json| parse(json).body.kind().to_owned()).collect();
    assert_eq!(stored, kinds(&agent));
}

#[tokio::test]
async fn a_toy_loop_that_ignores_a_disposal_is_dropped_after_the_grace_time() {
    let pause = Pause::closed();
    let held = pause.clone();
    let toy = loop_fn(move |_| {
        let held = held.clone();
        async move {
            held.pass().await;
            Ok(())
        }
    });
    let grace = std::time::Duration::from_millis(50);
    let harness = Harness::builder().agent_factory(toy).grace(grace).start().await.unwrap();
    let agent = harness.create(new("a")).await.unwrap();
    agent.followup("go").await.unwrap();
    pause.arrived(1).await;
    agent.followup("queued").await.unwrap();
    soon(agent.dispose_keeping_inbox()).await.unwrap();
    assert_eq!(turn_ends(&agent), [TurnEndReason::Aborted(CancelCause::Disposed)]);
    assert_eq!(agent.inbox().len(), 1);
    harness.shutdown().await.unwrap();
}
