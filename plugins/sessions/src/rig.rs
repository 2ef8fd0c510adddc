//! Sessions for tests: live ones without actors, and stored ones.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    event::{NewEvent, Seq},
    header::SessionHeader,
    id::SessionId,
    log::Log,
    protocol::CommandNo,
    session::{Command, Mint, SessionCore},
    session_state::KnownKinds,
};
use playhouse_plugin_api::{
    session::{Session, SessionCell},
    store::{
        EventBatch, ListPage, ListQuery, OpenedSession, SessionStat, SessionWriter, Store,
        StoreError, StoreReader, StoredSession, ValuePage, ValueQuery,
    },
};
use playhouse_stores::MemoryStore;
use serde_json::json;

struct Count(i64);

impl Mint for Count {
    fn now(&mut self) -> i64 {
        self.0 += 1;
        self.0
    }

    fn message_id(&mut self) -> playhouse_messages::id::MessageId {
        "m".into()
    }
}

/// A live session that the test appends to.
pub(crate) struct Live {
    pub(crate) session: Session,
    core: SessionCore,
    commands: u64,
}

impl Live {
    pub(crate) fn new(id: &str) -> Self {
        let header = Arc::new(SessionHeader::new(id.into(), 0));
        let known = Arc::new(KnownKinds::new());
        let core = SessionCore::load(header, Log::new(), &known).unwrap();
        let cell = SessionCell::new(
            &core,
            0,
            known,
            None,
            0,
            playhouse_plugin_api::undurable::Undurable::new(0),
        );
        Self { session: Session::new(cell), core, commands: 0 }
    }

    pub(crate) fn append(&mut self, events: impl IntoIterator<Item = NewEvent>) {
        let (from, events) = (self.core.log().len(), events.into_iter().collect());
        self.commands += 1;
        let number = CommandNo { origin: 0, number: self.commands };
        let reply = self.core.execute(Command::Append(events), &mut Count(from as i64));
        self.session.cell().publish(&self.core, from, number, &reply).unwrap();
        assert!(self.core.log().len() > from, "{reply:?}");
    }
}

/// An event that projections of tests count by its number.
pub(crate) fn note(number: u64) -> NewEvent {
    NewEvent::custom("x/note", json!({"number": number})).ignorable()
}

/// An event that no projection of tests looks at.
pub(crate) fn other() -> NewEvent {
    NewEvent::custom("x/other", json!({})).ignorable()
}

/// Events as a log, with their seqs for times.
pub(crate) fn log(events: impl IntoIterator<Item = NewEvent>) -> Log {
    let events = (0..).zip(events);
    events.map(|(seq, event)| Arc::new(event.at(seq, seq as i64))).collect()
}

/// Stores a session.
pub(crate) async fn store(store: &MemoryStore, header: SessionHeader, log: &Log) {
    let events: Vec<_> = log.iter().cloned().collect();
    let writer = store.create(&Arc::new(header), 0).await.unwrap();
    writer.append(EventBatch::encode(&events)).await.unwrap();
    writer.close().await.unwrap();
}

/// A store that says which events are read, and refuses values if told to.
pub(crate) struct Watched {
    pub(crate) inner: MemoryStore,
    pub(crate) reads: std::sync::Mutex<Vec<Seq>>,
    pub(crate) refuses_values: bool,
}

impl Watched {
    pub(crate) fn new() -> Self {
        Self { inner: MemoryStore::new(), reads: Default::default(), refuses_values: false }
    }

    /// Where the reads since the last call began.
    pub(crate) fn took(&self) -> Vec<Seq> {
        std::mem::take(&mut *self.reads.lock().unwrap())
    }
}

impl StoreReader for Watched {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        self.inner.read(id)
    }

    fn read_events<'a>(
        &'a self,
        id: &'a SessionId,
        range: std::ops::Range<Seq>,
    ) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        self.reads.lock().unwrap().push(range.start);
        self.inner.read_events(id, range)
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
        self.inner.create(header, inherited)
    }

    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<OpenedSession, StoreError>> {
        self.inner.open_write(id)
    }

    fn delete<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.delete(id)
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        if self.refuses_values {
            return async { Err(StoreError::Full { path: "/disk".into() }) }.boxed();
        }
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
