//! What the tests of this folder share: harnesses on scripted models, gates, and a store that fails
//! on demand.

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use playhouse::{
    Agent, AgentOptions, Event, EventBody, Harness, SessionId, TurnEndReason,
    messages::header::SessionHeader,
    models::scripted::{Reply, Script, ScriptedAdapter},
    plugin_api::{
        store::{
            EventBatch, ListPage, ListQuery, SessionStat, SessionWriter, Store, StoreError,
            StoreReader, StoredSession, ValuePage, ValueQuery,
        },
        tool::{Tool, tool_fn},
    },
};
use playhouse_stores::MemoryStore;
use tokio::sync::{Semaphore, watch};

/// No wait of these tests takes long; one that does has failed.
pub async fn soon<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("it ends soon")
}

pub fn options() -> AgentOptions {
    AgentOptions::new().model("scripted", "any")
}

/// A harness over a store, with a model that plays these replies.
pub async fn on(
    store: Arc<dyn Store>,
    replies: impl IntoIterator<Item = Reply>,
) -> (Harness, Arc<ScriptedAdapter>) {
    with(Harness::builder().shared_store(store), replies).await
}

pub async fn with(
    builder: playhouse::HarnessBuilder,
    replies: impl IntoIterator<Item = Reply>,
) -> (Harness, Arc<ScriptedAdapter>) {
    let harness = builder.start().await.unwrap();
    let model = Arc::new(ScriptedAdapter::new(Script::sequence(replies)));
    let _ = harness.world().models.register(["scripted"], model.clone()).unwrap();
    (harness, model)
}

pub async fn in_memory(
    replies: impl IntoIterator<Item = Reply>,
) -> (Harness, Arc<ScriptedAdapter>, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    let (harness, model) = on(store.clone(), replies).await;
    (harness, model, store)
}

pub fn kinds_of<'a>(events: impl IntoIterator<Item = &'a Arc<Event>>) -> Vec<String> {
    events.into_iter().map(|event| event.body.kind().to_owned()).collect()
}

pub fn kinds(agent: &Agent) -> Vec<String> {
    kinds_of(agent.session().log().iter())
}

pub fn turn_ends(agent: &Agent) -> Vec<TurnEndReason> {
    let log = agent.session().log();
    let ends = log.iter().filter_map(|event| match &event.body {
        EventBody::TurnEnd(end) => Some(end.reason.clone()),
        _ => None,
    });
    ends.collect()
}

/// The texts of the user messages that the model was told, in order.
pub fn user_texts(agent: &Agent) -> Vec<String> {
    let log = agent.session().log();
    let texts = log.iter().filter_map(|event| match &event.body {
        EventBody::UserMessage(message) => Some(message.text()),
        _ => None,
    });
    texts.collect()
}

pub async fn stored_kinds(store: &dyn Store, id: &SessionId) -> Vec<String> {
    let stored = store.read(id).await.unwrap();
    let kind = |json: &Bytes| {
        let text = std::str::from_utf8(json).unwrap();
        Event::from_json(text).unwrap().body.kind().to_owned()
    };
    stored.events.iter().map(kind).collect()
}

/// The store holds exactly what the log says.
pub async fn assert_stored(store: &dyn Store, agent: &Agent) {
    assert_stored_in(store, agent).await;
}

pub async fn assert_stored_in<R: StoreReader + ?Sized>(store: &R, agent: &Agent) {
    let stored = store.read(agent.id()).await.unwrap();
    let stored: Vec<_> =
        stored.events.iter().map(|json| String::from_utf8(json.to_vec()).unwrap()).collect();
    let log: Vec<_> = agent.session().log().iter().map(|event| event.to_json()).collect();
    assert_eq!(stored, log);
}

/// Where tasks of a test wait for each other.
pub struct Pause {
    arrived: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

impl Pause {
    pub fn closed() -> Arc<Self> {
        Arc::new(Self { arrived: watch::Sender::new(0), open: watch::Sender::new(false) })
    }

    pub fn opened() -> Arc<Self> {
        let pause = Self::closed();
        pause.open();
        pause
    }

    pub async fn pass(&self) {
        self.arrived.send_modify(|count| *count += 1);
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
    }

    pub async fn arrived(&self, count: usize) {
        soon(self.arrived.subscribe().wait_for(|so_far| *so_far >= count)).await.unwrap();
    }

    pub fn count(&self) -> usize {
        *self.arrived.borrow()
    }

    pub fn close(&self) {
        self.open.send_replace(false);
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }
}

/// What happened, in order.
#[derive(Clone, Default)]
pub struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    pub fn note(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }

    pub fn read(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
pub struct Nothing {}

/// A tool that waits at a gate, and heeds no cancel.
pub fn stubborn_tool(name: &str, pause: Arc<Pause>) -> Arc<dyn Tool> {
    Arc::new(tool_fn(name, "Waits.", move |_: Nothing, _run| {
        let pause = pause.clone();
        async move {
            pause.pass().await;
            Ok("done")
        }
    }))
}

/// A store whose opening can be held up, and whose handles fail on demand.
pub struct Gated {
    pub inner: MemoryStore,
    pub opening: Arc<Pause>,
    pub state: Arc<HandleState>,
}

pub struct HandleState {
    pub closed: watch::Sender<usize>,
    /// Where appends are held up; open at first.
    pub appending: Arc<Pause>,
    pub fail_append: AtomicBool,
    /// How many appends fail from now on.
    pub fail_appends: AtomicUsize,
    /// The session whose appends fail.
    pub broken: Mutex<Option<SessionId>>,
    pub fail_flush: AtomicBool,
    pub fail_close: AtomicBool,
    /// What flushes and closes take to go on.
    pub permits: Semaphore,
    pub flushes: watch::Sender<usize>,
    pub diary: Diary,
}

impl Gated {
    pub fn new(inner: MemoryStore, opening: Arc<Pause>) -> Arc<Self> {
        let state = HandleState {
            closed: watch::Sender::new(0),
            appending: Pause::opened(),
            fail_append: AtomicBool::new(false),
            fail_appends: AtomicUsize::new(0),
            broken: Mutex::default(),
            fail_flush: AtomicBool::new(false),
            fail_close: AtomicBool::new(false),
            permits: Semaphore::new(Semaphore::MAX_PERMITS),
            flushes: watch::Sender::new(0),
            diary: Diary::default(),
        };
        Arc::new(Self { inner, opening, state: Arc::new(state) })
    }

    /// Waits until so many handles were closed.
    pub async fn closed(&self, count: usize) {
        soon(self.state.closed.subscribe().wait_for(|closed| *closed >= count)).await.unwrap();
    }

    /// Flushes and closes wait from now on for a step each.
    pub fn hold(&self) {
        self.state.permits.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub fn step(&self) {
        self.state.permits.add_permits(1);
    }

    pub fn release(&self) {
        self.state.permits.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    pub fn flushes(&self) -> usize {
        *self.state.flushes.borrow()
    }

    /// Waits until so many flushes have begun.
    pub async fn flushing(&self, count: usize) {
        soon(self.state.flushes.subscribe().wait_for(|begun| *begun >= count)).await.unwrap();
    }

    fn wrap(&self, id: &SessionId, inner: Arc<dyn SessionWriter>) -> Arc<dyn SessionWriter> {
        Arc::new(GatedHandle { id: id.clone(), inner, state: self.state.clone() })
    }
}

struct GatedHandle {
    id: SessionId,
    inner: Arc<dyn SessionWriter>,
    state: Arc<HandleState>,
}

fn broken(what: &str) -> StoreError {
    StoreError::Io { what: what.to_owned(), cause: "the disk is on fire".to_owned() }
}

impl SessionWriter for GatedHandle {
    fn append(&self, batch: EventBatch) -> BoxFuture<'static, Result<(), StoreError>> {
        let (inner, state, id) = (self.inner.clone(), self.state.clone(), self.id.clone());
        Box::pin(async move {
            state.appending.pass().await;
            let one_less = |left: usize| left.checked_sub(1);
            let counted =
                state.fail_appends.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
            let is_broken = state.broken.lock().unwrap().as_ref() == Some(&id);
            if state.fail_append.load(Ordering::SeqCst) || counted.is_ok() || is_broken {
                return Err(broken("append"));
            }
            inner.append(batch).await
        })
    }

    fn tail(&self, attempt: u64, part: Bytes) -> BoxFuture<'static, Result<(), StoreError>> {
        self.inner.tail(attempt, part)
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        let (state, inner) = (self.state.clone(), self.inner.clone());
        Box::pin(async move {
            state.flushes.send_modify(|begun| *begun += 1);
            state.permits.acquire().await.unwrap().forget();
            if state.fail_flush.load(Ordering::SeqCst) {
                return Err(broken("flush"));
            }
            inner.flush().await
        })
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        let (state, inner) = (self.state.clone(), self.inner.clone());
        Box::pin(async move {
            state.permits.acquire().await.unwrap().forget();
            let outcome = inner.close().await;
            state.diary.note("handle closed");
            state.closed.send_modify(|count| *count += 1);
            if state.fail_close.load(Ordering::SeqCst) {
                return Err(broken("close"));
            }
            outcome
        })
    }
}

impl StoreReader for Gated {
    fn describe(&self) -> String {
        "a gated store".to_owned()
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

impl Store for Gated {
    fn create<'a>(
        &'a self,
        header: &'a Arc<SessionHeader>,
        inherited: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn SessionWriter>, StoreError>> {
        Box::pin(async move {
            self.opening.pass().await;
            Ok(self.wrap(&header.id, self.inner.create(header, inherited).await?))
        })
    }

    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<(Arc<dyn SessionWriter>, StoredSession), StoreError>> {
        Box::pin(async move {
            self.opening.pass().await;
            let (handle, stored) = self.inner.open_write(id).await?;
            Ok((self.wrap(id, handle), stored))
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
