//! Readers without a lock, beside a store that is being written as fast as it goes.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::verify::verify;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_beside_a_live_store_sees_prefixes_and_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let config = JsonlConfig { window: Duration::from_millis(1) };
    let store = Arc::new(JsonlStore::open(dir.path(), config).await.unwrap());
    let ended = Arc::new(AtomicBool::new(false));
    let read = || {
        let (ended, dir) = (Arc::clone(&ended), dir.path().to_path_buf());
        async move {
            let reader = JsonlReader::open(&dir).await.unwrap();
            let mut views = 0;
            let mut seen = [0; 4];
            loop {
                let last = ended.load(Ordering::Acquire);
                for (n, seen) in seen.iter_mut().enumerate() {
                    let events = match reader.read(&format!("s{n}").into()).await {
                        Ok(session) => session.events,
                        Err(error) => {
                            assert_eq!(error.code(), "SESSION_NOT_FOUND", "{error}");
                            Vec::new()
                        }
                    };
                    let count = events.len() as u64;
                    assert!(count >= *seen, "a later view sees no less");
                    assert_eq!(events, texts(0, count));
                    *seen = count;
                }
                let report = verify(&dir, |_| ()).unwrap();
                assert!(report.is_whole(), "{report}");
                views += 1;
                if last {
                    assert_eq!(seen, [120; 4]);
                    return views;
                }
            }
        }
    };
    let readers = [tokio::spawn(read()), tokio::spawn(read())];
    let write = |n: u64| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let writer = store.create(&header(&format!("s{n}")), 0).await.unwrap();
            for turn in 0..60 {
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
    let mut views = 0;
    for reader in readers {
        views += reader.await.unwrap();
    }
    println!("views beside a live jsonl store: cases run {views}, faults found 0");
}
