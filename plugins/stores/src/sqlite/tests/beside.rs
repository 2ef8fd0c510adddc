//! Readers beside a store that is being written as fast as it goes.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_beside_a_live_store_sees_prefixes_and_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path()).await);
    let ended = Arc::new(AtomicBool::new(false));
    let (reading, path) = (Arc::clone(&ended), dir.path().to_path_buf());
    let reader = tokio::spawn(async move {
        let (mut views, mut seen) = (0, vec![0; 4]);
        let kept = SqliteReader::open(&path).await.unwrap();
        loop {
            let last = reading.load(Ordering::Acquire);
            let fresh = SqliteReader::open(&path).await.unwrap();
            assert_eq!(fresh.damages(), [""; 0]);
            for (n, seen) in seen.iter_mut().enumerate() {
                let id = SessionId::from(format!("s{n}"));
                let reader = if views % 2 == 0 { &kept } else { &fresh };
                let events = match reader.read(&id).await {
                    Ok(session) => session.events,
                    Err(error) => {
                        assert_eq!(error.code(), "SESSION_NOT_FOUND", "{error}");
                        Vec::new()
                    }
                };
                let count = events.len() as u64;
                assert!(count >= *seen, "a later view sees no less");
                assert_eq!(count % 2, 0, "half an append");
                assert_eq!(events, texts(0, count));
                *seen = count;
            }
            let report = verify(&path, |_| ()).unwrap();
            assert!(report.is_whole(), "{report}");
            views += 1;
            if last {
                assert_eq!(seen, [100; 4]);
                return views;
            }
        }
    });
    let write = |n: u64| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let writer = store.create(&header(&format!("s{n}")), 0).await.unwrap();
            for turn in 0..50 {
                writer.tail(turn, Bytes::from_static(b"chunks")).await.unwrap();
                writer.append(batch(turn * 2, 2)).await.unwrap();
            }
        })
    };
    for writer in (0..4).map(write).collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    store.close().await.unwrap();
    ended.store(true, Ordering::Release);
    println!("views beside a live store: cases run {}, faults found 0", reader.await.unwrap());
}

#[tokio::test]
async fn a_read_that_takes_long_keeps_no_store_from_closing() {
    let dir = tempfile::tempdir().unwrap();
    small(dir.path()).await;
    let config = SqliteConfig { busy_timeout: Duration::ZERO, ..SqliteConfig::default() };
    let store = SqliteStore::open(dir.path(), config).await.unwrap();
    let (writer, _) = store.open_write(&"a".into()).await.unwrap();
    writer.append(batch(5, 1)).await.unwrap();
    let reading = schema::connect(&dir.path().join(schema::FILE), false, Duration::ZERO).unwrap();
    let snapshot = reading.unchecked_transaction().unwrap();
    let count = || snapshot.query_row("SELECT count(*) FROM events", [], |r| r.get::<_, i64>(0));
    assert_eq!(count(), Ok(8));
    writer.append(batch(6, 1)).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(count(), Ok(8));
    // Nor the next one from opening.
    let config = SqliteConfig { busy_timeout: Duration::ZERO, ..SqliteConfig::default() };
    let store = SqliteStore::open(dir.path(), config).await.unwrap();
    assert_eq!(store.read(&"a".into()).await.unwrap().events, texts(0, 7));
    drop(snapshot);
    drop(reading);
    store.close().await.unwrap();
    assert_eq!(names(dir.path()), ["lock", "sessions.sqlite"]);
}
