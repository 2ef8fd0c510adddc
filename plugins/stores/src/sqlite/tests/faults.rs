//! Faults under a store that is open: a full disk, a panic, a page that goes bad.

use super::*;

#[tokio::test]
async fn a_full_disk_refuses_whole_batches_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let config = SqliteConfig { pages_max: Some(40), ..SqliteConfig::default() };
    let store = SqliteStore::open(dir.path(), config).await.unwrap();
    let ballast = store.create(&header("ballast"), 0).await.unwrap();
    ballast.append(batch(0, 1000)).await.unwrap();
    ballast.close().await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    writer.append(batch(0, 2)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(code(writer.append(batch(2, 2000)).await), "STORE_FULL");
        assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 2));
    }
    // A small one beside a large one is not the large one's victim.
    let (large, small) = (writer.append(batch(2, 2000)), store.put_value("k", Bytes::new()));
    let (large, small) = futures::join!(large, small);
    assert_eq!((code(large), small), ("STORE_FULL", Ok(())));
    writer.flush().await.unwrap();
    store.delete(&"ballast".into()).await.unwrap();
    // The same batch again lands once, and once only.
    writer.append(batch(2, 500)).await.unwrap();
    writer.append(batch(2, 500)).await.unwrap();
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 502));
    store.close().await.unwrap();
    let report = verify(dir.path(), |_| ()).unwrap();
    assert!(report.is_whole(), "{report}");
}

#[tokio::test]
async fn a_panic_takes_nothing_and_nobody_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    let before = writer.append(batch(0, 2));
    let panicked = store.office.submit(Job::Panic);
    let after = writer.append(batch(2, 2));
    let (before, panicked, after) = futures::join!(before, panicked, after);
    assert_eq!((before, after), (Ok(()), Ok(())));
    assert!(panicked.unwrap_err().to_string().contains("panicked"));
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 4));
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_session_that_went_bad_refuses_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    small(dir.path()).await;
    let store = open(dir.path()).await;
    let (a, _) = store.open_write(&"a".into()).await.unwrap();
    let (b, _) = store.open_write(&"b".into()).await.unwrap();
    tamper(dir.path(), "UPDATE sessions SET size_bytes = 1 WHERE id = 'a'");
    let (bad, good) = futures::join!(a.append(batch(5, 1)), b.append(batch(2, 1)));
    assert_eq!((code(bad), good), ("STORE_CORRUPT", Ok(())));
    assert_eq!(code(store.read(&"a".into()).await), "STORE_CORRUPT");
    assert_eq!(store.read(&"b".into()).await.unwrap().events, texts(0, 3));
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_opened_says_what_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = SqliteStore::open(&file, SqliteConfig::default()).await.err().unwrap();
    assert!(refused.code() == "STORE_IO" && refused.to_string().contains("file"), "{refused}");
    let path = dir.path().join("store");
    std::fs::create_dir_all(path.join("lock")).unwrap();
    let refused = SqliteStore::open(&path, SqliteConfig::default()).await.err().unwrap();
    assert!(refused.to_string().contains("could not lock"), "{refused}");
    let path = dir.path().join("orphan");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("sessions.sqlite-wal"), "x").unwrap();
    let refused = SqliteStore::open(&path, SqliteConfig::default()).await.err().unwrap();
    assert!(refused.to_string().contains("is there without its"), "{refused}");
    let refused = SqliteReader::open(dir.path().join("nowhere")).await.err().unwrap();
    assert!(refused.to_string().contains("nowhere"), "{refused}");
}
