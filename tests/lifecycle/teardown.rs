use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use playhouse::{
    Agent, CancelCause, EventBody, Harness, NewAgent, NewEvent, Status, TurnEndReason,
    messages::event::InboxTarget,
    models::scripted::Reply,
    plugin_api::{
        agent::Disposal,
        store::{Store, StoreError},
    },
    testing::{FaultyStore, StoreOp},
};
use playhouse_stores::{JournalStore, JournalStoreConfig, MemoryStore};
use ractor::{ActorCell, ActorStatus};
use serde_json::json;

use super::rig::{self, Diary, Gated, Pause, kinds, soon, stubborn_tool, turn_ends};

fn new(id: &str) -> NewAgent {
    NewAgent::new(rig::options()).id(id)
}

const DISPOSED: TurnEndReason = TurnEndReason::Aborted(CancelCause::Disposed);

/// All actors of an agent that live now.
fn actors(agent: &Agent) -> Vec<ActorCell> {
    let session = agent.session().cell();
    vec![
        agent.cell().supervisor.live().unwrap().get_cell(),
        agent.cell().actor.live().unwrap().get_cell(),
        session.appender.live().unwrap().get_cell(),
        session.writer.live().unwrap().get_cell(),
    ]
}

fn assert_gone(harness: &Harness, agent: &Agent) {
    assert!(harness.agent(agent.id()).is_none());
    assert!(agent.cell().supervisor.is_closed() && agent.cell().actor.is_closed());
    let session = agent.session().cell();
    assert!(session.appender.is_closed() && session.writer.is_closed());
    assert_eq!(*agent.cell().disposal().borrow(), Disposal::Disposed);
    assert!(!agent.scope().is_open());
}

async fn assert_stopped(actors: Vec<ActorCell>) {
    for actor in actors {
        soon(actor.wait(None)).await.unwrap();
        assert_eq!(actor.get_status(), ActorStatus::Stopped);
    }
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn core_141_a_disposal_in_a_turn_ends_in_order_and_is_shared() {
        let store = Gated::new(MemoryStore::new(), Pause::opened());
        let answer = Reply::text("never finished").at_gate("answer");
        let (harness, model) = rig::on(store.clone(), [answer]).await;
        let agent = harness.create(new("a")).await.unwrap();
        let diary = store.state.diary.clone();
        let note = diary.clone();
        agent.scope().on_close(move || note.note("scope closed")).unwrap();
        let note = diary.clone();
        let scope = &harness.world().scope;
        harness.world().hooks.disposed.add(scope, move |_| note.note("disposed")).unwrap();
        let note = diary.clone();
        let status = move |change: &playhouse::plugin_api::points::StatusChange| {
            note.note(format!("{:?}", change.status));
        };
        harness.world().hooks.status.add(scope, status).unwrap();
        agent.followup("go").await.unwrap();
        agent.followup("queued").await.unwrap();
        model.gate("answer").arrived(1).await;
        let living = actors(&agent);
        let (first, second, third) =
            soon(async { tokio::join!(agent.dispose(), agent.dispose(), agent.dispose()) }).await;
        assert_eq!((first, second, third), (Ok(()), Ok(()), Ok(())));
        let order = ["Running", "Idle", "scope closed", "handle closed", "disposed"];
        assert_eq!(diary.read(), order);
        assert_eq!(turn_ends(&agent), [DISPOSED]);
        assert!(agent.inbox().is_empty());
        assert_eq!(kinds(&agent).last().unwrap(), "turn/end");
        rig::assert_stored(&store.inner, &agent).await;
        assert_gone(&harness, &agent);
        assert_stopped(living).await;
        assert_eq!(agent.dispose().await, Ok(()));
        assert_eq!(diary.read().len(), 5);
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_142_a_run_that_the_idle_transition_asks_for_does_not_outlive_the_disposal() {
        let (harness, model, store) = rig::in_memory([Reply::text("x").at_gate("answer")]).await;
        let agent = harness.create(new("a")).await.unwrap();
        let again = agent.agent().clone();
        let sent = Pause::closed();
        let done = sent.clone();
        let listener = move |change: &playhouse::plugin_api::points::StatusChange| {
            if change.status == Status::Idle {
                let (again, done) = (again.clone(), done.clone());
                tokio::spawn(async move {
                    let _ = again.followup("once more").await;
                    done.open();
                    done.pass().await;
                });
            }
        };
        harness.world().hooks.status.add(agent.scope(), listener).unwrap();
        agent.followup("go").await.unwrap();
        model.gate("answer").arrived(1).await;
        soon(agent.dispose()).await.unwrap();
        sent.arrived(1).await;
        assert_eq!(turn_ends(&agent), [DISPOSED]);
        assert_eq!(model.captured().len(), 1);
        rig::assert_stored(&*store, &agent).await;
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_143_newest_63_a_handle_that_does_not_close_is_reported_and_all_else_is_released()
    {
        let store = Gated::new(MemoryStore::new(), Pause::opened());
        let (harness, _) = rig::on(store.clone(), [Reply::text("ok"), Reply::text("ok")]).await;
        let agent = harness.create(new("a")).await.unwrap();
        agent.prompt("go").await.unwrap();
        store.state.fail_close.store(true, Ordering::SeqCst);
        let (first, second) = tokio::join!(agent.dispose(), agent.dispose());
        assert_eq!(first.clone().unwrap_err().code, "STORE_IO");
        assert_eq!(first, second);
        assert_gone(&harness, &agent);
        store.state.fail_close.store(false, Ordering::SeqCst);
        // The claim was given back all the same.
        let agent = harness.resume("a", new("a")).await.unwrap();
        assert_eq!(agent.prompt("go").await.unwrap().text, "ok");
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn core_144_observers_that_panic_change_nothing() {
        let mut logs = Vec::new();
        for panics in [false, true] {
            let replies = [Reply::text("one"), Reply::error("SERVER", "down"), Reply::text("x")];
            let (harness, _, store) = rig::in_memory(replies).await;
            let hooks = &harness.world().hooks;
            let scope = &harness.world().scope;
            let told = Diary::default();
            macro_rules! observe {
                ($point:expr) => {{
                    let note = told.clone();
                    let observer = move |_: &_| {
                        note.note(stringify!($point));
                        assert!(!panics, "an observer's own fault");
                    };
                    $point.add(scope, observer).unwrap();
                }};
            }
            observe!(hooks.status);
            observe!(hooks.error);
            observe!(hooks.disposed);
            let agent = harness.create(new("a")).await.unwrap();
            assert_eq!(agent.prompt("one").await.unwrap().text, "one");
            let failed = agent.prompt("two").await.unwrap();
            assert!(matches!(failed.reason, TurnEndReason::Error(_)));
            assert_eq!(agent.prompt("three").await.unwrap().text, "x");
            agent.when_idle().await.unwrap();
            agent.dispose().await.unwrap();
            assert_eq!(told.read().len(), 6 + 1 + 1);
            rig::assert_stored(&*store, &agent).await;
            logs.push(kinds(&agent));
            harness.shutdown().await.unwrap();
        }
        assert_eq!(logs[0], logs[1]);
    }

    #[tokio::test]
    async fn core_78_a_wake_after_the_disposal_began_is_parked_and_never_run() {
        let (harness, _, store) = rig::in_memory([Reply::call("hang", "{}")]).await;
        let pause = Pause::closed();
        harness.register_tool(stubborn_tool("hang", pause.clone())).unwrap();
        let agent = harness.create(new("a")).await.unwrap();
        agent.followup("go").await.unwrap();
        pause.arrived(1).await;
        let disposing = {
            let agent = agent.clone();
            tokio::spawn(async move { agent.dispose().await })
        };
        let mut disposal = agent.cell().disposal();
        disposal.wait_for(|state| *state != Disposal::Live).await.unwrap();
        agent.cell().token().cancelled().await;
        let late = agent.followup("late").await.unwrap();
        pause.open();
        soon(disposing).await.unwrap().unwrap();
        assert_eq!(turn_ends(&agent), [DISPOSED]);
        assert!(agent.inbox().contains(&late));
        assert_eq!(agent.outcome(&late, 0).await.unwrap_err().code(), "DISPOSED");
        rig::assert_stored(&*store, &agent).await;
        harness.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_tool_that_ignores_its_abort_is_awaited_for_the_grace_time_only() {
    let store = Arc::new(MemoryStore::new());
    let builder = Harness::builder().shared_store(store.clone()).grace(Duration::from_millis(50));
    let (harness, _) = rig::with(builder, [Reply::call("hang", "{}").and_call("hang", "{}")]).await;
    let pause = Pause::closed();
    harness.register_tool(stubborn_tool("hang", pause.clone())).unwrap();
    let agent = harness.create(new("a")).await.unwrap();
    agent.followup("go").await.unwrap();
    pause.arrived(1).await;
    soon(agent.dispose()).await.unwrap();
    let log = agent.session().log();
    let codes = log.iter().filter_map(|event| match &event.body {
        EventBody::ToolResult(result) => result.error.clone().map(|error| error.code),
        _ => None,
    });
    let codes: Vec<_> = codes.collect();
    assert_eq!(codes, ["TOOL_OUTCOME_UNKNOWN", "ABORTED_BEFORE_DISPATCH"]);
    assert_eq!(turn_ends(&agent), [DISPOSED]);
    rig::assert_stored(&*store, &agent).await;
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_disposal_clears_the_inbox_or_keeps_it_as_told() {
    for keep in [false, true] {
        let (harness, model, store) = rig::in_memory([Reply::text("x").at_gate("answer")]).await;
        let agent = harness.create(new("a")).await.unwrap();
        agent.followup("running").await.unwrap();
        model.gate("answer").arrived(1).await;
        agent.followup("queued").await.unwrap();
        agent.inject("context").await.unwrap();
        if keep {
            agent.dispose_keeping_inbox().await.unwrap();
        } else {
            agent.dispose().await.unwrap();
        }
        let pending = if keep { 2 } else { 0 };
        assert_eq!(agent.inbox().len(), pending);
        assert_eq!(turn_ends(&agent), [DISPOSED]);
        rig::assert_stored(&*store, &agent).await;
        let agent = harness.resume("a", new("a")).await.unwrap();
        assert_eq!(agent.inbox().len(), pending);
        harness.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn events_that_a_broken_store_did_not_take_fail_the_disposal() {
    let store = Gated::new(MemoryStore::new(), Pause::opened());
    let (harness, _) = rig::on(store.clone(), [Reply::text("ok")]).await;
    let agent = harness.create(new("a")).await.unwrap();
    agent.prompt("go").await.unwrap();
    agent.when_idle().await.unwrap();
    store.state.fail_append.store(true, Ordering::SeqCst);
    agent.inject("lost").await.unwrap();
    let failure = soon(agent.dispose_keeping_inbox()).await.unwrap_err();
    assert_eq!(failure.code, "STORE_IO");
    assert_gone(&harness, &agent);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_agent_killed_while_it_is_disposed_starts_no_further_turn() {
    let (harness, model, store) = rig::in_memory([Reply::call("hang", "{}")]).await;
    let pause = Pause::closed();
    harness.register_tool(stubborn_tool("hang", pause.clone())).unwrap();
    let agent = harness.create(new("a")).await.unwrap();
    agent.followup("go").await.unwrap();
    pause.arrived(1).await;
    agent.followup("queued").await.unwrap();
    let disposing = {
        let agent = agent.clone();
        tokio::spawn(async move { agent.dispose_keeping_inbox().await })
    };
    agent.cell().token().cancelled().await;
    // The cancel has been handled when this is answered.
    agent.inject("context").await.unwrap();
    agent.cell().actor.live().unwrap().kill();
    soon(disposing).await.unwrap().unwrap();
    assert_eq!(turn_ends(&agent), [TurnEndReason::Interrupted]);
    assert_eq!(agent.inbox().list(InboxTarget::NextTurn).len(), 1);
    assert_eq!(model.captured().len(), 1);
    rig::assert_stored(&*store, &agent).await;
    harness.shutdown().await.unwrap();
}

/// Three agents in the middle of things: one answers, one runs a tool, one has queued input.
async fn shut_down_mid_turn(store: Arc<dyn Store>) -> Vec<(Agent, usize)> {
    let replies = [Reply::text("never").at_gate("answer"), Reply::call("hang", "{}")];
    let builder = Harness::builder().shared_store(store).grace(Duration::from_millis(50));
    let (harness, model) = rig::with(builder, replies).await;
    let pause = Pause::closed();
    harness.register_tool(stubborn_tool("hang", pause.clone())).unwrap();
    let mut agents = Vec::new();
    for id in ["answers", "works", "waits"] {
        agents.push(harness.create(new(id)).await.unwrap());
    }
    let mut waiters = Vec::new();
    let ask = |agent: &Agent, text: &'static str| {
        let agent = agent.clone();
        tokio::spawn(async move { agent.prompt(text).await })
    };
    waiters.push(ask(&agents[0], "go"));
    model.gate("answer").arrived(1).await;
    waiters.push(ask(&agents[1], "go"));
    pause.arrived(1).await;
    waiters.push(ask(&agents[1], "queued"));
    agents[2].send("parked", InboxTarget::NextTurn, false).await.unwrap();
    let mut log = agents[1].session().events(0);
    let mut spliced = 0;
    while spliced < 3 {
        spliced += usize::from(soon(log.next()).await.body.kind() == "agent/inbox/spliced");
    }
    let idle: Vec<_> = agents
        .iter()
        .map(|agent| {
            let agent = agent.clone();
            tokio::spawn(async move { agent.when_idle().await })
        })
        .collect();
    let living: Vec<_> = agents.iter().flat_map(|agent| actors(agent)).collect();
    soon(harness.shutdown()).await.unwrap();
    assert_eq!(*harness.watch().borrow(), playhouse::HarnessState::Down);

    let outcomes: Vec<_> = soon(futures::future::join_all(waiters)).await;
    let mut ends = outcomes.into_iter().map(|outcome| outcome.unwrap());
    assert_eq!(ends.next().unwrap().unwrap().reason, DISPOSED);
    assert_eq!(ends.next().unwrap().unwrap().reason, DISPOSED);
    assert_eq!(ends.next().unwrap().unwrap_err().code(), "DISPOSED");
    for idle in soon(futures::future::join_all(idle)).await {
        // Either it was idle before its end, or is gone.
        assert!(idle.unwrap().is_ok_and(|()| true) || agents[0].cell().actor.is_closed());
    }
    assert!(harness.agents().is_empty());
    for agent in &agents {
        assert_gone(&harness, agent);
    }
    assert_stopped(living).await;
    assert_eq!(turn_ends(&agents[0]), [DISPOSED]);
    assert_eq!(turn_ends(&agents[1]), [DISPOSED]);
    assert!(turn_ends(&agents[2]).is_empty());
    let agents = agents.iter().map(|agent| (agent.agent().clone(), agent.inbox().len()));
    agents.collect()
}

#[tokio::test]
async fn a_shutdown_in_the_middle_of_turns_leaves_durable_logs_and_nobody_waiting() {
    let memory = MemoryStore::new();
    for (agent, pending) in shut_down_mid_turn(Arc::new(memory.clone())).await {
        rig::assert_stored(&memory.reopen(), &agent).await;
        assert_eq!(pending, usize::from(agent.id().as_str() != "answers"));
    }
    let dir = tempfile::tempdir().unwrap();
    let open = || JournalStore::open(dir.path(), JournalStoreConfig::default());
    let agents = shut_down_mid_turn(Arc::new(open().await.unwrap())).await;
    let reopened = open().await.unwrap();
    for (agent, _) in agents {
        rig::assert_stored(&reopened, &agent).await;
    }
    reopened.close().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_gives_up_the_creations_that_are_under_way() {
    let store = Gated::new(MemoryStore::new(), Pause::opened());
    let (harness, _) = rig::on(store.clone(), []).await;
    let pause = Pause::closed();
    let held = pause.clone();
    let setup = move |_| {
        let held = held.clone();
        async move {
            held.pass().await;
            Ok(())
        }
    };
    let creation = {
        let harness = harness.clone();
        tokio::spawn(async move { harness.create(new("a").set_up(setup)).await })
    };
    pause.arrived(1).await;
    soon(harness.shutdown()).await.unwrap();
    assert_eq!(soon(creation).await.unwrap().unwrap_err().code(), "SHUTTING_DOWN");
    assert_eq!(*store.state.closed.borrow(), 1);
}

#[tokio::test]
async fn a_shutdown_goes_on_when_nobody_waits_for_it_any_more() {
    let (harness, _, store) = rig::in_memory([Reply::call("hang", "{}")]).await;
    let pause = Pause::closed();
    harness.register_tool(stubborn_tool("hang", pause.clone())).unwrap();
    let agent = harness.create(new("a")).await.unwrap();
    agent.followup("go").await.unwrap();
    pause.arrived(1).await;
    let first = {
        let harness = harness.clone();
        tokio::spawn(async move { harness.shutdown().await })
    };
    agent.cell().token().cancelled().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    pause.open();
    soon(harness.shutdown()).await.unwrap();
    assert_eq!(*harness.watch().borrow(), playhouse::HarnessState::Down);
    rig::assert_stored(&store.reopen(), &agent).await;
    assert_eq!(turn_ends(&agent), [DISPOSED]);
}

#[tokio::test]
async fn whoever_disposes_late_is_told_the_same_end() {
    let store = FaultyStore::new(MemoryStore::new());
    let (harness, _) = rig::with(Harness::builder().store(store.clone()), []).await;
    let agent = harness.create(new("a")).await.unwrap();
    agent.session().append(NewEvent::custom("note", json!({})).ignorable()).await.unwrap();
    store.fail(StoreOp::Close, 1, StoreError::Full { path: "/disk".into() });
    let first = soon(agent.dispose()).await.unwrap_err();
    assert_eq!(first.code, "STORE_FULL");
    assert_eq!(soon(agent.dispose()).await.unwrap_err(), first);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_streams_of_a_disposed_agent_end() {
    let (harness, _, _) = rig::in_memory([Reply::text("x")]).await;
    let agent = harness.create(new("a")).await.unwrap();
    let mut frames = agent.session().frames();
    agent.prompt("go").await.unwrap();
    agent.dispose().await.unwrap();
    let mut seen = 0;
    // Somebody still holds the agent, whose log can be read for as long.
    while soon(frames.next()).await.is_some() {
        seen += 1;
    }
    assert!(seen >= 3);
    assert!(soon(agent.session().frames().next()).await.is_none());
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_tool_that_disposes_its_own_agent_does_not_hang() {
    let store = Arc::new(MemoryStore::new());
    let builder = Harness::builder().shared_store(store.clone()).grace(Duration::from_millis(50));
    let (harness, _) = rig::with(builder, [Reply::call("end_it", "{}")]).await;
    let end_it = playhouse::tool_fn("end_it", "", |_: rig::Nothing, run: playhouse::ToolRun| {
        let agent = run.agent().cloned();
        async move {
            let agent = playhouse::AgentHandle::new(agent.ok_or("no agent")?);
            agent.dispose().await.map_err(playhouse::ToolError::from)?;
            Ok("unreachable")
        }
    });
    harness.register_tool(Arc::new(end_it)).unwrap();
    let agent = harness.create(new("a")).await.unwrap();
    let outcome = soon(agent.prompt("go")).await.unwrap();
    assert_eq!(outcome.reason, DISPOSED);
    soon(agent.dispose()).await.unwrap();
    assert_gone(&harness, &agent);
    rig::assert_stored(&*store, &agent).await;
    harness.shutdown().await.unwrap();
}
