//! Numbered scenarios of failing syncs and writes, over a disk that keeps account.

use super::*;

/// What a power cut now would leave of the unsynced bytes: nothing.
async fn after_the_cut(disk: &ModelDisk) -> JournalStore {
    let files = disk.after_power_cut(&Default::default(), disk.at(), Cut::None, &mut Dice(1));
    on_model(&ModelDisk::from_files(&files), small()).await.unwrap()
}

fn syncs(disk: &ModelDisk) -> usize {
    disk.state().log.iter().filter(|op| matches!(op, Op::Sync(_))).count()
}

#[tokio::test]
async fn persistence_24_fifty_flushes_at_once_are_two_syncs_at_most() {
    let disk = ModelDisk::default();
    let store = on_model(&disk, small()).await.unwrap();
    let mut writers = Vec::new();
    for n in 0..50 {
        let writer = store.create(&header(&format!("s{n}")), 0).await.unwrap();
        writer.append(batch(0, 1)).await.unwrap();
        writers.push(writer);
    }
    store.flush().await.unwrap();
    let appends: Vec<_> = writers.iter().map(|writer| writer.append(batch(1, 1))).collect();
    futures::future::try_join_all(appends).await.unwrap();
    let before = syncs(&disk);
    let flushes: Vec<_> = (0..50).map(|_| store.flush()).collect();
    futures::future::try_join_all(flushes).await.unwrap();
    let made = syncs(&disk) - before;
    assert!((1..=2).contains(&made), "{made} syncs");
    let after = after_the_cut(&disk).await;
    for n in 0..50 {
        assert_eq!(after.read(&format!("s{n}").into()).await.unwrap().events, texts(0, 2));
    }
}

#[tokio::test]
async fn persistence_25_a_flush_covers_what_was_appended_before_it_and_may_cover_more() {
    for round in 0..20 {
        let disk = ModelDisk::default();
        let store = on_model(&disk, small()).await.unwrap();
        let writer = store.create(&header("s"), 0).await.unwrap();
        writer.append(batch(0, 2)).await.unwrap();
        // Under way and queued before the flush, and one behind it.
        let under_way = writer.append(batch(2, 1));
        let flush = writer.flush();
        let behind = writer.append(batch(3, 1));
        if round % 2 == 0 {
            flush.await.unwrap();
            let events = after_the_cut(&disk).await.read(&"s".into()).await.unwrap().events;
            assert!((3..=4).contains(&events.len()), "{}", events.len());
            assert_eq!(events, texts(0, events.len() as u64));
        }
        under_way.await.unwrap();
        behind.await.unwrap();
    }
}

#[tokio::test]
async fn persistence_37_a_session_whose_first_append_was_not_written_does_not_exist() {
    for fault in [Fault::FailWrite, Fault::ShortWrite(60)] {
        let disk = ModelDisk::default();
        let store = on_model(&disk, small()).await.unwrap();
        let writer = store.create(&header("s"), 0).await.unwrap();
        // The write and its second try in a new segment.
        disk.fault(fault);
        disk.fault(fault);
        writer.append(batch(0, 3)).await.unwrap_err();
        // The process dies here.
        let files = disk.files();
        let store = on_model(&ModelDisk::from_files(&files), small()).await.unwrap();
        assert_eq!(store.damages(), []);
        assert_eq!(store.read(&"s".into()).await.unwrap_err().code(), "SESSION_NOT_FOUND");
        assert_eq!(store.list(ListQuery::default()).await.unwrap().sessions, []);
        let writer = store.create(&header("s"), 0).await.unwrap();
        writer.append(batch(0, 1)).await.unwrap();
    }
}

#[tokio::test]
async fn persistence_41_a_write_that_fails_or_is_short_is_made_again_once_and_whole() {
    // The rest of a segment that took a write short is void, so what is cut back is only tidiness.
    for fault in [Fault::FailWrite, Fault::ShortWrite(0), Fault::ShortWrite(30), Fault::FailSync] {
        let disk = ModelDisk::default();
        let store = on_model(&disk, small()).await.unwrap();
        let writer = store.create(&header("s"), 0).await.unwrap();
        writer.append(batch(0, 2)).await.unwrap();
        writer.flush().await.unwrap();
        disk.fault(fault);
        while writer.append(batch(2, 2)).await.is_err() {}
        writer.flush().await.unwrap();
        writer.append(batch(4, 1)).await.unwrap();
        writer.flush().await.unwrap();
        assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 5), "{fault:?}");
        let after = after_the_cut(&disk).await;
        assert_eq!(after.damages(), []);
        assert_eq!(after.read(&"s".into()).await.unwrap().events, texts(0, 5), "{fault:?}");
    }
}

#[tokio::test]
async fn persistence_66_after_a_cut_between_write_and_sync_the_log_is_a_prefix_that_goes_on() {
    let seed = seed(23);
    let mut dice = Dice(seed);
    let mut cases = 0;
    for cut in [Cut::None, Cut::Prefix, Cut::Subset] {
        for _ in 0..20 {
            let disk = ModelDisk::default();
            let store = on_model(&disk, small()).await.unwrap();
            let writer = store.create(&header("s"), 0).await.unwrap();
            writer.append(batch(0, 4)).await.unwrap();
            writer.flush().await.unwrap();
            writer.append(batch(4, 3)).await.unwrap();
            let files = disk.after_power_cut(&Default::default(), disk.at(), cut, &mut dice);
            let store = on_model(&ModelDisk::from_files(&files), small()).await.unwrap();
            let (writer, session) = store.open_write(&"s".into()).await.unwrap();
            let next = session.events.len() as u64;
            assert!(next == 4 || next == 7, "seed {seed} {cut:?}: {next}");
            assert_eq!(session.events, texts(0, next));
            let gap = writer.append(batch(next + 1, 1)).await.unwrap_err();
            let id = SessionId::from("s");
            assert_eq!(gap, StoreError::SequenceMismatch { id, expected: next, got: next + 1 });
            writer.append(batch(next, 2)).await.unwrap();
            assert_eq!(store.stat(&"s".into()).await.unwrap().unwrap().event_count, next + 2);
            cases += 1;
        }
    }
    println!("cuts between write and sync: cases run {cases}, faults found 0");
}

#[tokio::test]
async fn persistence_67_after_a_failed_flush_the_next_one_writes_again_before_it_says_yes() {
    // Failing: the sync; the sync and that of the new segment; and its making as well.
    for faults in [
        &[Fault::FailSync][..],
        &[Fault::FailSync, Fault::FailSync],
        &[Fault::FailSync, Fault::FailCreate],
        &[Fault::FailSync, Fault::FailWrite],
        &[Fault::FailSync, Fault::ShortWrite(50)],
        &[Fault::FailSync, Fault::FailSync, Fault::FailSync, Fault::FailSync],
    ] {
        let disk = ModelDisk::default();
        let store = on_model(&disk, small()).await.unwrap();
        let writer = store.create(&header("s"), 0).await.unwrap();
        writer.append(batch(0, 2)).await.unwrap();
        writer.flush().await.unwrap();
        writer.append(batch(2, 2)).await.unwrap();
        faults.iter().for_each(|fault| disk.fault(*fault));
        let mut refused = 0;
        while let Err(error) = writer.flush().await {
            assert!(["STORE_IO", "STORE_FULL"].contains(&error.code()), "{error}");
            refused += 1;
            // What it says is not durable is still there to be read, once.
            assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 4));
        }
        assert_eq!(refused, faults.len() - 1, "{faults:?}");
        let after = after_the_cut(&disk).await;
        assert_eq!(after.damages(), [], "{faults:?}");
        assert_eq!(after.read(&"s".into()).await.unwrap().events, texts(0, 4), "{faults:?}");
        // The same seq is not taken twice: equal events are a repetition, others are refused.
        writer.append(batch(2, 2)).await.unwrap();
        let other = r#"{"type":"x/z","seq":3,"time":1,"data":{}}"#;
        let other = EventBatch { first_seq: 3, events: vec![other.into()] };
        assert_eq!(writer.append(other).await.unwrap_err().code(), "STORE_CONFLICT");
        assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 4));
    }
}
