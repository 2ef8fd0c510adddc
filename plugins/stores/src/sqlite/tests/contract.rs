//! The table of cases that all storage shares, as it shows in a database.

use super::*;
use crate::sqlite::rows::{SessionRow, StoreRow};

/// Gives a session another header, sealed as if it had been stored so.
pub(crate) fn with_header(dir: &Path, id: &str, header: &str) {
    let connection = rusqlite::Connection::open(dir.join(schema::FILE)).unwrap();
    let seal = StoreRow::read(&connection).unwrap().seal();
    let mut row = SessionRow::find(&connection, seal, id).unwrap().unwrap();
    row.header = Bytes::copy_from_slice(header.as_bytes());
    row.write(&connection, seal).unwrap();
}

/// How a session refuses to be opened, twice the same: a refusal gives the claim back.
async fn refusal(dir: &Path, id: &str) -> StoreError {
    let store = open(dir).await;
    let id = SessionId::from(id);
    let first = store.open_write(&id).await.err().unwrap();
    assert_eq!(store.open_write(&id).await.err().unwrap(), first);
    assert_eq!(store.read(&id).await.err().unwrap(), first);
    assert_eq!(store.read(&"b".into()).await.unwrap().events, texts(0, 2));
    store.close().await.unwrap();
    first
}

#[tokio::test]
async fn c1_a_header_of_another_session_is_refused_and_neither_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    small(dir.path()).await;
    with_header(dir.path(), "a", &serde_json::to_string(&*header("b")).unwrap());
    let refused = refusal(dir.path(), "a").await;
    let text = refused.to_string();
    assert_eq!(refused.code(), "STORE_CORRUPT");
    assert!(text.contains("`a`") && text.contains("session `b`"), "{text}");
}

#[tokio::test]
async fn c2_headers_of_other_versions_and_shapes_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    small(dir.path()).await;
    for (header, code, words) in [
        (r#"{"version":2,"id":"a"}"#, "FORMAT_UNSUPPORTED", "newer"),
        (r#"{"version":2,"of":["another","shape"]}"#, "FORMAT_UNSUPPORTED", "newer"),
        (r#"{"version":0,"id":"a"}"#, "FORMAT_UNSUPPORTED", "version"),
        (r#"{"version":"1"}"#, "STORE_CORRUPT", "header"),
        ("[1]", "STORE_CORRUPT", "header"),
    ] {
        with_header(dir.path(), "a", header);
        let refused = refusal(dir.path(), "a").await;
        assert_eq!(refused.code(), code, "{header}: {refused}");
        assert!(refused.to_string().contains(words), "{header}: {refused}");
    }
}

// Events that a reader does not know (C3) are the harness's to refuse: the store takes any text.

#[tokio::test]
async fn rows_that_are_lost_or_changed_are_named() {
    for (sql, place) in [
        ("DELETE FROM events WHERE place = (1 << 32) + 2", "sessions.sqlite, event 2"),
        ("DELETE FROM events WHERE place = (1 << 32) + 4", "sessions.sqlite, event 4"),
        ("UPDATE events SET place = (1 << 32) + 9 WHERE place = (1 << 32) + 3", "event 3"),
        ("UPDATE events SET body = x'7b7d' WHERE place = (1 << 32) + 3", "event 3"),
        ("INSERT INTO events VALUES ((1 << 32) + 5, 0, x'7b7d')", "event 5"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        small(dir.path()).await;
        tamper(dir.path(), sql);
        let refused = refusal(dir.path(), "a").await.to_string();
        assert!(refused.contains(place), "{sql}: {refused}");
        let report = verify(dir.path(), |_| ()).unwrap();
        assert_eq!(report.unreadable.len(), 1, "{sql}: {report}");
        // What is whole can be read for a rescue.
        let reader = SqliteReader::open(dir.path()).await.unwrap();
        assert_eq!(reader.read(&"b".into()).await.unwrap().events, texts(0, 2));
    }
}

#[tokio::test]
async fn a_damaged_catalog_is_not_written_and_its_gaps_are_not_called_absent() {
    for (sql, place) in [
        ("DELETE FROM sessions WHERE id = 'a'", "table sessions"),
        ("UPDATE sessions SET next_seq = 4 WHERE id = 'a'", "table sessions, row `a`"),
        ("DELETE FROM kv", "table kv"),
        ("UPDATE kv SET key = 'j'", "table kv"),
        ("UPDATE store SET last_session = 1", "table store"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        small(dir.path()).await;
        tamper(dir.path(), sql);
        let refused = SqliteStore::open(dir.path(), SqliteConfig::default()).await.err().unwrap();
        assert!(refused.to_string().contains(place), "{sql}: {refused}");
        let Ok(reader) = SqliteReader::open(dir.path()).await else {
            assert_eq!(place, "table store");
            continue;
        };
        assert!(reader.damages()[0].contains(place), "{:?}", reader.damages());
        assert_eq!(code(reader.read(&"nobody".into()).await), "STORE_CORRUPT");
        assert_eq!(code(reader.get_value("nothing").await), "STORE_IO");
        assert_eq!(reader.read(&"b".into()).await.unwrap().events, texts(0, 2));
        assert!(!verify(dir.path(), |_| ()).unwrap().is_whole());
    }
}

#[tokio::test]
async fn sessions_on_both_sides_of_a_damaged_page_are_listed_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let config = SqliteConfig { page_bytes: 512, ..SqliteConfig::default() };
    let store = SqliteStore::open(dir.path(), config).await.unwrap();
    for n in 100..200 {
        let writer = store.create(&header(&format!("s{n}")), 0).await.unwrap();
        writer.append(batch(0, 1)).await.unwrap();
    }
    store.close().await.unwrap();
    let file = dir.path().join(schema::FILE);
    let mut bytes = std::fs::read(&file).unwrap();
    // The kind of a leaf of the table of sessions, the one with s150.
    let is_leaf = |page: &[u8]| page[0] == 10 && page.windows(4).any(|text| text == b"s150");
    let at = bytes.chunks(512).position(is_leaf).unwrap() * 512;
    bytes[at] = 0;
    std::fs::write(&file, bytes).unwrap();
    let refused = SqliteStore::open(dir.path(), SqliteConfig::default()).await.err().unwrap();
    assert!(refused.to_string().contains("sessions.sqlite"), "{refused}");
    let reader = SqliteReader::open(dir.path()).await.unwrap();
    let mut query = ListQuery { after: None, limit: 10 };
    let mut listed = Vec::new();
    loop {
        let page = reader.list(query.clone()).await.unwrap();
        listed.extend(page.sessions.into_iter().map(|stat| stat.header.id.clone()));
        let Some(next) = page.next else { break };
        query.after = Some(next);
    }
    assert!(listed.is_sorted() && (90..100).contains(&listed.len()), "{}", listed.len());
    for id in &listed {
        assert_eq!(reader.read(id).await.unwrap().events, texts(0, 1));
    }
    assert_eq!(code(reader.read(&"s150".into()).await), "STORE_CORRUPT");
    let report = verify(dir.path(), |_| ()).unwrap();
    assert!(!report.is_whole() && report.sessions == listed.len() as u64, "{report}");
}
