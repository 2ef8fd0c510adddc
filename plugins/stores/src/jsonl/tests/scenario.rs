//! The numbered scenarios about files of JSON lines.

mod kill;

use super::*;

/// Six durable events, then the given ones, each appended by itself. A `!` before one syncs first.
async fn log_of(rest: &[&str]) -> ModelDisk {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 6)).await.unwrap();
    for (seq, kind) in (6..).zip(rest) {
        if kind.starts_with('!') {
            writer.flush().await.unwrap();
        }
        writer.append(event(kind.trim_start_matches('!'), seq)).await.unwrap();
    }
    killed(&disk)
}

fn change(disk: &ModelDisk, path: &Path, with: impl FnOnce(&mut Vec<u8>)) {
    let mut state = disk.state();
    let inode = state.names[path];
    with(&mut state.inodes[inode]);
}

/// Damages the line of an event.
fn damage(disk: &ModelDisk, seq: usize) {
    change(disk, &log("s"), |bytes| {
        let at = line_starts(bytes)[seq + 1] + 9;
        bytes[at] ^= 1;
    });
}

#[tokio::test]
async fn persistence_37_and_38_before_the_link_there_is_no_session() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let draft = PathBuf::from("/store/sessions/s.new");
    disk.fault(Fault::FailLink);
    assert_eq!(writer.append(batch(0, 6)).await.unwrap_err().code(), "STORE_IO");
    assert!(!disk.files().contains_key(&log("s")) && !disk.files().contains_key(&draft));
    // As a kill in that moment leaves it: the draft is synced and has no name yet.
    let dead = killed(&disk);
    let mut files = dead.files();
    files.insert(draft.clone(), b"{\"type\":\"session\"".to_vec());
    let dead = ModelDisk::from_files(&files);
    assert!(shelf(&dead).ids().unwrap().is_empty());
    let next = on_model(&dead).await;
    assert!(!dead.files().contains_key(&draft));
    let other = next.create(&header("s"), 0).await.unwrap();
    other.append(batch(0, 1)).await.unwrap();
    assert_eq!(next.read(&"s".into()).await.unwrap().events, texts(0, 1));
    // And the first one is free to try again.
    writer.append(batch(0, 6)).await.unwrap();
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 6));
}

#[tokio::test]
async fn persistence_39_around_the_link_a_session_is_absent_or_complete() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let start = disk.files();
    let begun = disk.at();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 40)).await.unwrap();
    writer.flush().await.unwrap();
    let (mut absent, mut complete) = (0, 0);
    for at in begun..=disk.at() {
        for cut in [Cut::None, Cut::Prefix, Cut::Subset, Cut::Subset, Cut::Subset] {
            let mut dice = Dice(at as u64);
            let files = disk.after_power_cut(&Files::new(), at, cut, &mut dice);
            let after = ModelDisk::from_files(&files);
            match shelf(&after).load(&"s".into()).unwrap() {
                None => absent += 1,
                Some(loaded) => {
                    assert_eq!(loaded.scan.events, texts(0, 40), "{cut:?} at {at}");
                    complete += 1;
                }
            }
        }
    }
    assert!(!start.contains_key(&log("s")) && absent > 0 && complete > 0);
    println!("around the link: absent {absent}, complete {complete}, partial 0");
}

#[tokio::test]
async fn persistence_40_half_a_line_is_not_served_and_cut_by_the_next_writer() {
    let disk = log_of(&["x/y"]).await;
    change(&disk, &log("s"), |bytes| bytes.truncate(bytes.len() - 20));
    let before = disk.files();
    assert_eq!(shelf(&disk).read(&"s".into()).unwrap().events, texts(0, 6));
    assert_eq!(disk.files(), before, "a reader changes no bytes");
    let report = verify_on(Arc::new(disk.clone()), Path::new("/store"), &mut |_| ()).unwrap();
    assert!(report.is_whole());
    assert!(report.torn.unwrap().contains("sessions/s.jsonl line 8"));
    let store = on_model(&disk).await;
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 6));
    writer.append(batch(6, 2)).await.unwrap();
    writer.close().await.unwrap();
    let loaded = shelf(&disk).load(&"s".into()).unwrap().unwrap();
    assert_eq!((loaded.scan.events, loaded.scan.torn), (texts(0, 8), None));
}

#[tokio::test]
async fn persistence_41_an_error_on_append_truncates_back_and_a_retry_lands_once() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    // The first append is the one that syncs.
    disk.fault(Fault::FailSync);
    assert_eq!(writer.append(batch(0, 6)).await.unwrap_err().code(), "STORE_IO");
    assert!(!disk.files().contains_key(&log("s")));
    writer.append(batch(0, 6)).await.unwrap();
    let whole = disk.files()[&log("s")].clone();
    for limit in [1, 70, 200] {
        // A write that takes a part only, and then fails.
        disk.fault(Fault::ShortWrite(limit));
        disk.fault(Fault::FailWrite);
        assert_eq!(writer.append(batch(6, 6)).await.unwrap_err().code(), "STORE_IO");
        assert_eq!(disk.files()[&log("s")], whole, "cut back");
    }
    writer.append(batch(6, 6)).await.unwrap();
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 12));
    // The rollback fails too: both are told, and what is left is a torn end to whoever comes next.
    disk.fault(Fault::ShortWrite(30));
    disk.fault(Fault::FailWrite);
    disk.fault(Fault::FailSetLen);
    let error = writer.append(batch(12, 6)).await.unwrap_err().to_string();
    assert!(
        error.contains("cutting it back") && error.matches("os error 5").count() == 2,
        "{error}"
    );
    let dead = killed(&disk);
    let loaded = shelf(&dead).load(&"s".into()).unwrap().unwrap();
    assert!(loaded.scan.torn.is_some());
    assert_eq!(loaded.scan.events, texts(0, 12));
    let next = on_model(&dead).await;
    let (other, _) = next.open_write(&"s".into()).await.unwrap();
    other.append(batch(12, 1)).await.unwrap();
    assert_eq!(next.read(&"s".into()).await.unwrap().events, texts(0, 13));
    // The one who lived on goes on as well.
    writer.append(batch(12, 6)).await.unwrap();
    writer.flush().await.unwrap();
    let loaded = shelf(&disk).load(&"s".into()).unwrap().unwrap();
    assert_eq!((loaded.scan.events, loaded.scan.torn), (texts(0, 18), None));
}

// A line says itself what was durable before it; that it is a `turn/end` is not needed as a sign. So
// what was never synced is a torn end even before a `turn/end`, and the rest is refused even without.
#[tokio::test]
async fn persistence_42_a_bad_line_is_a_torn_end_unless_it_was_durable() {
    let disk = log_of(&["x/y", "step/end", "turn/end"]).await;
    damage(&disk, 6);
    assert_eq!(shelf(&disk).read(&"s".into()).unwrap().events, texts(0, 6));
    let store = on_model(&disk).await;
    let (writer, _) = store.open_write(&"s".into()).await.unwrap();
    writer.append(batch(6, 1)).await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(shelf(&disk).read(&"s".into()).unwrap().events, texts(0, 7));

    let disk = log_of(&["x/y", "step/end", "!turn/end"]).await;
    damage(&disk, 6);
    let before = disk.files();
    let StoreError::Corrupt { id, place, cause } = shelf(&disk).read(&"s".into()).unwrap_err()
    else {
        panic!("it is damage")
    };
    let offset = line_starts(&before[&log("s")])[7];
    assert_eq!(id.as_str(), "s");
    assert_eq!(place, format!("sessions/s.jsonl line 8 byte {offset} (event 6)"));
    assert_eq!(cause, "the line's checksum does not hold, and 8 events were durable");
    let store = on_model(&disk).await;
    for _ in 0..2 {
        // The same each time, and the claim is given back.
        assert_eq!(store.open_write(&"s".into()).await.err().unwrap().code(), "STORE_CORRUPT");
    }
    store.close().await.unwrap();
    assert_eq!(disk.files(), before);
}

#[tokio::test]
async fn persistence_43_a_missing_line_is_a_torn_end_unless_it_was_durable() {
    let without_6 = |disk: &ModelDisk| {
        change(disk, &log("s"), |bytes| {
            let starts = line_starts(bytes);
            bytes.drain(starts[7]..starts[8]);
        });
    };
    let disk = log_of(&["x/y", "x/y", "x/y"]).await;
    without_6(&disk);
    assert_eq!(shelf(&disk).read(&"s".into()).unwrap().events, texts(0, 6));
    let disk = log_of(&["x/y", "x/y", "!turn/end"]).await;
    without_6(&disk);
    let error = shelf(&disk).read(&"s".into()).unwrap_err();
    assert_eq!(error.code(), "STORE_CORRUPT");
    let text = error.to_string();
    assert!(text.contains("the line is event 7, where event 6 should be"), "{text}");
    // A durable end that is gone is missed too.
    let disk = log_of(&["x/y", "!turn/end"]).await;
    change(&disk, &log("s"), |bytes| {
        let starts = line_starts(bytes);
        bytes.drain(starts[6]..starts[8]);
    });
    assert_eq!(shelf(&disk).read(&"s".into()).unwrap_err().code(), "STORE_CORRUPT");
}

#[tokio::test]
async fn persistence_45_after_the_cut_the_log_is_the_prefix_and_a_second_recovery_does_nothing() {
    let disk = log_of(&["x/y", "step/end"]).await;
    damage(&disk, 6);
    let prefix = shelf(&disk).load(&"s".into()).unwrap().unwrap();
    let store = on_model(&disk).await;
    let (writer, _) = store.open_write(&"s".into()).await.unwrap();
    // The flush cuts; the process dies before it appends anything.
    writer.flush().await.unwrap();
    let dead = killed(&disk);
    let cut = dead.files();
    assert_eq!(cut[&log("s")], prefix.bytes[..prefix.scan.len]);
    let store = on_model(&dead).await;
    let (writer, session) = store.open_write(&"s".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 6));
    writer.close().await.unwrap();
    store.close().await.unwrap();
    assert_eq!(dead.files(), cut);
}

#[tokio::test]
async fn persistence_17_and_18_foreign_headers_are_refused_by_name() {
    let disk = log_of(&[]).await;
    let mut files = disk.files();
    let stored = files[&log("s")].clone();
    // A log that lies where another session's should be.
    files.insert(log("other"), stored);
    let mut line = Vec::new();
    let alien = serde_json::json!({"type": "session", "version": 99, "shape": [1]});
    let (kind, stand) = (super::super::line::Kind::Header, super::super::line::Stand::default());
    super::super::line::encode_object(&mut line, &alien, kind, stand).unwrap();
    files.insert(log("newer"), line);
    let disk = ModelDisk::from_files(&files);
    let store = on_model(&disk).await;
    for _ in 0..2 {
        let text = store.open_write(&"other".into()).await.err().unwrap().to_string();
        assert!(text.contains("the log of session `s`, not of `other`"), "{text}");
        let newer = store.open_write(&"newer".into()).await.err().unwrap();
        assert_eq!(newer.code(), "FORMAT_UNSUPPORTED");
        assert!(newer.to_string().contains("upgrade"), "{newer}");
    }
    let page = store.list(ListQuery::default()).await.unwrap();
    assert_eq!(page.sessions.iter().map(|stat| &*stat.header).collect::<Vec<_>>(), [&*header("s")]);
    store.close().await.unwrap();
    assert_eq!(disk.files(), files);
}

#[tokio::test]
async fn persistence_35_odd_ids_are_files_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let store = JsonlStore::open(&root, JsonlConfig::default()).await.unwrap();
    let long = "x".repeat(300);
    let odd =
        ["a/b", "a~002Fb", "..", ".", "A", "a", "a.tail", "con", "\u{1f3ad}", "../../out", &long];
    for (n, id) in (1..).zip(odd) {
        let writer = store.create(&header(id), 0).await.unwrap();
        writer.append(batch(0, n)).await.unwrap();
        writer.tail(n, Bytes::copy_from_slice(id.as_bytes())).await.unwrap();
    }
    store.close().await.unwrap();
    let reader = JsonlReader::open(&root).await.unwrap();
    for (n, id) in (1..).zip(odd) {
        let session = reader.read(&id.into()).await.unwrap();
        assert_eq!((session.header.id.as_str(), session.events.len() as u64), (id, n));
        let parts = vec![Bytes::copy_from_slice(id.as_bytes())];
        assert_eq!(session.tail, Some(StoredTail { attempt: n, parts }));
    }
    assert_eq!(reader.list(ListQuery::default()).await.unwrap().sessions.len(), odd.len());
    // Nothing lies outside of the store.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let names = std::fs::read_dir(root.join("sessions")).unwrap().map(|entry| entry.unwrap());
    let folded: std::collections::BTreeSet<String> =
        names.map(|entry| entry.file_name().to_string_lossy().to_lowercase()).collect();
    assert_eq!(folded.len(), 2 * odd.len(), "distinct on any file system");
}
