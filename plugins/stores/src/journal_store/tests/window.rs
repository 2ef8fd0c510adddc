//! The window after which written events are synced though nobody waits: fixed, not sliding.

use std::future::Future;
use std::pin::pin;

use super::*;

/// Waits for the store's thread without letting the paused clock run ahead.
async fn now<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        if let std::task::Poll::Ready(done) = futures::poll!(work.as_mut()) {
            return done;
        }
        tokio::task::yield_now().await;
    }
}

fn unsynced(disk: &ModelDisk) -> bool {
    let state = disk.state();
    let last = state.log.iter().rposition(|op| matches!(op, Op::Write(..))).unwrap();
    !state.log[last..].iter().any(|op| matches!(op, Op::Sync(_)))
}

async fn settled(store: &JournalStore) {
    now(store.office.submit(Job::Barrier)).await.unwrap();
    // Twice: a report that opens a window is handled after the answer to whom it serves.
    now(store.office.submit(Job::Barrier)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_window_of_a_committer_that_died_ends_with_its_successor() {
    let disk = ModelDisk::default();
    let store = now(on_model(&disk, small())).await.unwrap();
    let writer = now(store.create(&header("s"), 0)).await.unwrap();
    now(writer.append(batch(0, 1))).await.unwrap();
    settled(&store).await;
    let dead = now(store.committer()).await;
    dead.kill();
    while now(store.committer()).await.get_id() == dead.get_id() {
        tokio::task::yield_now().await;
    }
    settled(&store).await;
    assert!(unsynced(&disk), "nobody waits for it");
    tokio::time::advance(Duration::from_millis(200)).await;
    settled(&store).await;
    assert!(!unsynced(&disk), "a window later");
    now(store.close()).await.unwrap();
}

mod scenario {
    use super::*;

    // Written at once; it is the sync that waits, and one that each event put off would never come.
    #[tokio::test(start_paused = true)]
    async fn persistence_19_twenty_events_are_durable_a_window_after_the_first() {
        let disk = ModelDisk::default();
        let store = now(on_model(&disk, small())).await.unwrap();
        let writer = now(store.create(&header("s"), 0)).await.unwrap();
        for seq in 0..20 {
            now(writer.append(batch(seq, 1))).await.unwrap();
            settled(&store).await;
            assert_eq!(now(store.read(&"s".into())).await.unwrap().events, texts(0, seq + 1));
            assert!(unsynced(&disk), "event {seq} is synced before anybody waits");
            if seq < 19 {
                tokio::time::advance(Duration::from_millis(10)).await;
            }
        }
        tokio::time::advance(Duration::from_millis(9)).await;
        settled(&store).await;
        assert!(unsynced(&disk), "199 ms after the first");
        tokio::time::advance(Duration::from_millis(1)).await;
        settled(&store).await;
        assert!(!unsynced(&disk), "200 ms after the first, 10 after the last");
        // The next event has a window of its own.
        now(writer.append(batch(20, 1))).await.unwrap();
        settled(&store).await;
        tokio::time::advance(Duration::from_millis(199)).await;
        settled(&store).await;
        assert!(unsynced(&disk));
        tokio::time::advance(Duration::from_millis(1)).await;
        settled(&store).await;
        assert!(!unsynced(&disk));
        now(store.close()).await.unwrap();
    }
}
