//! What the disk does to a store, and what the store tells of it.

use super::*;

/// What a power cut leaves that keeps nothing but what was synced.
fn only_synced(disk: &ModelDisk) -> ModelDisk {
    let files = disk.after_power_cut(&Files::new(), disk.at(), Cut::None, &mut Dice(1));
    ModelDisk::from_files(&files)
}

#[tokio::test]
async fn a_failed_flush_keeps_the_events_and_a_later_one_writes_them_again() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 4)).await.unwrap();
    writer.append(batch(4, 4)).await.unwrap();
    // One failure is mended at once, by writing again; with two, the flush tells.
    disk.fault(Fault::FailSync);
    disk.fault(Fault::FailSync);
    assert_eq!(writer.flush().await.unwrap_err().code(), "STORE_IO");
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 8));
    // A reader and the next process still find what was written.
    assert_eq!(shelf(&killed(&disk)).read(&"s".into()).unwrap().events, texts(0, 8));
    writer.append(batch(8, 1)).await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(shelf(&only_synced(&disk)).read(&"s".into()).unwrap().events, texts(0, 9));
    disk.fault(Fault::FailSync);
    writer.append(batch(9, 1)).await.unwrap();
    store.flush().await.unwrap();
    assert_eq!(shelf(&only_synced(&disk)).read(&"s".into()).unwrap().events, texts(0, 10));
}

#[tokio::test]
async fn a_new_process_does_not_trust_a_sync_of_what_it_has_not_written() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 4)).await.unwrap();
    writer.append(batch(4, 4)).await.unwrap();
    disk.fault(Fault::FailSync);
    disk.fault(Fault::FailSync);
    assert!(writer.flush().await.is_err());
    // Dropped as a killed process drops it, on the same disk: the lost pages are still lost.
    drop((writer, store));
    let store = on_model(&disk).await;
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 8));
    writer.flush().await.unwrap();
    assert_eq!(shelf(&only_synced(&disk)).read(&"s".into()).unwrap().events, texts(0, 8));
}

#[tokio::test]
async fn closing_gives_the_claim_back_even_if_the_flush_fails() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    writer.append(batch(1, 1)).await.unwrap();
    disk.fault(Fault::FailSync);
    disk.fault(Fault::FailSync);
    assert_eq!(writer.close().await.unwrap_err().code(), "STORE_IO");
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 2));
    writer.append(batch(2, 1)).await.unwrap();
    // The store's close tells too, and lets go all the same.
    disk.fault(Fault::FailSync);
    disk.fault(Fault::FailSync);
    assert_eq!(store.close().await.unwrap_err().code(), "STORE_IO");
    assert_eq!(writer.append(batch(3, 1)).await, Err(StoreError::Closed));
    on_model(&disk).await;
}

#[tokio::test]
async fn a_full_disk_refuses_whole_batches_and_work_resumes_with_room() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    disk.state().capacity = Some(6000);
    let writer = store.create(&header("s"), 0).await.unwrap();
    let mut next = 0;
    let refused = loop {
        match writer.append(batch(next, 10)).await {
            Ok(()) => next += 10,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, StoreError::Full { path: "/store".to_owned() });
    assert!(next > 0);
    assert_eq!(store.create(&header("new"), 0).await.unwrap().flush().await.unwrap_err(), refused);
    assert_eq!(store.put_value("k", Bytes::from(vec![1; 6000])).await.unwrap_err(), refused);
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, next));
    disk.state().capacity = None;
    writer.append(batch(next, 10)).await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(shelf(&only_synced(&disk)).read(&"s".into()).unwrap().events, texts(0, next + 10));
    assert_eq!(store.get_value("k").await, Ok(None));
}

#[tokio::test]
async fn a_panic_under_a_write_costs_the_handle_and_nothing_else() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let other = store.create(&header("other"), 0).await.unwrap();
    writer.append(batch(0, 3)).await.unwrap();
    for fault in [Fault::Panic, Fault::PanicAfter] {
        let (writer, before) = match store.open_write(&"s".into()).await {
            Ok(opened) => opened,
            Err(_) => {
                writer.close().await.unwrap();
                store.open_write(&"s".into()).await.unwrap()
            }
        };
        let next = before.events.len() as u64;
        disk.fault(fault);
        assert_eq!(writer.append(batch(next, 3)).await.unwrap_err().code(), "STORE_IO");
        assert_eq!(writer.append(batch(next, 3)).await.unwrap_err().code(), "STORE_IO");
        assert_eq!(writer.close().await.unwrap_err().code(), "STORE_IO");
        other.append(batch(next / 3 - 1, 1)).await.unwrap();
        let (writer, session) = store.open_write(&"s".into()).await.unwrap();
        assert!(session.events == texts(0, next) || session.events == texts(0, next + 3));
        // The one who sends again what it has no answer for is understood.
        writer.append(batch(next, 3)).await.unwrap();
        writer.close().await.unwrap();
        assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, next + 3));
    }
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_written_is_synced_when_the_window_ends() {
    let disk = ModelDisk::default();
    let config = JsonlConfig::default();
    let window = config.window;
    let store = JsonlStore::open_on(Arc::new(disk.clone()), "/store".into(), config).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    let syncs =
        |disk: &ModelDisk| disk.state().log.iter().filter(|op| matches!(op, Op::Sync(_))).count();
    let before = syncs(&disk);
    let begun = tokio::time::Instant::now();
    let mut next = 1;
    // Writes that follow do not extend it.
    while syncs(&disk) == before {
        tokio::time::advance(window / 20).await;
        writer.append(batch(next, 1)).await.unwrap();
        next += 1;
    }
    let elapsed = begun.elapsed();
    assert!(elapsed >= window && elapsed <= window * 3 / 2, "{elapsed:?}");
    store.flush().await.unwrap();
    assert_eq!(shelf(&only_synced(&disk)).read(&"s".into()).unwrap().events, texts(0, next));
    store.close().await.unwrap();
}

#[tokio::test]
async fn calls_that_nobody_waits_for_are_done_in_their_order() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    for seq in 0..50 {
        drop(writer.append(batch(seq, 1)));
        drop(writer.tail(1, Bytes::from(seq.to_string())));
    }
    drop(writer);
    // Whoever opens it next comes behind all of that.
    let (_writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 50));
    assert_eq!(session.tail.unwrap().parts.len(), 50);
    store.close().await.unwrap();
}

#[tokio::test]
async fn revisions_and_stats_follow_the_content() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let id = SessionId::from("s");
    let stat = async || store.stat(&id).await.unwrap().unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 3)).await.unwrap();
    let three = stat().await;
    writer.close().await.unwrap();
    let (writer, _) = store.open_write(&id).await.unwrap();
    writer.append(batch(0, 3)).await.unwrap();
    assert_eq!(stat().await, three);
    writer.append(batch(3, 1)).await.unwrap();
    let four = stat().await;
    assert_ne!(four.revision, three.revision);
    writer.close().await.unwrap();
    store.delete(&id).await.unwrap();
    assert_eq!(store.stat(&id).await.unwrap(), None);
    // As many events as before, and others.
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(event("other", 0)).await.unwrap();
    for seq in 1..4 {
        writer.append(batch(seq, 1)).await.unwrap();
    }
    assert_eq!(stat().await.event_count, 4);
    assert_ne!(stat().await.revision, four.revision);
    // A view that reads the files says the same.
    assert_eq!(shelf(&disk).load(&id).unwrap().unwrap().scan.stat(), stat().await);
}

#[tokio::test]
async fn a_tail_ahead_of_its_log_means_nothing_and_never_comes_back() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 2)).await.unwrap();
    writer.append(batch(2, 2)).await.unwrap();
    writer.tail(7, Bytes::from_static(b"ahead")).await.unwrap();
    let mut files = disk.files();
    let log = files.get_mut(&log("s")).unwrap();
    log.truncate(line_starts(log)[3]);
    let disk = ModelDisk::from_files(&files);
    assert_eq!(shelf(&disk).read(&"s".into()).unwrap().tail, None);
    let store = on_model(&disk).await;
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!((session.events.len(), session.tail), (2, None));
    writer.append(batch(2, 2)).await.unwrap();
    assert_eq!(store.read(&"s".into()).await.unwrap().tail, None);
}

#[tokio::test]
async fn a_store_in_use_names_the_directory_and_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let open = || JsonlStore::open(dir.path(), JsonlConfig::default());
    let store = open().await.unwrap();
    let refused = open().await.err().unwrap();
    assert_eq!(refused.code(), "STORE_IN_USE");
    let text = refused.to_string();
    assert!(text.contains(&dir.path().display().to_string()), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
    // Reading needs no lock, and no leave.
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 3)).await.unwrap();
    let reader = JsonlReader::open(dir.path()).await.unwrap();
    assert_eq!(reader.read(&"s".into()).await.unwrap().events, texts(0, 3));
    assert_eq!(reader.stat(&"none".into()).await, Ok(None));
    store.close().await.unwrap();
    open().await.unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn files_are_private_to_their_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let store = JsonlStore::open(&root, JsonlConfig::default()).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    writer.tail(1, Bytes::from_static(b"a")).await.unwrap();
    store.put_value("k", Bytes::new()).await.unwrap();
    store.close().await.unwrap();
    let mut seen = 0;
    let mut dirs = vec![root];
    while let Some(dir) = dirs.pop() {
        assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let mode = std::fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{}", path.display());
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 5, "format, lock, log, tail and value");
}

#[tokio::test]
async fn each_kind_knows_its_own_directory_and_two_in_one_are_refused() {
    use crate::kind::{StoreConfig, StoreKind, open_reader};
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    for (kind, path) in [(StoreKind::Jsonl, &a), (StoreKind::Journal, &b)] {
        let store = StoreConfig::new(kind).open(path).await.unwrap();
        store.create(&header("s"), 0).await.unwrap().flush().await.unwrap();
        store.close().await.unwrap();
        assert_eq!(StoreKind::detect(path).unwrap(), kind);
        let format = path.join("format");
        let line = std::fs::read(&format).unwrap();
        for at in 0..line.len() {
            let mut damaged = line.clone();
            damaged[at] ^= 1;
            std::fs::write(&format, damaged).unwrap();
            assert_eq!(StoreKind::detect(path).unwrap(), kind, "byte {at}");
            let reader = open_reader(path).await.unwrap();
            assert_eq!(reader.list(ListQuery::default()).await.unwrap().sessions.len(), 1);
        }
        std::fs::write(&format, line).unwrap();
    }
    for (kind, path) in [(StoreKind::Jsonl, &b), (StoreKind::Journal, &a)] {
        let error = StoreConfig::new(kind).open(path).await.err().unwrap();
        assert_eq!(error.code(), "INVALID_ARGUMENT", "{error}");
    }
    assert!(JsonlStore::open(&b, JsonlConfig::default()).await.is_err());
    std::fs::create_dir(a.join("journal")).unwrap();
    std::fs::write(a.join("journal/0000000000000001.segment"), "").unwrap();
    let error = StoreKind::detect(&a).unwrap_err().to_string();
    assert!(error.contains("journal") && error.contains("jsonl"), "{error}");
    assert!(StoreConfig::new(StoreKind::Jsonl).open(&a).await.is_err());
    assert_eq!(open_reader(&a).await.err().unwrap().code(), "INVALID_ARGUMENT");
}

#[tokio::test]
async fn directories_alone_are_no_store_and_a_value_without_a_format_is_one() {
    use crate::kind::{StoreKind, open_reader};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    // As a crash leaves a store that is being made.
    for name in ["sessions", "values"] {
        std::fs::create_dir(path.join(name)).unwrap();
    }
    for name in ["format.new", "lock"] {
        std::fs::write(path.join(name), "").unwrap();
    }
    let error = StoreKind::detect(path).unwrap_err().to_string();
    assert!(error.contains("there is no store"), "{error}");
    let error = JsonlReader::open(path).await.err().unwrap().to_string();
    assert!(error.contains("there is no JSONL store"), "{error}");
    let store = JsonlStore::open(path, JsonlConfig::default()).await.unwrap();
    store.put_value("k", "v".into()).await.unwrap();
    store.close().await.unwrap();
    std::fs::remove_file(path.join("format")).unwrap();
    assert_eq!(StoreKind::detect(path).unwrap(), StoreKind::Jsonl);
    let reader = open_reader(path).await.unwrap();
    assert_eq!(reader.get_value("k").await.unwrap().unwrap(), "v");
    assert!(!crate::verify::verify(path, |_| ()).unwrap().is_whole());
    JsonlStore::open(path, JsonlConfig::default()).await.unwrap().close().await.unwrap();
    let report = crate::verify::verify(path, |_| ()).unwrap();
    assert!(report.is_whole(), "{report}");
}
