use playhouse::{
    CancelCause, EventBody, Harness, NewAgent, Recovery, Status, TurnEndReason,
    messages::{
        chunk::StreamChunk,
        event::StepAt,
        frame::{Frame, FrameOutcome},
        repair::ABORTED_BEFORE_DISPATCH_TEXT,
    },
    models::scripted::{Chunking, Fault, FaultKind, Reply},
    plugin_api::hook::Next,
};

use super::rig::{self, Pause, kinds, soon, stubborn_tool, turn_ends, user_texts};

fn new() -> NewAgent {
    NewAgent::new(rig::options())
}

pub fn text_of(chunk: &StreamChunk) -> Option<&str> {
    match chunk {
        StreamChunk::TextDelta { text, .. } => Some(text),
        _ => None,
    }
}

fn stalls(text: &str, after: usize) -> Reply {
    Reply::text(text).with_fault(Fault::new(FaultKind::Stall).after(after))
}

/// Waits until some text of an answer was shown, and returns it.
async fn shown(frames: &mut playhouse::plugin_api::feed::Frames) -> String {
    loop {
        if let Some(Frame::Chunks { chunks, .. }) = soon(frames.next()).await {
            let text: String = chunks.iter().filter_map(|timed| text_of(&timed.chunk)).collect();
            if !text.is_empty() {
                return text;
            }
        }
    }
}

#[tokio::test]
async fn a_slow_reader_misses_no_event_over_restarts_of_the_session() {
    let gated = |n: usize| Reply::text(format!("answer {n}")).at_gate(format!("gate {n}"));
    let (harness, model, store) = rig::in_memory((0..4).map(gated)).await;
    let agent = harness.create(new()).await.unwrap();
    let mut slow = agent.session().events(0);
    let follower = {
        let mut events = agent.session().events(0);
        tokio::spawn(async move {
            let mut seqs = Vec::new();
            let mut ends = 0;
            while ends < 4 {
                let event = events.next().await;
                ends += usize::from(matches!(event.body, EventBody::TurnEnd(_)));
                seqs.push(event.seq);
            }
            seqs
        })
    };
    for n in 0..4 {
        let id = agent.followup(format!("prompt {n}")).await.unwrap();
        let gate = model.gate(&format!("gate {n}"));
        gate.arrived(1).await;
        agent.session().cell().appender.live().unwrap().kill();
        gate.open();
        let outcome = soon(agent.outcome(&id, 0)).await.unwrap();
        assert_eq!(outcome.text, format!("answer {n}"));
    }
    agent.when_idle().await.unwrap();
    let len = agent.session().log().len();
    assert_eq!(soon(follower).await.unwrap(), (0..len).collect::<Vec<_>>());
    // The slow one reads on from where it stood.
    for seq in 0..len {
        assert_eq!(slow.try_next().unwrap().seq, seq);
    }
    assert!(slow.try_next().is_none());
    rig::assert_stored(&*store, &agent).await;
    harness.shutdown().await.unwrap();
}

fn fails_after_a_word() -> Reply {
    Reply::text("Half of it").with_fault(Fault::new(FaultKind::Error).after(1))
}

#[tokio::test]
async fn a_late_reader_is_caught_up_with_in_one_frame() {
    let (harness, model, _) = rig::in_memory([stalls("one two three four five", 4)]).await;
    let agent = harness.create(new()).await.unwrap();
    let mut early = agent.session().frames();
    agent.followup("go").await.unwrap();
    let mut whole = String::new();
    while whole != "one two three four " {
        whole += &shown(&mut early).await;
    }
    let mut late = agent.session().frames();
    assert!(matches!(soon(late.next()).await, Some(Frame::Start { .. })));
    let Some(Frame::Chunks { index: 0, chunks, .. }) = soon(late.next()).await else { panic!() };
    let text: String = chunks.iter().filter_map(|timed| text_of(&timed.chunk)).collect();
    assert_eq!(text, whole);
    agent.cancel(CancelCause::User);
    let Some(Frame::End { outcome, .. }) = soon(late.next()).await else { panic!() };
    assert!(
        matches!(outcome, FrameOutcome::Committed { event_type, .. } if event_type == "assistant/message")
    );
    assert_eq!(model.captured().len(), 1);
    harness.shutdown().await.unwrap();
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn core_56_each_attempt_has_one_start_its_chunks_in_order_and_one_end() {
        let replies = [
            fails_after_a_word(),
            Reply::text("Two words more than that").chunked(Chunking::Words),
            Reply::text("A second turn"),
        ];
        let (harness, _, _) = rig::in_memory(replies).await;
        let agent = harness.create(new()).await.unwrap();
        let retry = |_, _: Next<_, _>| async { Ok(Recovery::Retry) };
        harness.world().hooks.request_error.add(agent.scope(), retry).unwrap();
        let mut frames = agent.session().frames();
        let reader = tokio::spawn(async move {
            let mut attempts: Vec<(String, StepAt, String, FrameOutcome)> = Vec::new();
            let mut open: Option<(String, StepAt, String, u64)> = None;
            while attempts.len() < 3 {
                match frames.next().await.unwrap() {
                    Frame::Start { attempt_id, at } => {
                        assert!(open.is_none(), "no start before the end");
                        open = Some((attempt_id, at, String::new(), 0));
                    }
                    Frame::Chunks { attempt_id, index, chunks } => {
                        let (id, _, text, count) = open.as_mut().unwrap();
                        assert_eq!((&attempt_id, index), (&*id, *count));
                        *count += chunks.len() as u64;
                        text.extend(chunks.iter().filter_map(|timed| text_of(&timed.chunk)));
                    }
                    Frame::End { attempt_id, index, outcome } => {
                        let (id, at, text, count) = open.take().unwrap();
                        assert_eq!((attempt_id, index), (id.clone(), count));
                        attempts.push((id, at, text, outcome));
                    }
                }
            }
            attempts
        });
        agent.prompt("go").await.unwrap();
        agent.when_idle().await.unwrap();
        agent.prompt("more").await.unwrap();
        let attempts = soon(reader).await.unwrap();
        let ids: Vec<_> = attempts.iter().map(|(id, ..)| id.clone()).collect();
        assert_eq!(ids, [1, 2, 3].map(|n| format!("{}:{n}", agent.id())));
        let at: Vec<_> = attempts.iter().map(|(_, at, ..)| (at.turn, at.step)).collect();
        assert_eq!(at, [(1, 1), (1, 1), (2, 1)]);
        let texts: Vec<_> = attempts.iter().map(|(_, _, text, _)| text.as_str()).collect();
        assert_eq!(texts, ["Half ", "Two words more than that", "A second turn"]);
        let log = agent.session().log();
        for ((_, _, _, outcome), kind) in
            attempts.iter().zip(["assistant/attempt", "assistant/message", "assistant/message"])
        {
            let FrameOutcome::Committed { event_type, seq } = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(event_type, kind);
            assert_eq!(log.get(*seq).unwrap().body.kind(), kind);
        }
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_146_maintenance_holds_turns_back_and_a_cancel_reaches_it() {
        let (harness, _, _) = rig::in_memory([Reply::text("after")]).await;
        let agent = harness.create(new()).await.unwrap();
        let inner = agent.agent().clone();
        let busy = agent.run_maintenance(|token| async move {
            assert_eq!(inner.run_maintenance(|_| async {}).await.unwrap_err().code(), "AGENT_BUSY");
            let dropped = inner.followup("dropped").await.unwrap();
            inner.cancel(CancelCause::User);
            token.cancelled().await;
            let kept = inner.followup("kept").await.unwrap();
            assert_eq!(inner.status(), Status::Idle);
            (dropped, kept)
        });
        let (dropped, kept) = soon(busy).await.unwrap();
        assert_eq!(soon(agent.outcome(&kept, 0)).await.unwrap().text, "after");
        assert_eq!(agent.outcome(&dropped, 0).await.unwrap_err().code(), "MESSAGE_CANCELED");
        assert_eq!(user_texts(&agent), ["kept"]);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_65_newest_43_a_cancel_keeps_what_was_shown_and_the_next_request_tells_it() {
        let replies = [stalls("The answer is forty and", 3), Reply::text("two")];
        let (harness, model, _) = rig::in_memory(replies).await;
        let agent = harness.create(new()).await.unwrap();
        let mut frames = agent.session().frames();
        let id = agent.followup("what?").await.unwrap();
        let shown = shown(&mut frames).await;
        agent.cancel(CancelCause::User);
        let outcome = soon(agent.outcome(&id, 0)).await.unwrap();
        assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
        let log = kinds(&agent);
        assert_eq!(log[log.len() - 3..], ["assistant/message", "step/end", "turn/end"]);
        agent.prompt("go on").await.unwrap();
        let texts: Vec<_> = model.captured()[1].messages.iter().map(|m| m.text()).collect();
        assert_eq!((texts.len(), texts[0].as_str(), texts[2].as_str()), (3, "what?", "go on"));
        assert!(texts[1].starts_with(&shown) && "The answer is ".starts_with(&texts[1]));
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_9_steering_during_a_tool_joins_the_next_step_of_the_turn() {
        let replies = [Reply::call("work", "{}"), Reply::text("adjusted")];
        let (harness, model, _) = rig::in_memory(replies).await;
        let pause = Pause::closed();
        harness.register_tool(stubborn_tool("work", pause.clone())).unwrap();
        let agent = harness.create(new()).await.unwrap();
        let id = agent.followup("go").await.unwrap();
        pause.arrived(1).await;
        agent.steer("the other way").await.unwrap();
        pause.open();
        assert_eq!(soon(agent.outcome(&id, 0)).await.unwrap().text, "adjusted");
        assert_eq!(turn_ends(&agent), [TurnEndReason::Completed]);
        let log = kinds(&agent);
        let boundary =
            ["tool/result", "step/end", "agent/inbox/spliced", "step/start", "user/message"];
        assert!(log.windows(5).any(|window| window == boundary), "{log:?}");
        let last = model.captured()[1].messages.last().unwrap().text();
        assert_eq!(last, "the other way");
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_73_a_followup_after_a_cancel_runs_a_turn_of_its_own() {
        let replies = [Reply::call("work", "{}"), Reply::text("b"), Reply::text("c")];
        let (harness, _, _) = rig::in_memory(replies).await;
        let pause = Pause::closed();
        harness.register_tool(stubborn_tool("work", pause.clone())).unwrap();
        let agent = harness.create(new()).await.unwrap();
        agent.followup("A").await.unwrap();
        pause.arrived(1).await;
        agent.followup("B").await.unwrap();
        agent.cancel_with(CancelCause::User, true);
        let c = agent.followup("C").await.unwrap();
        pause.open();
        assert_eq!(soon(agent.outcome(&c, 0)).await.unwrap().text, "c");
        assert_eq!(user_texts(&agent), ["A", "B", "C"]);
        let aborted = TurnEndReason::Aborted(CancelCause::User);
        let done = TurnEndReason::Completed;
        assert_eq!(turn_ends(&agent), [aborted, done.clone(), done]);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_71_and_72_a_cancel_drops_what_waits_unless_told_to_keep_it() {
        for keep in [false, true] {
            let replies =
                [stalls("never ends at all", 2), Reply::text("next"), Reply::text("last")];
            let (harness, model, _) = rig::in_memory(replies).await;
            let agent = harness.create(new()).await.unwrap();
            let mut frames = agent.session().frames();
            agent.followup("A").await.unwrap();
            agent.followup("B").await.unwrap();
            shown(&mut frames).await;
            agent.cancel_with(CancelCause::User, keep);
            soon(agent.when_idle()).await.unwrap();
            assert_eq!(agent.inbox().len(), usize::from(keep));
            assert_eq!((model.captured().len(), agent.status()), (1, Status::Idle));
            agent.prompt("C").await.unwrap();
            let expected: &[&str] = if keep { &["A", "B", "C"] } else { &["A", "C"] };
            assert_eq!(user_texts(&agent), expected);
            harness.shutdown().await.unwrap();
        }
    }

    #[tokio::test]
    async fn core_76_steering_after_a_cancel_is_a_turn_of_its_own() {
        let replies = [Reply::call("work", "{}"), Reply::text("steered")];
        let (harness, _, _) = rig::in_memory(replies).await;
        let pause = Pause::closed();
        harness.register_tool(stubborn_tool("work", pause.clone())).unwrap();
        let agent = harness.create(new()).await.unwrap();
        agent.followup("go").await.unwrap();
        pause.arrived(1).await;
        agent.cancel(CancelCause::User);
        let id = agent.steer("instead").await.unwrap();
        pause.open();
        let outcome = soon(agent.outcome(&id, 0)).await.unwrap();
        assert_eq!((outcome.text.as_str(), outcome.reason), ("steered", TurnEndReason::Completed));
        assert_eq!(turn_ends(&agent).len(), 2);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_79_the_first_cause_of_a_turn_wins_over_a_disposal() {
        let (harness, model, _) = rig::in_memory([Reply::text("x").at_gate("never")]).await;
        let agent = harness.create(new()).await.unwrap();
        agent.followup("go").await.unwrap();
        model.gate("never").arrived(1).await;
        agent.cancel(CancelCause::User);
        agent.cancel(CancelCause::Parent);
        soon(agent.dispose()).await.unwrap();
        assert_eq!(turn_ends(&agent), [TurnEndReason::Aborted(CancelCause::User)]);
        harness.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn after_a_cancel_amid_tools_every_call_has_a_result_that_the_next_request_tells() {
    let calls = Reply::call("work", "{}").and_call("work", "{}").and_call("work", "{}");
    let builder = Harness::builder().grace(std::time::Duration::from_millis(50));
    let (harness, model) = rig::with(builder, [calls, Reply::text("on")]).await;
    let pause = Pause::closed();
    harness.register_tool(stubborn_tool("work", pause.clone())).unwrap();
    let agent = harness.create(new()).await.unwrap();
    let id = agent.followup("go").await.unwrap();
    pause.arrived(1).await;
    // Once is as good as often.
    agent.cancel(CancelCause::User);
    agent.cancel(CancelCause::User);
    let aborted = TurnEndReason::Aborted(CancelCause::User);
    assert_eq!(soon(agent.outcome(&id, 0)).await.unwrap().reason, aborted);
    assert_eq!(agent.prompt("and?").await.unwrap().text, "on");
    let request = &model.captured()[1].messages;
    let asked: Vec<_> = request[1].tool_calls().map(|call| call.id.clone()).collect();
    let answered: Vec<_> =
        request.iter().filter_map(|message| message.tool_call_id.clone()).collect();
    assert_eq!((asked.len(), &asked), (3, &answered));
    let texts: Vec<_> = request[2..5].iter().map(|message| message.text()).collect();
    assert_ne!(texts[0], ABORTED_BEFORE_DISPATCH_TEXT);
    assert_eq!(texts[1..], [ABORTED_BEFORE_DISPATCH_TEXT, ABORTED_BEFORE_DISPATCH_TEXT]);
    assert_eq!(pause.count(), 1);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_store_that_fails_fails_the_turn_and_loses_nothing_once_it_works_again() {
    let store = rig::Gated::new(playhouse_stores::MemoryStore::new(), Pause::opened());
    let (harness, model) = rig::on(store.clone(), [Reply::text("one"), Reply::text("two")]).await;
    let agent = harness.create(new()).await.unwrap();
    let mut errors = agent.errors();
    agent.prompt("fine").await.unwrap();
    agent.when_idle().await.unwrap();
    store.state.fail_append.store(true, std::sync::atomic::Ordering::SeqCst);
    let failed = soon(agent.prompt("not sent")).await.unwrap();
    assert!(matches!(failed.reason, TurnEndReason::Error(failure) if failure.code == "STORE_IO"));
    soon(agent.when_idle()).await.unwrap();
    assert_eq!(soon(errors.recv()).await.unwrap().failure.code, "STORE_IO");
    // No request was sent that the log might forget.
    assert_eq!(model.captured().len(), 1);
    store.state.fail_append.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(soon(agent.prompt("again")).await.unwrap().text, "two");
    soon(agent.when_idle()).await.unwrap();
    rig::assert_stored(&store.inner, &agent).await;
    harness.shutdown().await.unwrap();
}
