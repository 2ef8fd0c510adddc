//! What a kill leaves, and what the next life makes of it.

use std::{io::Write, sync::Arc};

use futures::future::BoxFuture;
use playhouse::{
    Event, EventBody, Harness, NewEvent, SessionId, TurnEndReason,
    messages::{
        event::{EventBody as Body, StepAt},
        id::CallId,
        invariants,
        repair::{NOT_STARTED_TEXT, OUTCOME_UNKNOWN_TEXT, interrupted_closers},
    },
    models::scripted::Reply,
    plugin_api::tool::{Tool, tool_fn},
    policies::{Spill, SpillDir, SpillError, SpillStore},
};
use playhouse_stores::{MemoryStore, StoreConfig, StoreKind};

use crate::lifecycle::rig::{Nothing, with as in_builder};

use super::rig::{
    self, Pause, killed, kinds, new, on, on_disk, open, plant, soon, spelled, stubborn_tool,
    turn_ends,
};

const CLOSED: [&str; 3] = ["step/end", "turn/end", "session/end-seed"];

fn parse(json: &str) -> Arc<Event> {
    Arc::new(Event::from_json(json).unwrap())
}

/// What the results say that are errors: call by call, code and cited event.
fn failed_calls(events: &[Arc<Event>]) -> Vec<(String, String, Vec<u64>)> {
    let results = events.iter().filter_map(|event| match &event.body {
        EventBody::ToolResult(result) => {
            let call = result.message.tool_call_id.clone().unwrap().to_string();
            Some((call, result.error.clone()?.code, event.sources.clone()))
        }
        _ => None,
    });
    results.collect()
}

/// The log of a turn whose first step calls `work` twice.
async fn recorded() -> Vec<String> {
    let calls = Reply::call("work", "{}").and_call("work", "{}");
    let (harness, _) = on(Arc::new(MemoryStore::new()), [calls, Reply::text("done")]).await;
    harness.register_tool(stubborn_tool("work", Pause::opened())).unwrap();
    let agent = harness.create(new()).await.unwrap();
    agent.prompt("go").await.unwrap();
    harness.shutdown().await.unwrap();
    spelled(&agent)
}

fn place(log: &[String], kind: &str) -> usize {
    log.iter().position(|event| parse(event).body.kind() == kind).unwrap()
}

/// Keeps texts, and is held up before it says so.
struct Late {
    dir: SpillDir,
    saved: Arc<Pause>,
}

impl SpillStore for Late {
    fn save(
        &self,
        session: SessionId,
        call: CallId,
        text: Arc<str>,
    ) -> BoxFuture<'static, Result<String, SpillError>> {
        let (saving, saved) = (self.dir.save(session, call, text), self.saved.clone());
        Box::pin(async move {
            let place = saving.await;
            saved.pass().await;
            place
        })
    }

    fn remove(&self, session: SessionId) -> BoxFuture<'static, Result<(), SpillError>> {
        self.dir.remove(session)
    }
}

/// A tool with a long output.
fn dump() -> Arc<dyn Tool> {
    Arc::new(tool_fn("dump", "", |_: Nothing, _run| async { Ok("x".repeat(9000)) }))
}

mod scenario {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_46_a_kill_at_dispatch_leaves_the_request_and_no_dangling_call() {
        for kind in on_disk() {
            let dir = tempfile::tempdir().unwrap();
            let never = Reply::text("never").at_gate("answer");
            let (harness, model) = on(open(kind, dir.path()).await, [never]).await;
            let agent = harness.create(new().id("a")).await.unwrap();
            agent.followup("go").await.unwrap();
            soon(model.gate("answer").arrived(1)).await;
            let before = kinds(&agent);
            assert_eq!(before.last().unwrap(), "request/context");
            let image = killed(dir.path());
            harness.shutdown().await.unwrap();

            let (harness, model) = on(open(kind, image.path()).await, [Reply::text("back")]).await;
            let agent = harness.resume("a", new()).await.unwrap();
            assert_eq!(kinds(&agent), [before, CLOSED.map(str::to_owned).to_vec()].concat());
            assert_eq!(turn_ends(&agent), [TurnEndReason::Interrupted]);
            assert_eq!(agent.prompt("on").await.unwrap().text, "back");
            let texts: Vec<_> = model.captured()[0].messages.iter().map(|m| m.text()).collect();
            assert_eq!(texts, ["go", "on"], "{kind}");
            harness.shutdown().await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_47_and_57_a_kill_in_a_tools_body_leaves_an_unknown_outcome_and_no_second_run()
     {
        for kind in on_disk() {
            let dir = tempfile::tempdir().unwrap();
            let pause = Pause::closed();
            let (harness, _) = on(open(kind, dir.path()).await, [Reply::call("work", "{}")]).await;
            harness.register_tool(stubborn_tool("work", pause.clone())).unwrap();
            let agent = harness.create(new().id("a")).await.unwrap();
            agent.followup("go").await.unwrap();
            pause.arrived(1).await;
            let call = agent.session().log().len() - 1;
            let image = killed(dir.path());
            pause.open();
            harness.shutdown().await.unwrap();

            let (harness, model) = on(open(kind, image.path()).await, [Reply::text("back")]).await;
            let again = Pause::opened();
            harness.register_tool(stubborn_tool("work", again.clone())).unwrap();
            let agent = harness.resume("a", new()).await.unwrap();
            let log: Vec<_> = agent.session().log().iter().cloned().collect();
            assert_eq!(log[call as usize].body.kind(), "tool/call");
            let failed = failed_calls(&log);
            assert_eq!(failed.len(), 1, "{kind}");
            assert_eq!((&*failed[0].1, &failed[0].2[..]), ("TOOL_OUTCOME_UNKNOWN", &[call][..]));
            agent.prompt("on").await.unwrap();
            let texts: Vec<_> = model.captured()[0].messages.iter().map(|m| m.text()).collect();
            assert!(texts.iter().any(|text| text == OUTCOME_UNKNOWN_TEXT), "{texts:?}");
            assert_eq!((pause.count(), again.count()), (1, 0), "{kind}: it ran once");
            harness.shutdown().await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_63_a_kill_behind_a_spilled_output_leaves_a_file_that_nothing_names() {
        for kind in on_disk() {
            let dir = tempfile::tempdir().unwrap();
            let saved = Pause::closed();
            let spills =
                Late { dir: SpillDir::new(dir.path().join("spills")), saved: saved.clone() };
            let builder = Harness::builder()
                .shared_store(open(kind, dir.path()).await)
                .plugin(Spill::new(500, Arc::new(spills)));
            let (harness, _) = in_builder(builder, [Reply::call("dump", "{}")]).await;
            harness.register_tool(dump()).unwrap();
            let agent = harness.create(new().id("a")).await.unwrap();
            agent.followup("go").await.unwrap();
            saved.arrived(1).await;
            let image = killed(dir.path());
            saved.open();
            harness.shutdown().await.unwrap();

            let spills = image.path().join("spills/a");
            let files: Vec<_> = std::fs::read_dir(&spills).unwrap().collect();
            let [file] = &files[..] else { panic!("{kind}: {files:?}") };
            let file = file.as_ref().unwrap().path();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "x".repeat(9000), "{kind}: whole");
            let (harness, _) = on(open(kind, image.path()).await, [Reply::text("back")]).await;
            let agent = harness.resume("a", new()).await.unwrap();
            let log: Vec<_> = agent.session().log().iter().cloned().collect();
            assert_eq!(failed_calls(&log)[0].1, "TOOL_OUTCOME_UNKNOWN");
            agent.prompt("on").await.unwrap();
            invariants::check(&agent.session().log()).unwrap();
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(spelled(&agent).iter().all(|event| !event.contains(name)), "{kind}");
            harness.shutdown().await.unwrap();
            // It goes with its session.
            SpillDir::new(image.path().join("spills")).remove("a".into()).await.unwrap();
            assert!(!file.exists());
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_48_calls_that_were_asked_for_and_never_recorded_have_not_started() {
        let whole = recorded().await;
        let answer = place(&whole, "assistant/message");
        for kind in on_disk() {
            let dir = tempfile::tempdir().unwrap();
            let store = open(kind, dir.path()).await;
            plant(&*store, "a", &whole[..=answer]).await;
            let (harness, _) = on(store, []).await;
            let agent = harness.resume("a", new()).await.unwrap();
            let log: Vec<_> = agent.session().log().iter().cloned().collect();
            let Body::AssistantMessage(asked) = &log[answer].body else { panic!("{kind}") };
            let asked: Vec<_> = asked.message.tool_calls().map(|c| c.id.to_string()).collect();
            let due: Vec<_> = asked
                .into_iter()
                .map(|id| (id, "TOOL_NOT_STARTED".to_owned(), Vec::new()))
                .collect();
            assert_eq!(failed_calls(&log), due);
            let Body::ToolResult(result) = &log[answer + 1].body else { panic!("{kind}") };
            assert_eq!(result.message.text(), NOT_STARTED_TEXT);
            harness.shutdown().await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_49_what_is_done_stays_what_ran_is_unknown_and_the_rest_has_not_started() {
        for kind in on_disk() {
            let dir = tempfile::tempdir().unwrap();
            let calls = Reply::call("quick", "{}").and_call("slow", "{}").and_call("slow", "{}");
            let (harness, _) = on(open(kind, dir.path()).await, [calls]).await;
            let pause = Pause::closed();
            harness.register_tool(stubborn_tool("quick", Pause::opened())).unwrap();
            harness.register_tool(stubborn_tool("slow", pause.clone())).unwrap();
            let agent = harness.create(new().id("a")).await.unwrap();
            agent.followup("go").await.unwrap();
            pause.arrived(1).await;
            let before = spelled(&agent);
            let image = killed(dir.path());
            pause.open();
            harness.shutdown().await.unwrap();

            let (harness, _) = on(open(kind, image.path()).await, []).await;
            let agent = harness.resume("a", new()).await.unwrap();
            let after = spelled(&agent);
            assert_eq!(after[..before.len()], before, "{kind}: what is done is as it was");
            let log: Vec<_> = agent.session().log().iter().cloned().collect();
            let failed = failed_calls(&log);
            let codes: Vec<_> = failed.iter().map(|(_, code, _)| &**code).collect();
            assert_eq!(codes, ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"], "{kind}");
            assert_eq!(failed[0].2, [before.len() as u64 - 1]);
            assert_eq!(kinds(&agent)[before.len() + 2..], CLOSED);
            harness.shutdown().await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_50_an_unanswered_call_of_a_closed_step_is_left_alone() {
        let whole = recorded().await;
        let answer = place(&whole, "assistant/message");
        let mut cut = whole[..=answer].to_vec();
        let end = NewEvent::log_only(Body::StepEnd(StepAt { turn: 1, step: 1 }));
        cut.push(end.at(cut.len() as u64, parse(&cut[answer]).time).to_json());
        for kind in on_disk() {
            let dir = tempfile::tempdir().unwrap();
            let store = open(kind, dir.path()).await;
            plant(&*store, "a", &cut).await;
            let (harness, _) = on(store, []).await;
            let agent = harness.resume("a", new()).await.unwrap();
            assert_eq!(kinds(&agent)[cut.len()..], ["turn/end", "session/end-seed"], "{kind}");
            harness.shutdown().await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_51_and_52_closers_that_were_half_stored_are_completed_once() {
        let whole = recorded().await;
        let cut = whole[..=place(&whole, "tool/call")].to_vec();
        let log = cut.iter().map(|event| parse(event)).collect();
        let closers = interrupted_closers(&log, None);
        assert_eq!(closers.len(), 4);
        for kind in on_disk() {
            let dir = tempfile::tempdir().unwrap();
            let (harness, _) = on(open(kind, dir.path()).await, []).await;
            let store = harness.world().store.clone().unwrap();
            for half in 0..=closers.len() {
                let id = format!("half-{half}");
                let mut events = cut.clone();
                events.extend(closers[..half].iter().map(Event::to_json));
                plant(&*store, &id, &events).await;
                let agent = harness.resume(id.as_str(), new()).await.unwrap();
                let log = agent.session().log();
                invariants::check(&log).unwrap();
                let kept: Vec<_> = log.iter().map(|event| (**event).clone()).collect();
                assert_eq!(kept[cut.len()..kept.len() - 1], closers, "{kind}, {half} stored");
                assert_eq!(kept.last().unwrap().body.kind(), "session/end-seed");
                assert_eq!(turn_ends(&agent), [TurnEndReason::Interrupted]);
            }
            harness.shutdown().await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_53_a_log_that_nobody_touches_grows_by_one_marker_at_most() {
        let whole = recorded().await;
        for kind in on_disk() {
            let dir = tempfile::tempdir().unwrap();
            let store = open(kind, dir.path()).await;
            plant(&*store, "a", &whole).await;
            store.close().await.unwrap();
            for _ in 0..5 {
                let (harness, _) = on(open(kind, dir.path()).await, []).await;
                let agent = harness.resume("a", new()).await.unwrap();
                assert_eq!(agent.session().log().len(), whole.len() as u64 + 1, "{kind}");
                harness.shutdown().await.unwrap();
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_54_of_two_that_resume_a_session_one_owns_it() {
        let whole = recorded().await;
        let cut = &whole[..=place(&whole, "tool/call")];
        for kind in on_disk() {
            let dir = tempfile::tempdir().unwrap();
            let store = open(kind, dir.path()).await;
            plant(&*store, "a", cut).await;
            let (first, _) = on(store.clone(), []).await;
            let (second, _) = on(store, []).await;
            let (one, two) = tokio::join!(first.resume("a", new()), second.resume("a", new()));
            let (agent, refused) = match (one, two) {
                (Ok(agent), Err(refused)) | (Err(refused), Ok(agent)) => (agent, refused),
                both => panic!("{kind}: {both:?}"),
            };
            assert_eq!(refused.code(), "SESSION_ALREADY_OWNED");
            assert_eq!(turn_ends(&agent).len(), 1, "{kind}: closed once");
            // Another process gets as far as the store or the session, by kind.
            match StoreConfig::new(kind).open(dir.path()).await {
                Err(error) => assert_eq!(error.code(), "STORE_IN_USE"),
                Ok(store) => {
                    let error = store.open_write(agent.id()).await.map(drop).unwrap_err();
                    assert_eq!(error.code(), "SESSION_ALREADY_OWNED", "{kind}");
                }
            }
            first.shutdown().await.unwrap();
            // The store was shared, and is closed.
            let _ = second.shutdown().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_55_the_next_process_takes_over_at_once_and_repairs_the_torn_end() {
        // `crash` and `crash-test` do it with a real SIGKILL; this adds the torn end.
        let dir = tempfile::tempdir().unwrap();
        let never = Reply::text("never").at_gate("answer");
        let (harness, model) = on(open(StoreKind::Journal, dir.path()).await, [never]).await;
        let agent = harness.create(new().id("a")).await.unwrap();
        agent.followup("go").await.unwrap();
        soon(model.gate("answer").arrived(1)).await;
        let before = spelled(&agent);
        let image = killed(dir.path());
        harness.shutdown().await.unwrap();
        let mut segments: Vec<_> = std::fs::read_dir(image.path().join("journal"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        segments.sort();
        let last = segments.last().unwrap();
        let mut file = std::fs::OpenOptions::new().append(true).open(last).unwrap();
        file.write_all(b"PHB\x01 a batch that was cut").unwrap();
        drop(file);

        let store = open(StoreKind::Journal, image.path()).await;
        let (harness, _) = on(store, [Reply::text("back")]).await;
        let agent = harness.resume("a", new()).await.unwrap();
        assert_eq!(spelled(&agent)[..before.len()], before);
        assert_eq!(agent.prompt("on").await.unwrap().text, "back");
        harness.shutdown().await.unwrap();
        assert!(playhouse_stores::verify(image.path(), |_| ()).unwrap().is_whole());
    }

    #[tokio::test]
    async fn persistence_31_an_exact_session_is_made_resumed_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let run = |args: &[&str]| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_playhouse"));
            let ended = command.args(args).current_dir(dir.path()).output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (ended.status.code(), text(ended.stdout), text(ended.stderr))
        };
        let go = ["run", "--session", "exact", "go"];
        assert_eq!(run(&go).0, Some(0));
        let made = run(&["sessions", "show", "exact", "--format", "jsonl"]).1;
        assert_eq!(run(&go).0, Some(0));
        let resumed = run(&["sessions", "show", "exact", "--format", "jsonl"]).1;
        assert!(resumed.starts_with(&made) && resumed.len() > made.len());

        // Somewhere in the first events, which are long synced.
        let segment = dir.path().join(".playhouse/journal/0000000000000001.segment");
        let mut bytes = std::fs::read(&segment).unwrap();
        bytes[400] ^= 1;
        std::fs::write(&segment, bytes).unwrap();
        let sessions = run(&["sessions", "list"]).1.lines().count();
        for _ in 0..2 {
            let (code, _, error) = run(&go);
            assert_eq!(code, Some(2), "{error}");
            assert!(error.contains("`exact` is damaged"), "{error}");
        }
        assert_eq!(run(&["sessions", "list"]).1.lines().count(), sessions, "nothing was made");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_under_relaxed_costs_no_event_that_was_written() {
    for kind in on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (harness, _) = on(open(kind, dir.path()).await, [Reply::text("done")]).await;
        let options = rig::options().durability(playhouse::Durability::Relaxed);
        let agent = harness.create(rig::with(options).id("a")).await.unwrap();
        agent.prompt("go").await.unwrap();
        let len = agent.session().log().len();
        let mut marks = agent.session().marks();
        soon(marks.wait_for(|marks| marks.written >= len)).await.unwrap();
        let (image, before) = (killed(dir.path()), spelled(&agent));
        harness.shutdown().await.unwrap();
        let (harness, _) = on(open(kind, image.path()).await, []).await;
        let agent = harness.resume("a", new()).await.unwrap();
        assert_eq!(spelled(&agent)[..before.len()], before, "{kind}");
        harness.shutdown().await.unwrap();
    }
}
