//! Sessions over a store, whole lives of them. Of the reference's list `f3` and `f15` (a shared load
//! that a session overtakes) have nothing to stand on, as reads share nothing here; `f6` is about
//! forks; `f8` does not apply, a store is not exchanged under a live session; `f13` is
//! `core_130_of_two_creations_of_one_id_one_wins`; `f14` is `a20` of the stores' contract; `f16` is
//! `a_damaged_event_is_named_and_nothing_is_made_of_the_rest`.

use std::sync::Arc;

use playhouse::{
    Agent, Harness, NewAgent, NewEvent, SessionId,
    messages::{event::SharedEvent, header::SessionHeader},
    models::scripted::Reply,
    plugin_api::store::{EventBatch, Store, StoreReader},
};
use playhouse_stores::{JournalReader, JournalStore, JournalStoreConfig, MemoryStore};
use serde_json::json;

use crate::lifecycle::rig::{self, Gated, Pause, kinds, soon, stored_kinds};

fn new() -> NewAgent {
    NewAgent::new(rig::options())
}

fn note(text: &str) -> NewEvent {
    NewEvent::custom("x/note", json!({"text": text})).ignorable()
}

async fn on_disk(dir: &std::path::Path) -> Arc<JournalStore> {
    Arc::new(JournalStore::open(dir, JournalStoreConfig::default()).await.unwrap())
}

/// How a program opens a session that is to have this very id.
async fn open(harness: &Harness, id: &str) -> Result<Agent, String> {
    match harness.resume(id, new()).await {
        Ok(agent) => Ok((*agent).clone()),
        Err(error) if error.code() == "SESSION_NOT_FOUND" => {
            let made = harness.create(new().id(id)).await;
            made.map(|agent| (*agent).clone()).map_err(|error| error.code().to_owned())
        }
        Err(error) => Err(error.code().to_owned()),
    }
}

#[tokio::test]
async fn f1_a_session_that_was_driven_is_the_one_that_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let (harness, _) = rig::on(on_disk(dir.path()).await, [Reply::text("hi")]).await;
    let agent = harness.create(new().id("s").cwd("/w")).await.unwrap();
    agent.prompt("hello").await.unwrap();
    agent.when_idle().await.unwrap();
    // Idle means durable: another process reads it already.
    rig::assert_stored_in(&JournalReader::open(dir.path()).await.unwrap(), &agent).await;
    harness.shutdown().await.unwrap();
    let reader = JournalReader::open(dir.path()).await.unwrap();
    rig::assert_stored_in(&reader, &agent).await;
    assert_eq!(reader.read(&"s".into()).await.unwrap().header, *agent.session().header());
}

#[tokio::test]
async fn f2_reading_a_session_in_the_middle_of_a_turn_closes_nothing() {
    let (harness, model, store) = rig::in_memory([Reply::text("hi").at_gate("answer")]).await;
    let agent = harness.create(new().id("s")).await.unwrap();
    agent.followup("hello").await.unwrap();
    model.gate("answer").arrived(1).await;
    let before = store.stat(agent.id()).await.unwrap().unwrap();
    for _ in 0..3 {
        let read = stored_kinds(&*store, agent.id()).await;
        assert_eq!(read.last().unwrap(), "request/context", "{read:?}");
        assert_eq!(read, kinds(&agent));
    }
    // Nor may anybody repair it who could resume it otherwise.
    let (other, _) = rig::on(store.clone(), []).await;
    assert_eq!(other.resume("s", new()).await.unwrap_err().code(), "SESSION_ALREADY_OWNED");
    assert_eq!(store.stat(agent.id()).await.unwrap().unwrap(), before);
    model.gate("answer").open();
    soon(agent.when_idle()).await.unwrap();
    assert_eq!(kinds(&agent).iter().filter(|kind| *kind == "turn/end").count(), 1);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn f4_and_f11_a_session_that_did_nothing_is_in_nobody_s_store() {
    let dir = tempfile::tempdir().unwrap();
    let (harness, _) = rig::on(on_disk(dir.path()).await, [Reply::text("hi")]).await;
    for _ in 0..2 {
        // The id is free again each time.
        let agent = harness.create(new().id("s")).await.unwrap();
        let reader = JournalReader::open(dir.path()).await.unwrap();
        assert_eq!(reader.stat(agent.id()).await.unwrap(), None);
        agent.dispose().await.unwrap();
    }
    harness.shutdown().await.unwrap();
    let reader = JournalReader::open(dir.path()).await.unwrap();
    assert_eq!(reader.stat(&"s".into()).await.unwrap(), None);
}

#[tokio::test]
async fn f5_lineage_and_depth_come_back() {
    let (harness, _, store) = rig::in_memory([]).await;
    let parent = harness.create(new().id("parent").cwd("/w")).await.unwrap();
    let child = harness.create(new().id("child").delegated_by(&parent)).await.unwrap();
    let header = child.session().header().clone();
    assert_eq!(header.delegation_depth, Some(1));
    child.session().append(note("kept")).await.unwrap();
    harness.shutdown().await.unwrap();
    assert_eq!(store.reopen().read(&"child".into()).await.unwrap().header, header);
    let (harness, _) = rig::on(Arc::new(store.reopen()), []).await;
    let again = harness.resume("child", new()).await.unwrap();
    assert_eq!(*again.session().header(), header);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn f7_a_resumed_session_goes_on_behind_one_marker() {
    let (harness, _, store) = rig::in_memory([Reply::text("one")]).await;
    let agent = harness.create(new().id("s")).await.unwrap();
    agent.prompt("go").await.unwrap();
    harness.shutdown().await.unwrap();
    let first = kinds(&agent);
    let store = store.reopen();
    let (harness, _) = rig::on(Arc::new(store.clone()), [Reply::text("two")]).await;
    let agent = harness.resume("s", new()).await.unwrap();
    agent.session().flush().await.unwrap();
    let stored = store.stat(agent.id()).await.unwrap();
    agent.session().flush().await.unwrap();
    assert_eq!(store.stat(agent.id()).await.unwrap(), stored, "a flush of nothing");
    agent.prompt("on").await.unwrap();
    let all = stored_kinds(&store, agent.id()).await;
    assert_eq!((&all[..first.len()], &*all[first.len()]), (&first[..], "session/end-seed"));
    assert_eq!(all.iter().filter(|kind| *kind == "session/end-seed").count(), 1);
    rig::assert_stored(&store, &agent).await;
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn f9_and_f10_an_id_that_is_stored_is_not_made_again_wherever() {
    let (harness, _, store) = rig::in_memory([Reply::text("one")]).await;
    let agent = harness.create(new().id("s").cwd("/w")).await.unwrap();
    agent.prompt("go").await.unwrap();
    harness.shutdown().await.unwrap();
    let before = store.reopen().read(&"s".into()).await.unwrap();
    let (harness, _) = rig::on(Arc::new(store.reopen()), []).await;
    let seed: Vec<SharedEvent> = agent.session().log().iter().cloned().collect();
    for other in [new(), new().cwd("/w"), new().cwd("/elsewhere"), new().cwd("/w").seed(seed)] {
        let refused = harness.create(other.id("s")).await.unwrap_err();
        assert_eq!(refused.code(), "SESSION_ALREADY_EXISTS");
    }
    let after = store.reopen().read(&"s".into()).await.unwrap();
    assert_eq!((after.header, after.events), (before.header, before.events));
    harness.shutdown().await.unwrap();
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn persistence_28_what_a_session_is_made_with_is_stored_once_and_without_a_gap() {
        let (harness, _, store) = rig::in_memory([Reply::text("one")]).await;
        let first = harness.create(new().id("first")).await.unwrap();
        first.prompt("go").await.unwrap();
        let seed: Vec<SharedEvent> = first.session().log().iter().cloned().collect();
        let with_setup = new().id("second").seed(seed.clone()).set_up(|agent| async move {
            agent.session().append(note("from setup")).await.unwrap();
            Ok(())
        });
        let second = harness.create(with_setup).await.unwrap();
        let mut expected = rig::kinds_of(&seed);
        expected.extend(["session/end-seed", "x/note"].map(str::to_owned));
        second.session().flush().await.unwrap();
        assert_eq!(stored_kinds(&*store, second.id()).await, expected);
        second.session().append(note("live")).await.unwrap();
        second.session().flush().await.unwrap();
        rig::assert_stored(&*store, &second).await;
        assert!(store.read(second.id()).await.unwrap().log().is_ok());
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_31_an_exact_id_is_made_or_resumed_and_never_made_over_damage() {
        let (harness, _, store) = rig::in_memory([Reply::text("one")]).await;
        let made = open(&harness, "s").await.unwrap();
        made.prompt("go").await.unwrap();
        harness.shutdown().await.unwrap();
        let (harness, _) = rig::on(Arc::new(store.reopen()), []).await;
        let resumed = open(&harness, "s").await.unwrap();
        assert!(kinds(&resumed).len() > kinds(&made).len());
        harness.shutdown().await.unwrap();

        store.damage(&"s".into(), 2, "damaged".into());
        let (harness, _) = rig::on(Arc::new(store.reopen()), []).await;
        for _ in 0..2 {
            assert_eq!(open(&harness, "s").await.unwrap_err(), "STORE_CORRUPT");
        }
        let refused = harness.create(new().id("s")).await.unwrap_err();
        assert_eq!(refused.code(), "SESSION_ALREADY_EXISTS");
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_32_f12_an_id_is_taken_until_its_last_owner_has_drained() {
        let store = Gated::new(MemoryStore::new(), Pause::opened());
        let (harness, _) = rig::on(store.clone(), [Reply::text("one"), Reply::text("two")]).await;
        let agent = harness.create(new().id("s")).await.unwrap();
        agent.prompt("go").await.unwrap();
        agent.session().append(note("last words")).await.unwrap();
        store.hold();
        let leaving = {
            let agent = agent.agent().clone();
            tokio::spawn(async move { playhouse::AgentHandle::new(agent).dispose().await })
        };
        // It is under way once its token has fired.
        agent.cell().token().cancelled().await;
        for _ in 0..3 {
            let taken = harness.create(new().id("s")).await.unwrap_err();
            assert_eq!(taken.code(), "SESSION_ALREADY_EXISTS");
            let taken = store.inner.open_write(&"s".into()).await.err().unwrap();
            assert_eq!(taken.code(), "SESSION_ALREADY_OWNED");
        }
        store.release();
        soon(leaving).await.unwrap().unwrap();
        let next = harness.resume("s", new()).await.unwrap();
        // The old one's retirement took nothing from the new one.
        drop(agent);
        let taken = store.inner.open_write(&"s".into()).await.err().unwrap();
        assert_eq!(taken.code(), "SESSION_ALREADY_OWNED");
        next.prompt("on").await.unwrap();
        rig::assert_stored(&store.inner, &next).await;
        harness.shutdown().await.unwrap();
    }
}

/// Kept by whoever reads and writes without an agent.
#[tokio::test]
async fn f14_events_appended_without_an_agent_are_resumed_like_any() {
    let store = MemoryStore::new();
    let header = Arc::new(SessionHeader::new(SessionId::from("s"), 1));
    let writer = store.create(&header, 0).await.unwrap();
    let text = r#"{"type":"x/note","seq":0,"time":1,"data":{},"ignorable":true}"#;
    writer.append(EventBatch { first_seq: 0, events: vec![text.into()] }).await.unwrap();
    writer.close().await.unwrap();
    let (harness, _) = rig::on(Arc::new(store.reopen()), [Reply::text("hi")]).await;
    let agent = harness.resume("s", new()).await.unwrap();
    assert_eq!(kinds(&agent), ["x/note", "session/end-seed"]);
    agent.prompt("go").await.unwrap();
    rig::assert_stored(&store, &agent).await;
    harness.shutdown().await.unwrap();
}
