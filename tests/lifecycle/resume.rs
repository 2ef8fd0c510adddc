use std::sync::Arc;

use bytes::Bytes;
use playhouse::{
    AgentHandle, Event, EventBody, Harness, NewAgent, NewEvent, SessionId, TurnEndReason,
    messages::{
        config::HeaderReason, event::InboxTarget, frame::Frame, header::SessionHeader,
        repair::interrupted_closers,
    },
    models::scripted::{Fault, FaultKind, Reply, Script, ScriptedAdapter},
    plugin_api::store::{EventBatch, Store, StoreReader, StoredTail},
};
use playhouse_stores::{JournalStore, JournalStoreConfig, MemoryStore};
use serde_json::json;

use super::rig::{self, Pause, kinds, kinds_of, soon, stored_kinds, stubborn_tool, turn_ends};

fn new() -> NewAgent {
    NewAgent::new(rig::options())
}

/// Stores a log as a process that was killed would have left it.
async fn seed(store: &dyn Store, id: &str, events: &[Bytes], tail: Option<&StoredTail>) {
    let header = Arc::new(SessionHeader::new(id.into(), 1));
    let handle = store.create(&header, 0).await.unwrap();
    handle.append(EventBatch { first_seq: 0, events: events.to_vec() }).await.unwrap();
    for part in tail.iter().flat_map(|tail| &tail.parts) {
        handle.tail(tail.unwrap().attempt, part.clone()).await.unwrap();
    }
    handle.flush().await.unwrap();
    handle.close().await.unwrap();
}

fn parse(json: &Bytes) -> Arc<Event> {
    Arc::new(Event::from_json(std::str::from_utf8(json).unwrap()).unwrap())
}

/// The log of a turn with two tool calls in its first step.
async fn recorded() -> Vec<Bytes> {
    let calls = Reply::call("work", "{}").and_call("work", "{}");
    let (harness, _, store) = rig::in_memory([calls, Reply::text("done")]).await;
    harness.register_tool(stubborn_tool("work", Pause::opened())).unwrap();
    let agent = harness.create(new()).await.unwrap();
    agent.prompt("go").await.unwrap();
    harness.shutdown().await.unwrap();
    store.reopen().read(agent.id()).await.unwrap().events
}

/// What the table says of a log that ends with these kinds, written down a second time.
fn closers_by_the_table(kinds: &[String]) -> Vec<&'static str> {
    let (mut turn, mut step, mut asked, mut started, mut answered) = (false, false, 0, 0, 0);
    for kind in kinds {
        match kind.as_str() {
            "turn/start" => turn = true,
            "turn/end" => turn = false,
            "step/start" => (step, asked, started, answered) = (true, 0, 0, 0),
            "step/end" => step = false,
            // Only the first step's answer calls tools: two.
            "assistant/message" => asked = if kinds.len() <= 15 { 2 } else { 0 },
            "tool/call" => started += 1,
            "tool/result" => answered += 1,
            _ => {}
        }
    }
    let mut closers = Vec::new();
    if step {
        for call in answered..asked {
            closers.push(if call < started { "TOOL_OUTCOME_UNKNOWN" } else { "TOOL_NOT_STARTED" });
        }
        closers.push("step/end");
    }
    if turn {
        closers.push("turn/end");
    }
    closers
}

fn named(event: &Event) -> String {
    match &event.body {
        EventBody::ToolResult(result) => result.error.clone().unwrap().code,
        body => body.kind().to_owned(),
    }
}

async fn harness_on(store: Arc<dyn Store>) -> (Harness, Arc<ScriptedAdapter>) {
    let harness = Harness::builder().shared_store(store).start().await.unwrap();
    harness.register_tool(stubborn_tool("work", Pause::opened())).unwrap();
    let mut script = Script::sequence([Reply::text("back")]);
    script.repeat_last = true;
    let model = Arc::new(ScriptedAdapter::new(script));
    let _ = harness.world().models.register(["scripted"], model.clone()).unwrap();
    (harness, model)
}

/// Every prefix of a real log is resumed: closed by the table, once, and usable.
async fn every_crash_point(store: Arc<dyn Store>) {
    let whole = recorded().await;
    let all: Vec<_> = whole.iter().map(parse).collect();
    let all = kinds_of(&all);
    assert_eq!(all.iter().filter(|kind| *kind == "tool/result").count(), 2);
    let first_answer = all.iter().position(|kind| kind == "assistant/message").unwrap();
    assert!(all[first_answer + 1..].contains(&"assistant/message".to_owned()));
    let (harness, model) = harness_on(store.clone()).await;
    for cut in 0..=whole.len() {
        let id = format!("cut-{cut:02}");
        seed(&*store, &id, &whole[..cut], None).await;
        let prefix: Vec<_> = whole[..cut].iter().map(parse).collect();
        let agent = harness.resume(id.as_str(), new()).await.unwrap();
        let log = agent.session().log();
        assert!(log.iter().enumerate().all(|(at, event)| event.seq == at as u64));
        let added: Vec<_> = log.iter().skip(cut).map(|event| named(event)).collect();
        let mut expected = closers_by_the_table(&all[..cut]);
        expected.push("session/end-seed");
        assert_eq!(added, expected, "after {cut} events: {:?}", all[..cut].last());
        let closers = interrupted_closers(&prefix.iter().cloned().collect(), None);
        let closed: Vec<_> =
            log.iter().skip(cut).take(closers.len()).map(|e| (**e).clone()).collect();
        assert_eq!(closed, closers);
        assert_eq!(log.iter().take(cut).cloned().collect::<Vec<_>>(), prefix);
        for event in log.iter().skip(cut) {
            if let EventBody::ToolResult(result) = &event.body {
                let code = result.error.clone().unwrap().code;
                assert_eq!(event.sources.len(), usize::from(code == "TOOL_OUTCOME_UNKNOWN"));
            }
        }

        // A second resume of what nobody touched adds nothing.
        let before = kinds(&agent);
        agent.dispose_keeping_inbox().await.unwrap();
        assert_eq!(stored_kinds(&*store, agent.id()).await, before);
        let agent = harness.resume(id.as_str(), new()).await.unwrap();
        assert_eq!(kinds(&agent), before);

        // And the history serves a strict provider.
        let turns = 1 + agent.inbox().len();
        let requests = model.captured().len();
        let turn = agent.session().view().last_turn;
        let outcome = agent.prompt("still there?").await.unwrap();
        assert_eq!((outcome.text.as_str(), outcome.reason), ("back", TurnEndReason::Completed));
        assert_eq!(model.captured().len(), requests + turns);
        assert_eq!(agent.session().view().last_turn as usize, turn as usize + turns);
        agent.dispose().await.unwrap();
    }
    harness.shutdown().await.unwrap();
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn core_132_a_balanced_log_goes_on_where_it_was() {
        let (harness, _, store) = rig::in_memory([Reply::text("one")]).await;
        let agent = harness.create(new().id("a")).await.unwrap();
        agent.prompt("go").await.unwrap();
        harness.shutdown().await.unwrap();
        let before = kinds(&agent);

        let (harness, model) = rig::on(Arc::new(store.reopen()), [Reply::text("two")]).await;
        let agent = harness.resume("a", new()).await.unwrap();
        let mut expected = before.clone();
        expected.push("session/end-seed".to_owned());
        assert_eq!(kinds(&agent), expected);
        assert_eq!(agent.prompt("on").await.unwrap().text, "two");
        let log = agent.session().log();
        assert!(log.iter().enumerate().all(|(at, event)| event.seq == at as u64));
        let turns = log.iter().filter_map(|event| match &event.body {
            EventBody::TurnStart(start) => Some(start.turn),
            _ => None,
        });
        assert_eq!(turns.collect::<Vec<_>>(), [1, 2]);
        let headers = log.iter().filter_map(|event| match &event.body {
            EventBody::RequestHeader(header) => Some(header.reason),
            _ => None,
        });
        assert_eq!(headers.collect::<Vec<_>>(), [HeaderReason::Initial, HeaderReason::Resume]);
        let texts: Vec<_> = model.captured()[0].messages.iter().map(|m| m.text()).collect();
        assert_eq!(texts, ["go", "one", "on"]);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_133_newest_60_a_session_that_a_live_agent_owns_is_not_touched() {
        let reply = Reply::text("mine").at_gate("answer");
        let (harness, model, store) = rig::in_memory([reply]).await;
        let agent = harness.create(new().id("a")).await.unwrap();
        let id = agent.followup("go").await.unwrap();
        model.gate("answer").arrived(1).await;
        let before = kinds(&agent);
        let error = harness.resume("a", new()).await.unwrap_err();
        assert_eq!(error.code(), "SESSION_ALREADY_OWNED");
        let (other, _) = rig::on(store.clone(), []).await;
        let error = other.resume("a", new()).await.unwrap_err();
        assert_eq!(error.code(), "SESSION_ALREADY_OWNED");
        assert_eq!(kinds(&agent), before);
        model.gate("answer").open();
        assert_eq!(agent.outcome(&id, 0).await.unwrap().text, "mine");
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_134_newest_59_each_crash_point_is_closed_by_the_table_in_memory() {
        every_crash_point(Arc::new(MemoryStore::new())).await;
    }

    #[tokio::test]
    async fn core_134_newest_59_each_crash_point_is_closed_by_the_table_in_a_journal() {
        let dir = tempfile::tempdir().unwrap();
        let store = JournalStore::open(dir.path(), JournalStoreConfig::default()).await.unwrap();
        every_crash_point(Arc::new(store)).await;
    }

    #[tokio::test]
    async fn core_135_pending_context_and_prompt_survive_and_run_at_the_next_wake() {
        let (harness, _, store) = rig::in_memory([]).await;
        let agent = harness.create(new().id("a")).await.unwrap();
        agent.inject("context").await.unwrap();
        agent.send("prompt", InboxTarget::NextTurn, false).await.unwrap();
        agent.session().flush().await.unwrap();
        let killed = store.read(agent.id()).await.unwrap();
        harness.shutdown().await.unwrap();

        let store = Arc::new(MemoryStore::new());
        seed(&*store, "a", &killed.events, None).await;
        let replies = [Reply::text("one"), Reply::text("two")];
        let (harness, model) = rig::on(store, replies).await;
        let agent = harness.resume("a", new()).await.unwrap();
        assert_eq!(agent.inbox().len(), 2);
        agent.when_idle().await.unwrap();
        assert!(model.captured().is_empty());
        agent.followup("wake").await.unwrap();
        agent.when_idle().await.unwrap();
        let texts = |at: usize| -> Vec<_> {
            model.captured()[at].messages.iter().map(|message| message.text()).collect()
        };
        assert_eq!(texts(0), ["context", "prompt"]);
        assert_eq!(texts(1), ["context", "prompt", "one", "wake"]);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_136_an_orderly_disposal_cancels_pending_input_in_the_log() {
        let (harness, _, store) = rig::in_memory([]).await;
        let agent = harness.create(new().id("a")).await.unwrap();
        agent.send("prompt", InboxTarget::NextTurn, false).await.unwrap();
        agent.dispose().await.unwrap();
        let log = agent.session().log();
        let EventBody::InboxSpliced(last) = &log.last().unwrap().body else { panic!() };
        assert!(last.outcome.is_some() && last.removed_count == 1);
        rig::assert_stored(&*store, &agent).await;
        let agent = harness.resume("a", new()).await.unwrap();
        assert!(agent.inbox().is_empty());
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_137_a_failed_resume_leaves_pending_input_untouched() {
        let (harness, _, _) = rig::in_memory([Reply::text("ran")]).await;
        let agent = harness.create(new().id("a")).await.unwrap();
        agent.send("prompt", InboxTarget::NextTurn, false).await.unwrap();
        agent.dispose_keeping_inbox().await.unwrap();
        let failing = |_| async { Err(playhouse::messages::chunk::Failure::new("NO", "no")) };
        assert_eq!(harness.resume("a", new().set_up(failing)).await.unwrap_err().code(), "NO");

        // Nor does an owner that closes meanwhile take it.
        let owner = harness.world().scope.child("owner").unwrap();
        let pause = Pause::closed();
        let held = pause.clone();
        let setup = move |_| {
            let held = held.clone();
            async move {
                held.pass().await;
                Ok(())
            }
        };
        let resuming = {
            let (harness, new) = (harness.clone(), new().owned_by(owner.clone()).set_up(setup));
            tokio::spawn(async move { harness.resume("a", new).await })
        };
        pause.arrived(1).await;
        owner.close();
        assert_eq!(soon(resuming).await.unwrap().unwrap_err().code(), "ABORTED");

        let agent = harness.resume("a", new()).await.unwrap();
        assert_eq!(agent.inbox().list(InboxTarget::NextTurn)[0].text(), "prompt");
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn newest_58_a_crash_after_the_turn_opened_is_closed_once() {
        let whole = recorded().await;
        let store = Arc::new(MemoryStore::new());
        seed(&*store, "a", &whole[..3], None).await;
        let (harness, _) = harness_on(store.clone()).await;
        let agent = harness.resume("a", new()).await.unwrap();
        assert_eq!(kinds(&agent)[3..], ["turn/end", "session/end-seed"]);
        assert_eq!(turn_ends(&agent), [TurnEndReason::Interrupted]);
        agent.dispose().await.unwrap();
        assert_eq!(stored_kinds(&*store, agent.id()).await.len(), 5);
        harness.shutdown().await.unwrap();
    }
}

async fn killed_mid_text(store: &MemoryStore) -> (AgentHandle, Harness, String) {
    let stalls = Reply::text("Half of an answer that never ends")
        .with_fault(Fault::new(FaultKind::Stall).after(4));
    let (harness, _) = rig::on(Arc::new(store.clone()), [stalls]).await;
    let agent = harness.create(new().id("a")).await.unwrap();
    let mut frames = agent.session().frames();
    agent.followup("go").await.unwrap();
    let mut shown = String::new();
    while shown.is_empty() {
        let Some(Frame::Chunks { chunks, .. }) = soon(frames.next()).await else { continue };
        shown.extend(chunks.iter().filter_map(|timed| super::streams::text_of(&timed.chunk)));
    }
    (agent, harness, shown)
}

#[tokio::test]
async fn an_unsettled_answer_is_kept_as_far_as_it_was_shown() {
    let first = MemoryStore::new();
    let (agent, harness, shown) = killed_mid_text(&first).await;
    let killed = first.read(agent.id()).await.unwrap();
    assert!(killed.tail.is_some());
    harness.shutdown().await.unwrap();

    let store = Arc::new(MemoryStore::new());
    seed(&*store, "a", &killed.events, killed.tail.as_ref()).await;
    let (harness, model) = harness_on(store).await;
    let agent = harness.resume("a", new()).await.unwrap();
    let log = agent.session().log();
    let added: Vec<_> = kinds(&agent)[killed.events.len()..].to_vec();
    assert_eq!(added, ["assistant/message", "step/end", "turn/end", "session/end-seed"]);
    let EventBody::AssistantMessage(kept) = &log.get(killed.events.len() as u64).unwrap().body
    else {
        panic!()
    };
    assert!(kept.interrupted && kept.message.text().starts_with(&shown));
    assert_eq!(kept.message.id.as_str(), "interrupted-assistant-1.1.1");
    let kept = kept.message.text();
    agent.prompt("go on").await.unwrap();
    let texts: Vec<_> = model.captured()[0].messages.iter().map(|m| m.text()).collect();
    assert_eq!(texts, ["go".to_owned(), kept, "go on".to_owned()]);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_tail_whose_attempt_was_settled_adds_nothing() {
    let first = MemoryStore::new();
    let (agent, harness, _) = killed_mid_text(&first).await;
    let tail = first.read(agent.id()).await.unwrap().tail;
    // The shutdown's cancel settles the attempt.
    harness.shutdown().await.unwrap();
    let settled = first.reopen().read(&"a".into()).await.unwrap();
    let at = settled.events.iter().position(|json| parse(json).body.kind() == "assistant/message");
    let store = Arc::new(MemoryStore::new());
    seed(&*store, "a", &settled.events[..=at.unwrap()], tail.as_ref()).await;
    let (harness, _) = harness_on(store).await;
    let agent = harness.resume("a", new()).await.unwrap();
    assert_eq!(kinds(&agent)[at.unwrap() + 1..], ["step/end", "turn/end", "session/end-seed"]);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_unknown_required_kind_refuses_and_an_ignorable_one_does_not() {
    let store = Arc::new(MemoryStore::new());
    let event = |ignorable: bool| {
        let event = NewEvent::custom("other/kind", json!({"a": 1}));
        let event = if ignorable { event.ignorable() } else { event };
        Bytes::from(event.at(0, 5).to_json())
    };
    seed(&*store, "required", &[event(false)], None).await;
    seed(&*store, "ignorable", &[event(true)], None).await;
    let (harness, _) = rig::on(store.clone(), []).await;
    for _ in 0..2 {
        // Twice: the claim was given back.
        let error = harness.resume("required", new()).await.unwrap_err();
        assert_eq!(error.code(), "FORMAT_UNSUPPORTED");
        assert!(error.to_string().contains("other/kind"), "{error}");
    }
    let agent = harness.resume("ignorable", new()).await.unwrap();
    assert_eq!(kinds(&agent), ["other/kind", "session/end-seed"]);
    assert!(harness.agent(&"required".into()).is_none());
    harness.shutdown().await.unwrap();

    let knowing = Harness::builder().store(store.reopen()).event_kind("other/kind");
    let harness = knowing.start().await.unwrap();
    let agent = harness.resume("required", new()).await.unwrap();
    assert_eq!(kinds(&agent), ["other/kind", "session/end-seed"]);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_damaged_event_is_named_and_nothing_is_made_of_the_rest() {
    let whole = recorded().await;
    let damage: [(&str, Bytes, &str); 3] = [
        ("text", Bytes::from_static(b"{\"type\":"), "damaged at event 4"),
        ("seq", whole[5].clone(), "damaged at event 4: it says seq 5"),
        ("bytes", Bytes::from_static(&[0xff, 0xfe]), "damaged at event 4"),
    ];
    let store = Arc::new(MemoryStore::new());
    let (harness, _) = rig::on(store.clone(), []).await;
    for (id, event, expected) in damage {
        seed(&*store, id, &whole, None).await;
        store.damage(&id.into(), 4, event.clone());
        let mut events = whole.clone();
        events[4] = event;
        for _ in 0..2 {
            let error = harness.resume(id, new()).await.unwrap_err();
            assert_eq!(error.code(), "STORE_CORRUPT");
            assert!(error.to_string().contains(expected), "{error}");
        }
        let untouched = store.read(&SessionId::from(id)).await.unwrap();
        assert_eq!(untouched.events, events);
    }
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_resumed_is_refused_by_name() {
    let (harness, _, _) = rig::in_memory([]).await;
    let error = harness.resume("nobody", new()).await.unwrap_err();
    assert_eq!(error.code(), "SESSION_NOT_FOUND");
    harness.shutdown().await.unwrap();
    assert_eq!(harness.resume("nobody", new()).await.unwrap_err().code(), "SHUTTING_DOWN");
    let storeless = playhouse::minimal().start().await.unwrap();
    let error = storeless.resume("nobody", new()).await.unwrap_err();
    assert_eq!(error.code(), "NO_STORE");
    assert!(error.to_string().starts_with("cannot resume: session persistence is not configured"));
    storeless.shutdown().await.unwrap();
}
