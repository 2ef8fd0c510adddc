//! The testing kit, tested.

use playhouse::{
    TurnEndReason,
    models::scripted::{Reply, Script},
    plugin_api::store::{EventBatch, Store, StoreError, StoreReader},
    testing::{FaultyStore, Stage, StoreOp, Victim},
};
use playhouse_stores::MemoryStore;
use std::{sync::Arc, time::Duration};

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

#[tokio::test(start_paused = true)]
async fn a_store_fails_before_and_after_the_deed_and_takes_its_time() {
    let disk = MemoryStore::new();
    let store = FaultyStore::new(disk.clone());
    let header = Arc::new(playhouse::messages::header::SessionHeader::new("s".into(), 0));
    let writer = store.create(&header, 0).await.unwrap();
    let batch = |seq: u64| {
        let event = format!(r#"{{"type":"x/y","seq":{seq},"time":1,"data":{{}}}}"#);
        EventBatch { first_seq: seq, events: vec![event.into()] }
    };
    let stored = async || disk.read(&"s".into()).await.map_or(0, |stored| stored.events.len());
    store.fail(StoreOp::Append, 1, StoreError::Closed);
    assert_eq!(writer.append(batch(0)).await, Err(StoreError::Closed));
    assert_eq!(stored().await, 0, "nothing was done");
    store.fail_late(StoreOp::Append, 1, StoreError::Closed);
    assert_eq!(writer.append(batch(0)).await, Err(StoreError::Closed));
    assert_eq!(stored().await, 1, "it was done");
    writer.append(batch(0)).await.unwrap();
    assert_eq!(stored().await, 1, "sent again, it is the same");

    store.delay(StoreOp::Flush, 1, Duration::from_secs(7));
    let asked = tokio::time::Instant::now();
    writer.flush().await.unwrap();
    assert_eq!(asked.elapsed(), Duration::from_secs(7));

    store.fill(batch(1).len_bytes() as u64);
    store.fill(batch(1).len_bytes() as u64);
    writer.append(batch(1)).await.unwrap();
    let full = writer.append(batch(2)).await.unwrap_err();
    assert_eq!(full.code(), "STORE_FULL");
    writer.flush().await.unwrap();
    store.heal();
    writer.append(batch(2)).await.unwrap();
    store.fail(StoreOp::Close, 1, StoreError::Closed);
    assert_eq!(writer.close().await, Err(StoreError::Closed));
    assert!(disk.open_write(&"s".into()).await.is_ok(), "the claim is released all the same");
    assert_eq!((store.struck(StoreOp::Append), store.struck(StoreOp::Flush)), (3, 0));
}

#[tokio::test]
async fn an_agent_whose_disk_is_full_says_so_and_goes_on_once_there_is_room() {
    let store = FaultyStore::new(MemoryStore::new());
    let script = Script::sequence([Reply::text("one")]);
    let shared = store.clone();
    let stage = Stage::minimal(script).harness(|h| h.store(shared)).start().await.unwrap();
    store.fill(10);
    let failed = stage.agent().prompt("Hi").await.unwrap();
    assert!(
        matches!(&failed.reason, TurnEndReason::Error(failure) if failure.code == "STORE_FULL"),
        "{:?}",
        failed.reason
    );
    store.heal();
    assert_eq!(stage.agent().prompt("And now?").await.unwrap().text, "one");
    stage.shutdown().await.unwrap();
    let log = stage.agent().session().log();
    assert_eq!(store.read(stage.agent().id()).await.unwrap_err(), StoreError::Closed);
    assert!(log.len() > 10);
}
