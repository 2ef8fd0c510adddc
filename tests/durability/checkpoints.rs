//! When a log is durable under each policy, and what a failed checkpoint keeps from happening.

use std::sync::Arc;

use futures::FutureExt;
use playhouse::{
    AgentHandle, AgentOptions, CancelCause, Durability, Harness, TurnEndReason,
    messages::{chunk::StreamChunk, frame::Frame},
    models::scripted::{Chunking, Fault, FaultKind, Reply, ScriptedAdapter},
    plugin_api::{
        hook::Next,
        store::StoreReader,
        tool::{ToolCallRequest, tool_fn},
    },
};

use super::rig::{
    self, Pause, Watched, is_durable, killed, new, on, on_disk, open, soon, spelled, stored,
    stubborn_tool, turn_ends, with,
};
use crate::lifecycle::rig::Nothing;

async fn house(
    store: &Watched,
    replies: impl IntoIterator<Item = Reply>,
) -> (Harness, Arc<ScriptedAdapter>) {
    on(Arc::new(store.clone()), replies).await
}

fn under(durability: Durability) -> AgentOptions {
    rig::options().durability(durability)
}

/// Does this to the store right before the checkpoint of a request.
fn before_requests(harness: &Harness, store: &Watched, act: fn(&Watched)) {
    let store = store.clone();
    let run = move |input, next: Next<_, _>| {
        act(&store);
        next.run(input)
    };
    harness.world().hooks.request.add(&harness.world().scope, run).unwrap();
}

/// A turn of two steps with one tool call, and what the flushes came after.
async fn turn_with_a_tool(agent_options: AgentOptions) -> (AgentHandle, Vec<String>, Harness) {
    let store = Watched::new();
    let (harness, _) = house(&store, [Reply::call("work", "{}"), Reply::text("done")]).await;
    harness.register_tool(stubborn_tool("work", Pause::opened())).unwrap();
    let agent = harness.create(with(agent_options)).await.unwrap();
    agent.prompt("go").await.unwrap();
    agent.when_idle().await.unwrap();
    (agent, store.flushes(), harness)
}

/// The text that was shown so far.
fn text_of(frame: Frame) -> String {
    let Frame::Chunks { chunks, .. } = frame else { return String::new() };
    let texts = chunks.into_iter().filter_map(|timed| match timed.chunk {
        StreamChunk::TextDelta { text, .. } => Some(text.to_string()),
        _ => None,
    });
    texts.collect()
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn persistence_70_the_stream_is_not_begun_before_the_flush_has_ended() {
        let store = Watched::new();
        let (harness, model) = house(&store, [Reply::text("hi")]).await;
        before_requests(&harness, &store, |store| store.state.flushes.hold());
        let agent = harness.create(new()).await.unwrap();
        let id = agent.followup("go").await.unwrap();
        store.state.flushes.reached().await;
        assert_eq!(store.flushes().last().unwrap(), "request/context");
        assert!(model.captured().is_empty());
        store.state.flushes.release();
        assert_eq!(soon(agent.outcome(&id, 0)).await.unwrap().text, "hi");
        assert_eq!(model.captured().len(), 1);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_71_a_failed_flush_fails_the_request_closed_and_loses_nothing() {
        let store = Watched::new();
        let (harness, model) = house(&store, [Reply::text("later")]).await;
        let added = store.clone();
        before_requests(&harness, &store, |store| store.break_flush(|_| true));
        let agent = harness.create(new()).await.unwrap();
        let outcome = soon(agent.prompt("go")).await.unwrap();
        let TurnEndReason::Error(failure) = outcome.reason else { panic!("{outcome:?}") };
        assert_eq!(failure.code, "STORE_IO");
        assert!(model.captured().is_empty(), "the adapter was called");
        agent.when_idle().await.unwrap();
        assert!(!is_durable(&agent));
        added.heal();
        assert!(agent.session().flush().await.unwrap());
        assert!(is_durable(&agent));
        assert_eq!(stored(&store.inner, agent.id()).await, spelled(&agent));
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_72_a_cancel_during_the_tools_checkpoint_keeps_its_body_from_running() {
        let store = Watched::new();
        let (harness, _) = house(&store, [Reply::call("work", "{}")]).await;
        let body = Pause::opened();
        harness.register_tool(stubborn_tool("work", body.clone())).unwrap();
        let held = store.clone();
        let pre = move |call, next: Next<_, _>| {
            held.state.flushes.hold();
            next.run(call)
        };
        let world = harness.world();
        world.tools.hooks().pre.add(&world.scope, pre).unwrap();
        let agent = harness.create(new()).await.unwrap();
        agent.followup("go").await.unwrap();
        store.state.flushes.reached().await;
        assert_eq!(store.flushes().last().unwrap(), "tool/call");
        agent.cancel(CancelCause::User);
        store.state.flushes.release();
        soon(agent.when_idle()).await.unwrap();
        let trace = playhouse::testing::trace(&agent.session().log());
        assert_eq!(trace.matches("TR").count(), 1, "{trace}");
        assert!(trace.contains("TC(work) TR!(ABORTED_BEFORE_DISPATCH) SE1.1"), "{trace}");
        assert_eq!(body.count(), 0);
        assert_eq!(turn_ends(&agent), [TurnEndReason::Aborted(CancelCause::User)]);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_73_a_call_within_a_call_is_covered_by_the_outer_checkpoint() {
        let mut counts = Vec::new();
        for nested in [false, true] {
            let store = Watched::new();
            let (harness, _) = house(&store, [Reply::call("outer", "{}"), Reply::text("ok")]).await;
            let inner = Pause::opened();
            harness.register_tool(stubborn_tool("inner", inner.clone())).unwrap();
            let tools = harness.world().tools.clone();
            let ids = harness.world().ids.clone();
            let outer = tool_fn("outer", "Calls.", move |_: Nothing, run| {
                let (tools, ids) = (tools.clone(), ids.clone());
                async move {
                    if nested {
                        let request = ToolCallRequest {
                            call_id: "within".into(),
                            root_call_id: Some(run.call_id().clone()),
                            name: "inner".to_owned(),
                            arguments: serde_json::json!({}),
                            agent: run.agent().cloned(),
                            scope: run.scope().clone(),
                            at: run.call().at(),
                            cancel: run.cancel().clone(),
                            ids: Arc::new(move || ids.message()),
                            checkpoint: None,
                        };
                        tools.execute_one(request).await;
                    }
                    Ok("done")
                }
            });
            harness.register_tool(Arc::new(outer)).unwrap();
            let agent = harness.create(new()).await.unwrap();
            agent.prompt("go").await.unwrap();
            agent.when_idle().await.unwrap();
            assert_eq!(inner.count(), usize::from(nested));
            counts.push(store.flushes().len());
            harness.shutdown().await.unwrap();
        }
        assert_eq!(counts[0], counts[1]);
    }

    /// With `Strict` idle means durable, over the scenario; it is what `Relaxed` says.
    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_74_after_a_relaxed_turn_a_flush_makes_its_end_durable() {
        for kind in on_disk() {
            let dir = tempfile::tempdir().unwrap();
            let (harness, _) = on(open(kind, dir.path()).await, [Reply::text("done")]).await;
            let agent = harness.create(with(under(Durability::Relaxed)).id("a")).await.unwrap();
            agent.prompt("go").await.unwrap();
            agent.when_idle().await.unwrap();
            assert!(!is_durable(&agent), "{kind}: nobody has asked for it");
            agent.session().flush().await.unwrap();
            assert!(is_durable(&agent), "{kind}");
            let (image, log) = (killed(dir.path()), spelled(&agent));
            harness.shutdown().await.unwrap();
            let store = open(kind, image.path()).await;
            assert_eq!(stored(&*store, agent.id()).await, log, "{kind}");
            store.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn strict_flushes_at_its_five_places_and_idle_means_durable() {
    let (agent, flushes, harness) = turn_with_a_tool(under(Durability::Strict)).await;
    let places = [
        "agent/inbox/spliced", // the claim: before the first step
        "request/context",     // before the request
        "tool/call",           // before the body
        "step/end",            // before the second step
        "step/start",          // before its request, which needs no new header
        "turn/end",            // before idle
    ];
    assert_eq!(flushes, places);
    assert!(is_durable(&agent));
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn relaxed_and_none_await_no_flush() {
    for durability in [Durability::Relaxed, Durability::None] {
        let (agent, flushes, harness) = turn_with_a_tool(under(durability)).await;
        assert!(flushes.is_empty(), "{durability:?}: {flushes:?}");
        assert_eq!(agent.session().marks().borrow().durable, 0);
        harness.shutdown().await.unwrap();
        assert_eq!(turn_ends(&agent), [TurnEndReason::Completed]);
    }
}

#[tokio::test]
async fn an_agents_own_policy_overrules_the_harnesss() {
    let store = Watched::new();
    let builder = Harness::builder().store(store.clone()).durability(Durability::None);
    let (harness, _) = crate::lifecycle::rig::with(builder, []).await;
    let agent = harness.create(new()).await.unwrap();
    assert_eq!(agent.durability(), Durability::None);
    let agent = harness.create(with(under(Durability::Strict))).await.unwrap();
    assert_eq!(agent.durability(), Durability::Strict);
    harness.shutdown().await.unwrap();
    assert_eq!("relaxed".parse(), Ok(Durability::Relaxed));
    let unknown = "lax".parse::<Durability>().unwrap_err();
    assert_eq!(unknown.to_string(), "no durability \"lax\"; there are strict, relaxed and none");
}

#[tokio::test]
async fn a_failed_flush_after_the_turns_end_is_told_and_the_log_kept() {
    let store = Watched::new();
    let (harness, _) = house(&store, [Reply::text("done")]).await;
    let breaks = store.clone();
    let stopping = move |_| {
        breaks.break_flush(|_| true);
        async { Ok(()) }
    };
    harness.world().hooks.turn_stopping.add(&harness.world().scope, stopping).unwrap();
    let agent = harness.create(new()).await.unwrap();
    let mut errors = agent.errors();
    let outcome = agent.prompt("go").await.unwrap();
    assert_eq!(outcome.reason, TurnEndReason::Completed);
    soon(agent.when_idle()).await.unwrap();
    let fault = soon(errors.recv()).await.unwrap();
    assert_eq!((&*fault.failure.code, fault.turn), ("STORE_IO", 1));
    assert!(!is_durable(&agent));
    store.heal();
    agent.session().flush().await.unwrap();
    assert!(is_durable(&agent));
    assert_eq!(stored(&store.inner, agent.id()).await, spelled(&agent));
    harness.shutdown().await.unwrap();
}

/// Streams the beginning of a text while no tail can be written: gives what is shown meanwhile, and
/// how many tails were asked for.
async fn shown_while_tails_wait(durability: Durability) -> (String, usize) {
    let store = Watched::new();
    store.state.tails.hold();
    let stall = Fault::new(FaultKind::Stall).after(2);
    let reply = Reply::text("one two three").chunked(Chunking::Words).with_fault(stall);
    let (harness, _) = house(&store, [reply]).await;
    let agent = harness.create(with(under(durability))).await.unwrap();
    let mut frames = agent.session().frames();
    agent.followup("go").await.unwrap();
    let mut shown = String::new();
    if durability == Durability::Strict {
        store.state.tails.reached().await;
        while let Some(frame) = frames.next().now_or_never().flatten() {
            shown += &text_of(frame);
        }
    } else {
        while shown != "one two " {
            shown += &text_of(soon(frames.next()).await.unwrap());
        }
    }
    if durability == Durability::Relaxed {
        store.state.tails.reached().await;
    }
    store.state.tails.release();
    agent.cancel(CancelCause::User);
    soon(agent.when_idle()).await.unwrap();
    harness.shutdown().await.unwrap();
    (shown, store.diary().iter().filter(|entry| **entry == "tail").count())
}

#[tokio::test]
async fn strict_writes_before_it_shows_relaxed_right_behind_and_none_not_at_all() {
    let (shown, tails) = shown_while_tails_wait(Durability::Strict).await;
    assert!(shown.is_empty() && tails > 0, "{shown:?}, {tails} tails");
    let (shown, tails) = shown_while_tails_wait(Durability::Relaxed).await;
    assert!(shown == "one two " && tails > 0, "{shown:?}, {tails} tails");
    let (shown, tails) = shown_while_tails_wait(Durability::None).await;
    assert!(shown == "one two " && tails == 0, "{shown:?}, {tails} tails");
}

#[tokio::test]
async fn after_a_kill_what_was_shown_is_kept_by_strict_and_relaxed_and_not_by_none() {
    for durability in [Durability::Strict, Durability::Relaxed, Durability::None] {
        let store = Watched::new();
        let stall = Fault::new(FaultKind::Stall).after(2);
        let reply = Reply::text("one two three").chunked(Chunking::Words).with_fault(stall);
        let (harness, _) = house(&store, [reply]).await;
        let agent = harness.create(with(under(durability)).id("a")).await.unwrap();
        let mut frames = agent.session().frames();
        agent.followup("go").await.unwrap();
        let mut shown = String::new();
        while shown != "one two " {
            shown += &text_of(soon(frames.next()).await.unwrap());
        }
        let kept = async {
            loop {
                let stored = store.inner.read(agent.id()).await.unwrap();
                let parts = stored.tail.iter().flat_map(|tail| &tail.parts);
                let bytes: Vec<u8> = parts.flat_map(|part| part.to_vec()).collect();
                let text = String::from_utf8(bytes).unwrap();
                if durability == Durability::None || text.contains("two") {
                    return text;
                }
                // Relaxed writes right behind.
                tokio::task::yield_now().await;
            }
        };
        let kept = soon(kept).await;
        assert_eq!(kept.contains("one"), durability != Durability::None, "{durability:?}: {kept}");
        harness.shutdown().await.unwrap();
    }
}
