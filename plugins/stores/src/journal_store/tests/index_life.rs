//! The index may fail, or be held, at any time; the store goes on.

use super::*;

#[tokio::test]
async fn an_index_that_fails_while_the_store_is_open_costs_only_time() {
    for breaks_at in ["read", "list", "append", "value", "seal"] {
        let dir = tempfile::tempdir().unwrap();
        let store = JournalStore::open(dir.path(), small()).await.unwrap();
        for n in 0..3 {
            let writer = store.create(&header(&format!("s{n}")), 0).await.unwrap();
            writer.append(batch(0, 10)).await.unwrap();
        }
        store.put_value("k", Bytes::from_static(b"v")).await.unwrap();
        store.delete(&"s2".into()).await.unwrap();
        store.close().await.unwrap();
        drop(store);
        let store = JournalStore::open(dir.path(), small()).await.unwrap();
        let (writer, _) = store.open_write(&"s0".into()).await.unwrap();
        let index = store.office.core.ledger().index.clone().expect("it was closed cleanly");
        index.break_it();
        drop(index);
        match breaks_at {
            "list" => assert_eq!(store.list(ListQuery::default()).await.unwrap().sessions.len(), 2),
            "append" => writer.append(batch(10, 1)).await.unwrap(),
            "value" => drop(store.get_value("k").await.unwrap()),
            "seal" => {
                for turn in 0..40 {
                    writer.append(batch(10 + turn * 20, 20)).await.unwrap();
                }
            }
            _ => {}
        }
        let events = store.read(&"s1".into()).await.unwrap().events;
        assert_eq!(events, texts(0, 10), "{breaks_at}");
        let next = store.stat(&"s0".into()).await.unwrap().unwrap().event_count;
        writer.append(batch(next, 5)).await.unwrap();
        assert!(store.office.core.ledger().index.is_none(), "{breaks_at}");
        assert_eq!(store.read(&"s0".into()).await.unwrap().events, texts(0, next + 5));
        assert_eq!(store.get_value("k").await, Ok(Some(Bytes::from_static(b"v"))));
        assert_eq!(store.list(ListQuery::default()).await.unwrap().sessions.len(), 2);
        store.close().await.unwrap();
        drop(store);
        let store = JournalStore::open(dir.path(), small()).await.unwrap();
        assert!(store.office.core.ledger().index.is_some(), "{breaks_at}");
        assert_eq!(store.read(&"s0".into()).await.unwrap().events, texts(0, next + 5));
        assert_eq!(store.list(ListQuery::default()).await.unwrap().sessions.len(), 2);
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn an_index_that_is_held_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = JournalStore::open(dir.path(), small()).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 3)).await.unwrap();
    // As a read does that has not ended when the store is closed.
    let held = store.office.core.ledger().index.clone();
    store.close().await.unwrap();
    for events in [3, 4] {
        let store = JournalStore::open(dir.path(), small()).await.unwrap();
        assert!(store.office.core.ledger().index.is_none());
        let (writer, session) = store.open_write(&"s".into()).await.unwrap();
        assert_eq!(session.events, texts(0, events));
        writer.append(batch(events, 1)).await.unwrap();
        store.close().await.unwrap();
    }
    drop(held);
    let store = JournalStore::open(dir.path(), small()).await.unwrap();
    assert!(store.office.core.ledger().index.is_some());
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 5));
    assert!(!dir.path().join("index.damaged-1").exists());
    store.close().await.unwrap();
}
