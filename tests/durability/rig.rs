//! What the tests of this folder share: stores that die, and a store that is watched.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use playhouse::{
    Agent, AgentOptions, Event, NewAgent, SessionId,
    messages::header::SessionHeader,
    plugin_api::store::{
        EventBatch, ListPage, ListQuery, OpenedSession, SessionStat, SessionWriter, Store,
        StoreError, StoreReader, StoredSession, ValuePage, ValueQuery,
    },
};
use playhouse_stores::{MemoryStore, StoreConfig, StoreKind};
use tempfile::TempDir;
use tokio::sync::watch;

pub use crate::lifecycle::rig::{
    Pause, kinds, on, options, soon, stubborn_tool, turn_ends, user_texts,
};

pub fn new() -> NewAgent {
    NewAgent::new(options())
}

pub fn with(options: AgentOptions) -> NewAgent {
    NewAgent::new(options)
}

/// The kinds of stores that a process leaves behind.
pub fn on_disk() -> impl Iterator<Item = StoreKind> {
    StoreKind::ALL.iter().copied().filter(|kind| *kind != StoreKind::Memory)
}

pub async fn open(kind: StoreKind, dir: &Path) -> Arc<dyn Store> {
    StoreConfig::new(kind).open(dir).await.unwrap()
}

/// The store in `dir` as `kill -9` would leave it now: what the files hold, and nobody's lock.
pub fn killed(dir: &Path) -> TempDir {
    let image = tempfile::tempdir().unwrap();
    copy(dir, image.path());
    image
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (kind, target) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Stores a log as it would be found.
pub async fn plant(store: &dyn Store, id: &str, events: &[String]) {
    let header = Arc::new(SessionHeader::new(id.into(), 1));
    let writer = store.create(&header, 0).await.unwrap();
    let events = events.iter().map(|event| Bytes::from(event.clone())).collect();
    writer.append(EventBatch { first_seq: 0, events }).await.unwrap();
    writer.close().await.unwrap();
}

/// The stored events of a session, as they are spelled.
pub async fn stored(store: &dyn Store, id: &SessionId) -> Vec<String> {
    let events = store.read(id).await.unwrap().events;
    events.iter().map(|event| String::from_utf8(event.to_vec()).unwrap()).collect()
}

/// The log of a live session, as it is spelled.
pub fn spelled(agent: &Agent) -> Vec<String> {
    agent.session().log().iter().map(|event| event.to_json()).collect()
}

pub fn is_durable(agent: &Agent) -> bool {
    agent.session().marks().borrow().durable == agent.session().log().len()
}

/// Where a store's operations wait.
pub struct Gate {
    open: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

impl Gate {
    fn new() -> Self {
        Self { open: watch::Sender::new(true), waiting: watch::Sender::new(0) }
    }

    pub fn hold(&self) {
        self.open.send_replace(false);
    }

    pub fn release(&self) {
        self.open.send_replace(true);
    }

    /// Until somebody waits here.
    pub async fn reached(&self) {
        soon(self.waiting.subscribe().wait_for(|waiting| *waiting > 0)).await.unwrap();
    }

    async fn pass(&self) {
        self.waiting.send_modify(|waiting| *waiting += 1);
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        self.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

type Fails = Box<dyn Fn(&SessionId) -> bool + Send>;

/// A store in memory whose operations are noted, can be held up, and whose flushes can fail.
#[derive(Clone)]
pub struct Watched {
    pub inner: MemoryStore,
    pub state: Arc<State>,
}

pub struct State {
    diary: Mutex<Vec<String>>,
    pub flushes: Gate,
    pub tails: Gate,
    fails: Mutex<Option<Fails>>,
}

impl Watched {
    pub fn new() -> Self {
        let state = State {
            diary: Mutex::default(),
            flushes: Gate::new(),
            tails: Gate::new(),
            fails: Mutex::default(),
        };
        Self { inner: MemoryStore::new(), state: Arc::new(state) }
    }

    /// What was done so far: `append N`, `tail`, `flush after KIND`, `close`.
    pub fn diary(&self) -> Vec<String> {
        self.state.diary.lock().unwrap().clone()
    }

    /// What the flushes so far came after.
    pub fn flushes(&self) -> Vec<String> {
        let after = |entry: String| entry.strip_prefix("flush after ").map(str::to_owned);
        self.diary().into_iter().filter_map(after).collect()
    }

    /// Lets the flushes of these sessions fail.
    pub fn break_flush(&self, of: impl Fn(&SessionId) -> bool + Send + 'static) {
        *self.state.fails.lock().unwrap() = Some(Box::new(of));
    }

    pub fn heal(&self) {
        *self.state.fails.lock().unwrap() = None;
    }

    fn wrap(&self, id: &SessionId, inner: Arc<dyn SessionWriter>) -> Arc<dyn SessionWriter> {
        Arc::new(WatchedWriter { store: self.clone(), id: id.clone(), inner })
    }

    fn note(&self, entry: String) {
        self.state.diary.lock().unwrap().push(entry);
    }

    fn check(&self, id: &SessionId) -> Result<(), StoreError> {
        match &*self.state.fails.lock().unwrap() {
            Some(fails) if fails(id) => {
                let (what, cause) = (format!("syncing {id}"), "the disk is on fire".to_owned());
                Err(StoreError::Io { what, cause })
            }
            _ => Ok(()),
        }
    }
}

struct WatchedWriter {
    store: Watched,
    id: SessionId,
    inner: Arc<dyn SessionWriter>,
}

impl SessionWriter for WatchedWriter {
    fn append(&self, batch: EventBatch) -> BoxFuture<'static, Result<(), StoreError>> {
        self.store.note(format!("append {}", batch.events.len()));
        self.inner.append(batch)
    }

    fn tail(&self, attempt: u64, part: Bytes) -> BoxFuture<'static, Result<(), StoreError>> {
        self.store.note("tail".to_owned());
        let (store, inner) = (self.store.clone(), self.inner.clone());
        Box::pin(async move {
            store.state.tails.pass().await;
            inner.tail(attempt, part).await
        })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        let (store, id, inner) = (self.store.clone(), self.id.clone(), self.inner.clone());
        let last = match store.inner.read(&id).now_or_never() {
            Some(Ok(stored)) => stored.events.last().cloned(),
            _ => None,
        };
        let last = last.map(|json| Event::from_json(std::str::from_utf8(&json).unwrap()).unwrap());
        let last = last.map_or("nothing".to_owned(), |event| event.body.kind().to_owned());
        store.note(format!("flush after {last}"));
        Box::pin(async move {
            store.state.flushes.pass().await;
            store.check(&id)?;
            inner.flush().await
        })
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.store.note("close".to_owned());
        let (store, id, inner) = (self.store.clone(), self.id.clone(), self.inner.clone());
        Box::pin(async move {
            let synced = store.check(&id);
            inner.close().await.and(synced)
        })
    }
}

impl StoreReader for Watched {
    fn describe(&self) -> String {
        "a watched store".to_owned()
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        self.inner.read(id)
    }

    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>> {
        self.inner.stat(id)
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>> {
        self.inner.list(query)
    }

    fn list_values(&self, query: ValueQuery) -> BoxFuture<'_, Result<ValuePage, StoreError>> {
        self.inner.list_values(query)
    }

    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.inner.get_value(key)
    }
}

impl Store for Watched {
    fn create<'a>(
        &'a self,
        header: &'a Arc<SessionHeader>,
        inherited: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn SessionWriter>, StoreError>> {
        Box::pin(
            async move { Ok(self.wrap(&header.id, self.inner.create(header, inherited).await?)) },
        )
    }

    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<OpenedSession, StoreError>> {
        Box::pin(async move {
            let (writer, stored) = self.inner.open_write(id).await?;
            Ok((self.wrap(id, writer), stored))
        })
    }

    fn delete<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.delete(id)
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.put_value(key, value)
    }

    fn remove_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.remove_value(key)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.flush()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.close()
    }
}

/// The smallest picture.
pub fn gif() -> Vec<u8> {
    b"GIF89a\x03\0\x02\0\0\0\0;".to_vec()
}
