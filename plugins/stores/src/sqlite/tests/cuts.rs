//! What a crash can leave between two steps of opening and closing, each read as it lies.

use super::*;

const DATABASE: &str = "sessions.sqlite";
const LOG: &str = "sessions.sqlite-wal";
const JOURNAL: &str = "sessions.sqlite-journal";

/// Whether the header says that there is a log.
fn says_log(database: &[u8]) -> bool {
    database[18..20] == [2, 2]
}

fn with_header(database: &[u8], version: u8) -> Vec<u8> {
    let mut database = database.to_vec();
    database[18..20].fill(version);
    database
}

/// Reads, verifies, writes and closes what lies in a directory, and finds the small store there.
async fn is_the_small_store(dir: &Path, what: &str) {
    let reader = SqliteReader::open(dir).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(reader.read(&"a".into()).await.unwrap().events, texts(0, 5), "{what}");
    let report = verify(dir, |_| ()).unwrap();
    assert!(report.is_whole() && report.events == 7, "{what}: {report}");
    let store = open(dir).await;
    let (writer, session) = store.open_write(&"b".into()).await.unwrap();
    assert_eq!(session.events, texts(0, 2), "{what}");
    writer.append(batch(2, 1)).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(names(dir), ["lock", DATABASE], "{what}");
    let reader = SqliteReader::open(dir).await.unwrap();
    assert_eq!(reader.read(&"b".into()).await.unwrap().events, texts(0, 3), "{what}");
}

#[tokio::test]
async fn a_crash_between_any_two_steps_of_opening_or_closing_leaves_a_readable_store() {
    let whole = tempfile::tempdir().unwrap();
    small(whole.path()).await;
    let closed = std::fs::read(whole.path().join(DATABASE)).unwrap();
    assert!(!says_log(&closed), "a closed store has no log");
    // The log as it was before it was emptied, all of it copied into the database.
    let store = open(whole.path()).await;
    store.put_value("k", Bytes::from_static(b"v")).await.unwrap();
    let log = std::fs::read(whole.path().join(LOG)).unwrap();
    assert!(says_log(&std::fs::read(whole.path().join(DATABASE)).unwrap()));
    store.close().await.unwrap();
    let copied = std::fs::read(whole.path().join(DATABASE)).unwrap();
    let cases: Vec<(_, _, Option<&[u8]>)> = vec![
        (
            "the header says that there is a log, and there is none yet",
            with_header(&closed, 2),
            None,
        ),
        ("the log is begun", with_header(&closed, 2), Some(&[])),
        ("a log that is not copied", with_header(&closed, 2), Some(&log)),
        ("a log that is copied", with_header(&copied, 2), Some(&log)),
        ("a log that was to be removed, and is back", copied.clone(), Some(&log)),
        ("an empty one that was to be removed, and is back", copied, Some(&[])),
    ];
    for (what, database, log) in cases {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(DATABASE), database).unwrap();
        if let Some(log) = log {
            std::fs::write(dir.path().join(LOG), log).unwrap();
        }
        is_the_small_store(dir.path(), what).await;
    }
}

#[tokio::test]
async fn a_store_that_is_half_made_is_none_and_is_made_anew() {
    for draft in [&b""[..], b"SQLite format 3\0 and no more"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("sessions.sqlite.draft"), draft).unwrap();
        assert!(StoreKind::detect(dir.path()).is_err());
        small(dir.path()).await;
        is_the_small_store(dir.path(), "made anew").await;
    }
}

#[tokio::test]
async fn a_change_that_another_program_left_half_done_is_named_and_taken_back() {
    let (dir, left) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    small(dir.path()).await;
    let other = rusqlite::Connection::open(dir.path().join(DATABASE)).unwrap();
    other
        .execute_batch("PRAGMA cache_size = 1; BEGIN; UPDATE kv SET body = zeroblob(100000)")
        .unwrap();
    for name in [DATABASE, JOURNAL] {
        std::fs::copy(dir.path().join(name), left.path().join(name)).unwrap();
    }
    let refused = SqliteReader::open(left.path()).await.err().unwrap().to_string();
    assert!(refused.contains("sessions.sqlite-journal can take back"), "{refused}");
    let refused = verify(left.path(), |_| ()).unwrap_err().to_string();
    assert!(refused.contains("opened for writing"), "{refused}");
    open(left.path()).await.close().await.unwrap();
    is_the_small_store(left.path(), "taken back").await;
}
