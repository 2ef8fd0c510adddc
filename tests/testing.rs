//! The testing kit, tested.

use playhouse::{
    TurnEndReason,
    models::scripted::{Reply, Script},
    plugin_api::store::{StoreError, StoreReader},
    testing::{FaultyStore, Stage, StoreOp, Victim},
};
use playhouse_stores::MemoryStore;

#[tokio::test]
async fn two_stages_with_one_script_have_the_same_log() {
    let mut logs = Vec::new();
    for _ in 0..2 {
        let stage = Stage::new(Script::sequence([Reply::text("Hello.")])).await.unwrap();
        stage.agent().prompt("Hi").await.unwrap();
        stage.agent().when_idle().await.unwrap();
        let log = stage.agent().session().log();
        logs.push(log.iter().map(|event| event.to_json()).collect::<Vec<_>>());
        stage.shutdown().await.unwrap();
    }
    assert_eq!(logs[0], logs[1]);
}

#[tokio::test]
async fn every_victim_comes_back() {
    let script = Script::sequence([Reply::text("one"), Reply::text("two")]);
    let store = MemoryStore::new();
    let stage = Stage::minimal(script).harness(|h| h.store(store)).start().await.unwrap();
    stage.agent().prompt("Hi").await.unwrap();
    stage.agent().when_idle().await.unwrap();
    let provider = Victim::Provider("scripted".to_owned());
    for victim in [Victim::Agent, Victim::Session, Victim::Writer, Victim::Supervisor, provider] {
        assert!(stage.kill(stage.agent(), victim.clone()).await, "{victim:?}");
    }
    assert_eq!(stage.agent().prompt("Still there?").await.unwrap().text, "two");
    stage.shutdown().await.unwrap();
    assert!(!stage.kill(stage.agent(), Victim::Agent).await, "nobody is left to kill");
}

#[tokio::test]
async fn a_store_fails_as_often_as_it_is_told_to() {
    let store = FaultyStore::new(MemoryStore::new());
    let script = Script::sequence([Reply::text("one")]);
    let shared = store.clone();
    let stage = Stage::minimal(script).harness(|h| h.store(shared)).start().await.unwrap();
    store.fail(StoreOp::Flush, 1, StoreError::Full { path: "/disk".to_owned() });
    let failed = stage.agent().prompt("Hi").await.unwrap();
    assert!(
        matches!(&failed.reason, TurnEndReason::Error(failure) if failure.code == "STORE_FULL"),
        "{:?}",
        failed.reason
    );
    assert_eq!(store.struck(StoreOp::Flush), 1);
    assert_eq!(stage.agent().prompt("And now?").await.unwrap().text, "one");
    store.fail(StoreOp::Read, 5, StoreError::Closed);
    assert_eq!(store.read(stage.agent().id()).await.unwrap_err(), StoreError::Closed);
    store.heal();
    assert!(store.read(stage.agent().id()).await.is_ok());
    stage.shutdown().await.unwrap();
}
