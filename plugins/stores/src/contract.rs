//! What every store keeps to, run against each.

use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::{header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{
    EventBatch, ListQuery, SessionWriter, Store, StoreError, StoredTail,
};

/// A store under test and its next life over the same storage.
pub(crate) trait Backend {
    fn open(&self) -> impl Future<Output = Arc<dyn Store>>;
}

pub(crate) fn header(id: &str) -> Arc<SessionHeader> {
    let mut header = SessionHeader::new(SessionId::from(id), 1);
    header.cwd = Some("/w".to_owned());
    Arc::new(header)
}

pub(crate) fn texts(first_seq: u64, count: u64) -> Vec<Bytes> {
    let text = |seq| format!("{{\"type\":\"x/y\",\"seq\":{seq},\"time\":1,\"data\":{{}}}}");
    (first_seq..first_seq + count).map(|seq| Bytes::from(text(seq))).collect()
}

pub(crate) fn batch(first_seq: u64, count: u64) -> EventBatch {
    EventBatch { first_seq, events: texts(first_seq, count) }
}

fn code<T>(result: Result<T, StoreError>) -> &'static str {
    result.err().map_or("ok", |error| error.code())
}

async fn ids(store: &dyn Store) -> Vec<String> {
    let page = store.list(ListQuery::default()).await.unwrap();
    page.sessions.iter().map(|stat| stat.header.id.to_string()).collect()
}

/// Runs every case; each uses ids of its own. Returns how many ran.
pub(crate) async fn run(backend: &impl Backend) -> usize {
    appends_are_read_back(backend).await;
    creation_is_lazy_and_claims_are_exclusive(backend).await;
    sequence_is_kept(backend).await;
    tails_gather_parts_until_another_attempt(backend).await;
    lists_are_paged(backend).await;
    readers_run_beside_writers(backend).await;
    deletion_refuses_live_sessions(backend).await;
    values_are_kept(backend).await;
    closed_handles_refuse(backend).await;
    headers_are_checked(backend).await;
    odd_ids_never_collide(backend).await;
    many_sessions_are_written_at_once(backend).await;
    12
}

async fn appends_are_read_back(backend: &impl Backend) {
    let store = backend.open().await;
    let mut header = (*header("a1")).clone();
    header.parent_session = Some("p".into());
    header.is_seeded = true;
    header.delegation_depth = Some(2);
    header.agent_preset = Some("name".to_owned());
    let header = Arc::new(header);
    let writer = store.create(&header, 3).await.unwrap();
    writer.append(batch(0, 6)).await.unwrap();
    writer.append(EventBatch::default()).await.unwrap();
    // Two appends at once go in the order of the calls.
    let (first, second) = (writer.append(batch(6, 1)), writer.append(batch(7, 1)));
    second.await.unwrap();
    first.await.unwrap();
    writer.flush().await.unwrap();
    writer.close().await.unwrap();
    store.close().await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = backend.open().await;
    let (writer, session) = store.open_write(&header.id).await.unwrap();
    assert_eq!(session.header, header);
    assert_eq!(session.inherited_event_count, 3);
    assert_eq!(session.events, texts(0, 8));
    writer.append(batch(8, 2)).await.unwrap();
    assert_eq!(store.read(&header.id).await.unwrap().events, texts(0, 10));
    // One event may be larger than what is written at once, or than a segment.
    let large = self::header("large");
    let events = vec![Bytes::from(vec![b' '; 3_000_000]), Bytes::from_static(b"{}")];
    let whole = store.create(&large, 0).await.unwrap();
    whole.append(EventBatch { first_seq: 0, events: events.clone() }).await.unwrap();
    assert_eq!(store.read(&large.id).await.unwrap().events, events);
    let stat = store.stat(&header.id).await.unwrap().unwrap();
    assert_eq!(stat.event_count, 10);
    assert_eq!(stat.size_bytes, texts(0, 10).iter().map(|e| e.len() as u64).sum::<u64>());
    store.close().await.unwrap();
}

async fn creation_is_lazy_and_claims_are_exclusive(backend: &impl Backend) {
    let store = backend.open().await;
    let (header, id) = (header("lazy"), SessionId::from("lazy"));
    assert_eq!(code(store.open_write(&id).await), "SESSION_NOT_FOUND");
    assert_eq!(code(store.read(&id).await), "SESSION_NOT_FOUND");
    assert_eq!(store.stat(&id).await, Ok(None));
    let (one, two) = futures::join!(store.create(&header, 0), store.create(&header, 0));
    let mut won = [one, two].into_iter().partition::<Vec<_>, _>(Result::is_ok);
    assert_eq!((won.0.len(), won.1.len()), (1, 1));
    assert_eq!(code(won.1.remove(0)), "SESSION_ALREADY_EXISTS");
    let writer = won.0.remove(0).unwrap();
    assert_eq!(code(store.open_write(&id).await), "SESSION_ALREADY_OWNED");
    assert_eq!(store.stat(&id).await.unwrap().unwrap().event_count, 0);
    assert!(store.read(&id).await.unwrap().events.is_empty());
    assert!(ids(&*store).await.contains(&"lazy".to_owned()));
    writer.append(EventBatch::default()).await.unwrap();
    // Closed without anything stored: no trace, and the id is free.
    writer.close().await.unwrap();
    assert_eq!(store.stat(&id).await, Ok(None));
    assert!(!ids(&*store).await.contains(&"lazy".to_owned()));
    // A flush stores an empty session.
    let writer = store.create(&header, 0).await.unwrap();
    writer.flush().await.unwrap();
    drop(writer);
    assert_eq!(code(store.create(&header, 0).await), "SESSION_ALREADY_EXISTS");
    store.close().await.unwrap();
    drop(store);
    let store = backend.open().await;
    let (writer, session) = store.open_write(&id).await.unwrap();
    assert!(session.events.is_empty());
    assert_eq!(code(store.open_write(&id).await), "SESSION_ALREADY_OWNED");
    writer.append(batch(0, 1)).await.unwrap();
    // Dropping a writer gives its claim back too.
    drop(writer);
    store.open_write(&id).await.unwrap();
    store.close().await.unwrap();
}

async fn sequence_is_kept(backend: &impl Backend) {
    let store = backend.open().await;
    let header = header("seq");
    let writer = store.create(&header, 0).await.unwrap();
    writer.append(batch(0, 6)).await.unwrap();
    let refused = writer.append(batch(7, 1)).await.unwrap_err();
    let expected = StoreError::SequenceMismatch { id: header.id.clone(), expected: 6, got: 7 };
    assert_eq!(refused, expected);
    // What is stored already may come again, alone or with more behind it.
    writer.append(batch(2, 3)).await.unwrap();
    writer.append(batch(4, 4)).await.unwrap();
    let mut other = batch(5, 2);
    other.events[1] = Bytes::from_static(b"{}");
    let refused = writer.append(other).await.unwrap_err();
    assert_eq!(refused, StoreError::Conflict { id: header.id.clone(), seq: 6 });
    assert_eq!(store.read(&header.id).await.unwrap().events, texts(0, 8));
    store.close().await.unwrap();
}

async fn tails_gather_parts_until_another_attempt(backend: &impl Backend) {
    let store = backend.open().await;
    let header = header("tail");
    let tail = |attempt, parts: &[&'static str]| {
        let parts = parts.iter().map(|part| Bytes::from_static(part.as_bytes())).collect();
        Some(StoredTail { attempt, parts })
    };
    let part = |text: &'static str| Bytes::from_static(text.as_bytes());
    let writer = store.create(&header, 0).await.unwrap();
    writer.append(batch(0, 2)).await.unwrap();
    assert_eq!(store.read(&header.id).await.unwrap().tail, None);
    for (attempt, text) in [(1, "a"), (1, "b"), (2, "c"), (2, "d")] {
        writer.tail(attempt, part(text)).await.unwrap();
    }
    writer.append(batch(2, 1)).await.unwrap();
    writer.tail(2, part("d")).await.unwrap();
    // Events leave it alone, and equal parts are parts.
    assert_eq!(store.read(&header.id).await.unwrap().tail, tail(2, &["c", "d", "d"]));
    writer.close().await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = backend.open().await;
    let (writer, session) = store.open_write(&header.id).await.unwrap();
    assert_eq!(session.tail, tail(2, &["c", "d", "d"]));
    writer.tail(2, part("e")).await.unwrap();
    assert_eq!(store.read(&header.id).await.unwrap().tail, tail(2, &["c", "d", "d", "e"]));
    // A lower number is another attempt too: the count is the writer's own.
    writer.tail(1, part("f")).await.unwrap();
    let (first, second) = (writer.tail(1, part("g")), writer.tail(1, part("h")));
    futures::future::try_join(first, second).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = backend.open().await;
    assert_eq!(store.read(&header.id).await.unwrap().tail, tail(1, &["f", "g", "h"]));
    store.close().await.unwrap();
}

async fn lists_are_paged(backend: &impl Backend) {
    let store = backend.open().await;
    for n in 0..7 {
        let writer = store.create(&header(&format!("page-{n}")), 0).await.unwrap();
        writer.append(batch(0, n + 1)).await.unwrap();
        writer.close().await.unwrap();
    }
    store.close().await.unwrap();
    drop(store);
    let store = backend.open().await;
    // Some in the storage of an earlier life, some new, one only claimed, one gone.
    let new = store.create(&header("page-35"), 0).await.unwrap();
    new.append(batch(0, 1)).await.unwrap();
    let claimed = store.create(&header("page-55"), 0).await.unwrap();
    store.delete(&"page-2".into()).await.unwrap();
    for limit in [1, 2, 3, 100] {
        let mut after = Some(SessionId::from("page-"));
        let mut seen = Vec::new();
        while let Some(from) = after {
            let query = ListQuery { after: Some(from), limit };
            let page = store.list(query).await.unwrap();
            assert!(page.sessions.len() <= limit);
            for stat in &page.sessions {
                assert_eq!(store.stat(&stat.header.id).await.unwrap().as_ref(), Some(stat));
                seen.push(stat.header.id.to_string());
            }
            after = page.next;
        }
        seen.retain(|id| id.starts_with("page-"));
        let expected =
            ["page-0", "page-1", "page-3", "page-35", "page-4", "page-5", "page-55", "page-6"];
        assert_eq!(seen, expected, "limit {limit}");
    }
    drop((new, claimed));
    store.close().await.unwrap();
}

async fn readers_run_beside_writers(backend: &impl Backend) {
    let store = backend.open().await;
    let header = header("beside");
    let writer = store.create(&header, 0).await.unwrap();
    for seq in 0..20 {
        writer.append(batch(seq, 1)).await.unwrap();
        // A read that starts after an append resolved sees it.
        assert_eq!(store.read(&header.id).await.unwrap().events.len() as u64, seq + 1);
        assert_eq!(store.stat(&header.id).await.unwrap().unwrap().event_count, seq + 1);
    }
    store.close().await.unwrap();
}

async fn deletion_refuses_live_sessions(backend: &impl Backend) {
    let store = backend.open().await;
    let header = header("gone");
    assert_eq!(code(store.delete(&header.id).await), "SESSION_NOT_FOUND");
    let writer = store.create(&header, 0).await.unwrap();
    writer.append(batch(0, 3)).await.unwrap();
    assert_eq!(code(store.delete(&header.id).await), "SESSION_ALREADY_OWNED");
    writer.close().await.unwrap();
    store.delete(&header.id).await.unwrap();
    assert_eq!(code(store.read(&header.id).await), "SESSION_NOT_FOUND");
    assert!(!ids(&*store).await.contains(&"gone".to_owned()));
    // The id is free again, and nothing of the old session comes back.
    let writer = store.create(&header, 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    writer.close().await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = backend.open().await;
    assert_eq!(store.read(&header.id).await.unwrap().events, texts(0, 1));
    store.delete(&header.id).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = backend.open().await;
    assert_eq!(code(store.open_write(&header.id).await), "SESSION_NOT_FOUND");
    store.close().await.unwrap();
}

async fn values_are_kept(backend: &impl Backend) {
    let store = backend.open().await;
    assert_eq!(store.get_value("k").await, Ok(None));
    store.put_value("k", Bytes::from_static(b"1")).await.unwrap();
    let large = Bytes::from(vec![7; 300_000]);
    store.put_value("large", large.clone()).await.unwrap();
    store.put_value("k", Bytes::from_static(b"2")).await.unwrap();
    assert_eq!(code(store.put_value("", Bytes::new()).await), "INVALID_ARGUMENT");
    store.close().await.unwrap();
    drop(store);
    let store = backend.open().await;
    assert_eq!(store.get_value("k").await, Ok(Some(Bytes::from_static(b"2"))));
    assert_eq!(store.get_value("large").await, Ok(Some(large)));
    store.close().await.unwrap();
}

async fn closed_handles_refuse(backend: &impl Backend) {
    let store = backend.open().await;
    let header = header("closed");
    let writer = store.create(&header, 0).await.unwrap();
    writer.append(batch(0, 1)).await.unwrap();
    writer.close().await.unwrap();
    writer.close().await.unwrap();
    for refused in [
        writer.append(batch(1, 1)).await,
        writer.append(EventBatch::default()).await,
        writer.tail(1, Bytes::new()).await,
        writer.flush().await,
    ] {
        assert_eq!(refused, Err(StoreError::Closed));
    }
    let (writer, _) = store.open_write(&header.id).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(code(writer.append(batch(1, 1)).await), "STORE_CLOSED");
    assert_eq!(code(store.read(&header.id).await), "STORE_CLOSED");
    assert_eq!(code(store.flush().await), "STORE_CLOSED");
    assert_eq!(code(store.create(&self::header("x"), 0).await), "STORE_CLOSED");
}

async fn headers_are_checked(backend: &impl Backend) {
    let store = backend.open().await;
    let mut bad = (*header("checked")).clone();
    bad.cwd = Some("relative".to_owned());
    assert_eq!(code(store.create(&Arc::new(bad), 0).await), "INVALID_ARGUMENT");
    // Not seeded, so nothing can be inherited; and the id was not reserved.
    assert_eq!(code(store.create(&header("checked"), 2).await), "INVALID_ARGUMENT");
    assert_eq!(code(store.create(&header(""), 0).await), "INVALID_ARGUMENT");
    store.create(&header("checked"), 0).await.unwrap();
    store.close().await.unwrap();
}

async fn odd_ids_never_collide(backend: &impl Backend) {
    let long = "x".repeat(300);
    let odd = ["..", ".", "a/b", "a\\b", "a", "ä", "a\u{0}b", " ", "../../etc", &long];
    let store = backend.open().await;
    for (n, id) in (1..).zip(odd) {
        let writer = store.create(&header(id), 0).await.unwrap();
        writer.append(batch(0, n)).await.unwrap();
    }
    store.close().await.unwrap();
    drop(store);
    let store = backend.open().await;
    for (n, id) in (1..).zip(odd) {
        let session = store.read(&id.into()).await.unwrap();
        assert_eq!((session.header.id.as_str(), session.events.len()), (id, n));
    }
    store.close().await.unwrap();
}

async fn many_sessions_are_written_at_once(backend: &impl Backend) {
    let store = backend.open().await;
    let write = |n: u64| {
        let store = Arc::clone(&store);
        async move {
            let header = header(&format!("many-{n}"));
            let writer: Arc<dyn SessionWriter> = store.create(&header, 0).await.unwrap();
            for seq in 0..10 {
                writer.append(batch(seq * (n % 3 + 1), n % 3 + 1)).await.unwrap();
            }
            writer.flush().await.unwrap();
        }
    };
    futures::future::join_all((0..100).map(write)).await;
    store.close().await.unwrap();
    drop(store);
    let store = backend.open().await;
    for n in 0..100 {
        let session = store.read(&format!("many-{n}").into()).await.unwrap();
        assert_eq!(session.events, texts(0, 10 * (n % 3 + 1)));
    }
    store.close().await.unwrap();
}

struct InMemory(crate::MemoryStore);

impl Backend for InMemory {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.reopen())
    }
}

struct InJournal {
    dir: tempfile::TempDir,
    index: bool,
    segment_bytes: u64,
}

impl Backend for InJournal {
    async fn open(&self) -> Arc<dyn Store> {
        let mut config = crate::JournalStoreConfig::default();
        config.journal.segment_bytes = self.segment_bytes;
        config.index = self.index;
        Arc::new(crate::JournalStore::open(self.dir.path(), config).await.unwrap())
    }
}

#[tokio::test]
async fn the_memory_store_keeps_the_contract() {
    let cases = run(&InMemory(crate::MemoryStore::new())).await;
    println!("contract of memory: cases run {cases}, faults found 0");
}

#[tokio::test]
async fn the_journal_store_keeps_the_contract() {
    for (index, segment_bytes) in [(true, 64 << 20), (true, 2000), (false, 2000)] {
        let dir = tempfile::tempdir().unwrap();
        let cases = run(&InJournal { dir, index, segment_bytes }).await;
        println!(
            "contract of the journal (index {index}, segments {segment_bytes} B): cases run {cases}, faults found 0"
        );
    }
}

#[cfg(feature = "sqlite")]
struct InSqlite {
    dir: tempfile::TempDir,
    page_bytes: u32,
}

#[cfg(feature = "sqlite")]
impl Backend for InSqlite {
    async fn open(&self) -> Arc<dyn Store> {
        let page_bytes = self.page_bytes;
        let config = crate::SqliteConfig { page_bytes, ..crate::SqliteConfig::default() };
        Arc::new(crate::SqliteStore::open(self.dir.path(), config).await.unwrap())
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn the_sqlite_store_keeps_the_contract() {
    for page_bytes in [4096, 512] {
        let dir = tempfile::tempdir().unwrap();
        let cases = run(&InSqlite { dir, page_bytes }).await;
        println!("contract of SQLite (pages {page_bytes} B): cases run {cases}, faults found 0");
    }
}
