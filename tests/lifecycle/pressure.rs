//! Back-pressure: a store that is stuck or failing makes senders wait, and nothing else.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use playhouse::{
    AgentHandle, CancelCause, Durability, Harness, NewAgent, NewEvent, TurnEndReason,
    models::scripted::Reply,
};
use playhouse_stores::MemoryStore;
use serde_json::json;
use tokio::task::JoinSet;

use super::rig::{self, Gated, Pause, soon};

const LIMIT: u64 = 20_000;
const TEXT: usize = 1_000;
const SENDERS: u64 = 8;
const EACH: u64 = 12;
const POLICIES: [Durability; 3] = [Durability::Strict, Durability::Relaxed, Durability::None];

async fn stage(durability: Durability) -> (Harness, Arc<Gated>, AgentHandle) {
    let store = Gated::new(MemoryStore::new(), Pause::opened());
    let builder = Harness::builder().shared_store(store.clone()).undurable_bytes(LIMIT);
    let (harness, _) = rig::with(builder, (0..300).map(|_| Reply::text("ok"))).await;
    let options = rig::options().durability(durability);
    let agent = harness.create(NewAgent::new(options)).await.unwrap();
    (harness, store, agent)
}

/// Sends from all sides; the set ends when all was accepted.
fn send(agent: &AgentHandle) -> JoinSet<()> {
    let mut senders = JoinSet::new();
    for _ in 0..SENDERS {
        let agent = (**agent).clone();
        senders.spawn(async move {
            for _ in 0..EACH {
                agent.followup("x".repeat(TEXT)).await.unwrap();
            }
        });
    }
    senders
}

/// Lets everything happen that can: the clock stands still until nothing else is left to do.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_stuck_store_makes_senders_wait_and_a_cancel_does_not() {
    for durability in POLICIES {
        let (harness, store, agent) = stage(durability).await;
        settle().await;
        store.state.appending.close();
        let mut senders = send(&agent);
        settle().await;
        let held = harness.world().undurable.bytes();
        // Each sender is past the mark by its own message, and the turn by what it was at.
        let bound = LIMIT + (SENDERS + 4) * (TEXT as u64 + 1_000);
        assert!(held > LIMIT && held < bound, "{durability:?}: {held}");
        assert!(senders.try_join_next().is_none(), "{durability:?}");
        // Minutes change nothing.
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(harness.world().undurable.bytes(), held, "{durability:?}");
        assert!(agent.session().is_behind());
        agent.cancel(CancelCause::User);
        settle().await;
        let aborted = |reason: &TurnEndReason| *reason == TurnEndReason::Aborted(CancelCause::User);
        assert!(rig::turn_ends(&agent).iter().any(aborted), "{durability:?}");
        store.state.appending.open();
        while let Some(sent) = soon(senders.join_next()).await {
            sent.unwrap();
        }
        soon(agent.when_idle()).await.unwrap();
        agent.session().flush().await.unwrap();
        assert_eq!(harness.world().undurable.bytes(), 0, "{durability:?}");
        rig::assert_stored(&store.inner, &agent).await;
        harness.shutdown().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_failing_store_goes_on_by_itself_when_it_works_again() {
    for durability in POLICIES {
        let (harness, store, agent) = stage(durability).await;
        let other = harness.create(NewAgent::new(rig::options())).await.unwrap();
        settle().await;
        store.state.fail_append.store(true, Ordering::SeqCst);
        let note = |n: u64| {
            let data = json!({"n": n, "text": "x".repeat(TEXT)});
            NewEvent::custom("x/note", data).ignorable()
        };
        let session = agent.session().clone();
        let mut waiting = JoinSet::new();
        waiting.spawn(async move {
            for n in 0..60 {
                session.append(note(n)).await.unwrap();
            }
        });
        settle().await;
        assert!(waiting.try_join_next().is_none(), "{durability:?}");
        let appended = agent.session().log().len();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(agent.session().log().len(), appended, "{durability:?}");
        // Whose own log is durable is nobody's burden.
        assert!(!other.session().is_behind(), "{durability:?}");
        store.state.fail_append.store(false, Ordering::SeqCst);
        soon(waiting.join_next()).await.unwrap().unwrap();
        assert!(harness.world().undurable.bytes() <= LIMIT + 2 * TEXT as u64, "{durability:?}");
        harness.shutdown().await.unwrap();
        rig::assert_stored(&store.inner, &agent).await;
    }
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_that_never_sync_do_not_keep_others_waiting() {
    let (harness, _, busy) = stage(Durability::None).await;
    let mut idle = Vec::new();
    for _ in 0..30 {
        let options = rig::options().durability(Durability::None);
        let agent = harness.create(NewAgent::new(options)).await.unwrap();
        let note = NewEvent::custom("x/note", json!({"text": "x".repeat(TEXT)})).ignorable();
        agent.session().append(note).await.unwrap();
        idle.push(agent);
    }
    soon(busy.prompt("go")).await.unwrap();
    soon(busy.prompt("on")).await.unwrap();
    settle().await;
    let held = harness.world().undurable.bytes();
    assert!(held <= LIMIT, "those who hold it were asked to sync: {held}");
    harness.shutdown().await.unwrap();
    assert_eq!(harness.world().undurable.bytes(), 0);
}
