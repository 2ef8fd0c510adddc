//! A store that takes what it is told and never answers again: whoever ends gets an end all the same,
//! and is told that nothing is promised of it.

use std::{sync::Arc, time::Duration};

use playhouse::{
    Harness,
    testing::{FaultyStore, StoreOp},
};
use playhouse_stores::MemoryStore;

use super::rig::{is_durable, new, on, spelled, stored};
use playhouse::models::scripted::Reply;

/// Longer than any test lives.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A harness with an agent that has had a turn, and the store under it.
async fn played() -> (MemoryStore, FaultyStore, Harness, playhouse::AgentHandle) {
    let inner = MemoryStore::new();
    let store = FaultyStore::new(inner.clone());
    let (harness, _) = on(Arc::new(store.clone()), [Reply::text("a"), Reply::text("b")]).await;
    let agent = harness.create(new()).await.unwrap();
    agent.prompt("go").await.unwrap();
    (inner, store, harness, agent)
}

#[tokio::test(start_paused = true)]
async fn a_disposal_over_a_close_that_never_answers_ends_and_says_so() {
    let (_, store, harness, agent) = played().await;
    store.delay(StoreOp::Close, usize::MAX, FOR_EVER);
    let failure = agent.dispose().await.unwrap_err();
    assert_eq!(failure.code, "STORE_TIMEOUT");
    assert!(failure.message.contains("may not be durable"), "{failure}");
    assert!(failure.message.contains(agent.id().as_str()), "{failure}");
    assert!(harness.agent(agent.id()).is_none() && harness.agents().is_empty());
    // The store's own end hangs too.
    let failure = harness.shutdown().await.unwrap_err();
    assert_eq!(failure.code, "STORE_TIMEOUT");
    assert_eq!(harness.shutdown().await, Err(failure), "whoever asks later is told the same");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_in_a_turn_over_a_store_that_never_syncs_ends_and_promises_nothing() {
    let (inner, store, harness, agent) = played().await;
    for op in [StoreOp::Append, StoreOp::Flush, StoreOp::Close] {
        store.delay(op, usize::MAX, FOR_EVER);
    }
    agent.followup("again").await.unwrap();
    let failure = harness.shutdown().await.unwrap_err();
    assert!(failure.to_string().contains("STORE_TIMEOUT"), "{failure}");
    assert!(harness.agents().is_empty());
    assert!(!is_durable(&agent), "{:?}", *agent.session().marks().borrow());
    // What the store did without an answer is a prefix of what was accepted.
    let there = stored(&inner.reopen(), agent.id()).await;
    assert_eq!(there, spelled(&agent)[..there.len()]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_within_patience_is_waited_for() {
    let (inner, store, harness, agent) = played().await;
    store.delay(StoreOp::Close, usize::MAX, Duration::from_secs(4));
    agent.dispose().await.unwrap();
    assert!(is_durable(&agent));
    harness.shutdown().await.unwrap();
    assert_eq!(stored(&inner.reopen(), agent.id()).await, spelled(&agent));
}
