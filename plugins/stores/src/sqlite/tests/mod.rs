//! Tests of what only the SQLite store promises.

mod beside;
pub(crate) mod contract;
mod cuts;
mod damage;
mod faults;
mod kill;

use super::*;
use crate::contract::{batch, header, texts};
use crate::journal::tests::model_disk::{Dice, seed};
use crate::kind::{StoreConfig, StoreKind};
use crate::verify::verify;

async fn open(dir: &Path) -> SqliteStore {
    SqliteStore::open(dir, SqliteConfig::default()).await.unwrap()
}

fn code<T>(result: Result<T, StoreError>) -> &'static str {
    result.err().map_or("ok", |error| error.code())
}

/// A store with sessions `a` of 5 events and `b` of 2, and a value `k`; closed.
async fn small(dir: &Path) {
    let store = open(dir).await;
    for (id, count) in [("a", 5), ("b", 2)] {
        let writer = store.create(&header(id), 0).await.unwrap();
        writer.append(batch(0, count)).await.unwrap();
    }
    store.put_value("k", Bytes::from_static(b"v")).await.unwrap();
    store.close().await.unwrap();
}

/// Another hand in the database.
fn tamper(dir: &Path, sql: &str) {
    let connection = rusqlite::Connection::open(dir.join(schema::FILE)).unwrap();
    connection.execute_batch(sql).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_closed_store_is_one_file_that_reading_leaves_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/store");
    small(&path).await;
    assert_eq!(names(&path), ["lock", "sessions.sqlite"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("sessions.sqlite")), 0o600);
        assert_eq!(mode(&path.join("lock")), 0o600);
    }
    let before = std::fs::read(path.join("sessions.sqlite")).unwrap();
    let reader = SqliteReader::open(&path).await.unwrap();
    assert_eq!(reader.read(&"a".into()).await.unwrap().events, texts(0, 5));
    assert_eq!(reader.read_events(&"a".into(), 3..9).await.unwrap(), texts(3, 2));
    assert_eq!(reader.read_events(&"a".into(), 7..9).await.unwrap(), Vec::<Bytes>::new());
    assert_eq!(reader.get_value("k").await.unwrap().unwrap(), "v");
    assert_eq!(code(reader.read(&"c".into()).await), "SESSION_NOT_FOUND");
    assert_eq!(reader.list(ListQuery::default()).await.unwrap().sessions.len(), 2);
    let report = verify(&path, |_| ()).unwrap();
    assert!(report.is_whole(), "{report}");
    assert_eq!((report.kind, report.sessions, report.events), (StoreKind::Sqlite, 2, 7));
    assert_eq!(names(&path), ["lock", "sessions.sqlite"]);
    assert_eq!(std::fs::read(path.join("sessions.sqlite")).unwrap(), before);
}

#[tokio::test]
async fn a_store_is_opened_by_its_kind_only() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!("sqlite".parse(), Ok(StoreKind::Sqlite));
    let store = StoreConfig::new(StoreKind::Sqlite).open(dir.path()).await.unwrap();
    assert!(store.describe().contains("SQLite"));
    store.close().await.unwrap();
    assert_eq!(StoreKind::detect(dir.path()), Ok(StoreKind::Sqlite));
    let refused = StoreConfig::default().open(dir.path()).await.err().unwrap().to_string();
    assert!(refused.contains("is of the kind sqlite, not journal"), "{refused}");
    assert!(crate::open_reader(dir.path()).await.is_ok());
}

#[tokio::test]
async fn only_databases_of_ours_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let refused = async |path: &Path| {
        let store = SqliteStore::open(path, SqliteConfig::default()).await;
        let reader = SqliteReader::open(path).await;
        let (store, reader) = (store.err().unwrap(), reader.err().unwrap());
        assert_eq!(store, reader);
        (store.code(), store.to_string())
    };
    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    tamper(&foreign, "CREATE TABLE theirs (a)");
    let (code, text) = refused(&foreign).await;
    assert!(code == "INVALID_ARGUMENT" && text.contains("no Playhouse store"), "{text}");
    let newer = dir.path().join("newer");
    small(&newer).await;
    tamper(&newer, "PRAGMA user_version = 2");
    let (code, text) = refused(&newer).await;
    assert!(code == "FORMAT_UNSUPPORTED" && text.contains("upgrade"), "{text}");
    let altered = dir.path().join("altered");
    small(&altered).await;
    tamper(&altered, "ALTER TABLE kv ADD COLUMN more TEXT");
    let (code, text) = refused(&altered).await;
    assert!(code == "STORE_IO" && text.contains("`kv` is not as it was made"), "{text}");
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(empty.join("sessions.sqlite"), "").unwrap();
    let (code, text) = refused(&empty).await;
    assert!(code == "STORE_IO" && text.contains("the file is empty"), "{text}");
    #[cfg(unix)]
    {
        let linked = dir.path().join("linked");
        small(&dir.path().join("aim")).await;
        std::fs::create_dir(&linked).unwrap();
        let aim = dir.path().join("aim/sessions.sqlite");
        std::os::unix::fs::symlink(aim, linked.join("sessions.sqlite")).unwrap();
        let (code, text) = refused(&linked).await;
        assert!(code == "INVALID_ARGUMENT" && text.contains("no regular file"), "{text}");
    }
    let bad = SqliteConfig { page_bytes: 1000, ..SqliteConfig::default() };
    assert_eq!(self::code(SqliteStore::open(dir.path(), bad).await), "INVALID_ARGUMENT");
}

#[tokio::test]
async fn an_abandoned_call_is_done_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    drop(writer.append(batch(0, 3)));
    drop(store.close());
    // The thread ends after what was queued, and only then is the store free.
    let thread = store.office.thread.lock().unwrap().take().unwrap();
    thread.join().unwrap();
    store.close().await.unwrap();
    let store = open(dir.path()).await;
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, 3));
    store.close().await.unwrap();
}

#[tokio::test]
async fn compaction_gives_back_what_deleted_sessions_held() {
    let dir = tempfile::tempdir().unwrap();
    small(dir.path()).await;
    let store = open(dir.path()).await;
    let writer = store.create(&header("large"), 0).await.unwrap();
    writer.append(batch(0, 5000)).await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(code(compact_sqlite(dir.path())), "STORE_IN_USE");
    store.delete(&"large".into()).await.unwrap();
    store.close().await.unwrap();
    let report = compact_sqlite(dir.path()).unwrap();
    assert!(report.bytes_before > 300_000 && report.bytes_after < 60_000, "{report:?}");
    assert_eq!(names(dir.path()), ["lock", "sessions.sqlite"]);
    let report = verify(dir.path(), |_| ()).unwrap();
    assert!(report.is_whole(), "{report}");
    let store = open(dir.path()).await;
    assert_eq!(store.read(&"a".into()).await.unwrap().events, texts(0, 5));
    store.close().await.unwrap();
    tamper(dir.path(), "DELETE FROM events WHERE place & 4294967295 = 1");
    assert_eq!(code(compact_sqlite(dir.path())), "INVALID_ARGUMENT");
}
