//! An orderly end loses nothing, whatever runs and however the store behaves.

use std::{path::Path, sync::Arc, time::Duration};

use playhouse::{
    Agent, AgentHandle, Durability, EventBody, Harness, SessionId, TurnEndReason,
    messages::{event::CancelCause, event::InboxTarget, invariants},
    models::scripted::{Reply, Script, ScriptedAdapter, When},
    plugin_api::{hook::Next, store::Store, tool::tool_fn},
    subagents::{ChildRequest, spawn},
};
use playhouse_stores::StoreKind;

use super::rig::{
    Pause, Watched, is_durable, new, on, on_disk, open, soon, spelled, stored, turn_ends, with,
};
use crate::lifecycle::rig::{self, Nothing};

/// Agents in the middle of all there is: streaming, in a tool, in a hook, with a child at work; each
/// with input that waits.
struct Fleet {
    harness: Harness,
    agents: Vec<Agent>,
}

impl Fleet {
    async fn start(store: Arc<dyn Store>, durability: Durability) -> Self {
        let builder = Harness::builder()
            .shared_store(store)
            .durability(durability)
            .grace(Duration::from_secs(5));
        let harness = builder.start().await.unwrap();
        let script = Script::new()
            .rule(When::default().user_contains("use the tool"), Reply::call("waits", "{}"))
            .reply(Reply::text("some words, and no end").at_gate("never"));
        let model = Arc::new(ScriptedAdapter::new(script));
        let _ = harness.world().models.register(["scripted"], model.clone()).unwrap();
        let (tool, hook) = (Pause::closed(), Pause::closed());
        let in_tool = tool.clone();
        let waits = tool_fn("waits", "Waits for a cancel.", move |_: Nothing, run| {
            let in_tool = in_tool.clone();
            async move {
                let cancel = run.cancel().clone();
                tokio::select! {
                    () = cancel.cancelled() => {}
                    () = in_tool.pass() => {}
                }
                Ok("stopped")
            }
        });
        harness.register_tool(Arc::new(waits)).unwrap();
        let in_hook = hook.clone();
        let pre_step = move |input: playhouse::plugin_api::points::PreStep, next: Next<_, _>| {
            let (in_hook, cancel) = (in_hook.clone(), input.cancel.clone());
            let held = input.agent.id().as_str() == "in-hook";
            async move {
                if held {
                    tokio::select! {
                        () = cancel.cancelled() => {}
                        () = in_hook.pass() => {}
                    }
                }
                next.run(input).await
            }
        };
        harness.world().hooks.pre_step.add(&harness.world().scope, pre_step).unwrap();

        let mut agents = Vec::new();
        for (id, prompt) in [
            ("streaming", "talk"),
            ("in-tool", "use the tool"),
            ("in-hook", "talk"),
            ("parent", "talk"),
        ] {
            let agent = harness.create(new().id(id)).await.unwrap();
            agent.followup(prompt).await.unwrap();
            agent.send("waits its turn", InboxTarget::NextTurn, false).await.unwrap();
            agents.push(agent.agent().clone());
        }
        let parent = agents.last().unwrap().clone();
        let child = spawn(harness.world(), ChildRequest::new(&parent, "talk")).await.unwrap();
        drop(child);
        soon(model.gate("never").arrived(3)).await;
        tool.arrived(1).await;
        hook.arrived(1).await;
        let child = harness.children(parent.id()).remove(0);
        agents.push(child);
        Self { harness, agents }
    }

    /// Every turn has its end, in the logs and in the store as the next process finds it.
    async fn assert_whole(&self, store: &dyn Store, what: &str) {
        for agent in &self.agents {
            let id = agent.id();
            assert_eq!(
                turn_ends(agent),
                [TurnEndReason::Aborted(CancelCause::Disposed)],
                "{what}, {id}"
            );
            assert!(is_durable(agent), "{what}, {id}: {:?}", *agent.session().marks().borrow());
            assert_eq!(stored(store, id).await, spelled(agent), "{what}, {id}");
            invariants::check(&agent.session().log()).unwrap();
        }
    }
}

async fn reopened(kind: StoreKind, dir: &Path) -> Arc<dyn Store> {
    open(kind, dir).await
}

mod scenario {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn persistence_69_a_shutdown_in_the_middle_of_turns_stores_their_ends() {
        for kind in on_disk() {
            for durability in [Durability::Strict, Durability::Relaxed, Durability::None] {
                let what = format!("{kind}, {durability:?}");
                let dir = tempfile::tempdir().unwrap();
                let fleet = Fleet::start(open(kind, dir.path()).await, durability).await;
                // Two who ask at once get one answer.
                let (one, two) = tokio::join!(fleet.harness.shutdown(), fleet.harness.shutdown());
                assert_eq!((one, two), (Ok(()), Ok(())), "{what}");
                let store = reopened(kind, dir.path()).await;
                fleet.assert_whole(&*store, &what).await;

                // Nothing to repair, and what waited still does.
                let mut next = Harness::builder().shared_store(store);
                for kind in playhouse::subagents::EVENT_KINDS {
                    next = next.event_kind(kind);
                }
                let (harness, _) = rig::with(next, []).await;
                for agent in &fleet.agents {
                    let before = spelled(agent);
                    let resumed = harness.resume(agent.id().clone(), new()).await.unwrap();
                    assert_eq!(spelled(&resumed)[..before.len()], before);
                    assert_eq!(resumed.session().log().len() as usize, before.len() + 1, "{what}");
                    let waits = usize::from(agent.depth() == 0);
                    assert_eq!(resumed.inbox().list(InboxTarget::NextTurn).len(), waits, "{what}");
                }
                harness.shutdown().await.unwrap();
            }
        }
    }
}

/// The harness's end is awaited until a slow store has synced everything.
#[tokio::test]
async fn a_shutdown_waits_for_a_slow_store() {
    let store = Watched::new();
    let (harness, model) = on(Arc::new(store.clone()), [Reply::text("x").at_gate("g")]).await;
    let agent = harness.create(new()).await.unwrap();
    agent.followup("go").await.unwrap();
    model.gate("g").arrived(1).await;
    store.state.flushes.hold();
    let ending = {
        let harness = harness.clone();
        tokio::spawn(async move { harness.shutdown().await })
    };
    store.state.flushes.reached().await;
    assert!(!ending.is_finished() && !is_durable(&agent));
    store.state.flushes.release();
    soon(ending).await.unwrap().unwrap();
    assert!(is_durable(&agent));
    assert_eq!(turn_ends(&agent).len(), 1);
    assert_eq!(stored(&store.inner.reopen(), agent.id()).await, spelled(&agent));
}

#[tokio::test]
async fn a_session_that_cannot_be_synced_is_told_and_costs_no_other() {
    let store = Watched::new();
    let replies = ["a", "b", "c"].map(|gate| Reply::text("x").at_gate(gate));
    let (harness, model) = on(Arc::new(store.clone()), replies).await;
    let mut agents: Vec<AgentHandle> = Vec::new();
    for id in ["a", "b", "c"] {
        let agent = harness.create(new().id(id)).await.unwrap();
        agent.followup("go").await.unwrap();
        model.gate(id).arrived(1).await;
        agents.push(agent);
    }
    let broken = SessionId::from("b");
    store.break_flush(move |id| *id == broken);
    let failure = soon(harness.shutdown()).await.unwrap_err();
    assert_eq!(failure.code, "STORE_IO");
    assert!(failure.message.contains("syncing b"), "{failure}");
    assert_eq!(harness.shutdown().await, Err(failure), "whoever asks later is told the same");
    for agent in &agents {
        assert_eq!(is_durable(agent), agent.id().as_str() != "b", "{}", agent.id());
        assert_eq!(turn_ends(agent).len(), 1);
        // It was written all the same.
        assert_eq!(stored(&store.inner.reopen(), agent.id()).await, spelled(agent));
    }
}

#[tokio::test]
async fn under_every_policy_a_disposal_syncs() {
    for durability in [Durability::Relaxed, Durability::None] {
        let store = Watched::new();
        let (harness, _) = on(Arc::new(store.clone()), [Reply::text("x")]).await;
        let agent = harness.create(with(rig::options().durability(durability))).await.unwrap();
        agent.prompt("go").await.unwrap();
        let before = store.diary().len();
        agent.dispose().await.unwrap();
        assert!(is_durable(&agent), "{durability:?}");
        assert!(store.diary()[before..].contains(&"close".to_owned()), "a close syncs");
        let log = agent.session().log();
        assert!(log.iter().any(|event| matches!(event.body, EventBody::TurnEnd(_))));
        harness.shutdown().await.unwrap();
    }
}
