//! A disk that is slow, that may fail after the deed, and that knows what would survive.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{
    EventBatch, ListPage, ListQuery, OpenedSession, SessionStat, SessionWriter, Store, StoreError,
    StoreReader, StoredSession, StoredTail, ValuePage, ValueQuery,
};
use playhouse_stores::MemoryStore;

use super::plan::Odds;

/// A store in memory that answers late. What is asked takes effect at once and in order, as on a disk
/// whose answer is lost when its process dies.
#[derive(Clone)]
pub(super) struct Disk {
    inner: MemoryStore,
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    odds: Odds,
    synced: BTreeMap<SessionId, Synced>,
    /// Failures that were told of deeds that were done.
    late: u64,
}

/// What of a session survives a power cut.
#[derive(Clone, Default)]
struct Synced {
    events: usize,
    tail: Option<StoredTail>,
}

impl Disk {
    /// All that `inner` holds is durable.
    pub(super) fn new(inner: MemoryStore, odds: Odds, rng: Rng) -> Self {
        let state = State { rng, odds, synced: BTreeMap::new(), late: 0 };
        let disk = Self { inner, state: Arc::new(Mutex::new(state)) };
        for session in disk.sessions() {
            disk.synced(&session.header.id);
        }
        disk
    }

    /// How often it failed on its own.
    pub(super) fn late_failures(&self) -> u64 {
        self.lock().late
    }

    /// All stored sessions, by id.
    pub(super) fn sessions(&self) -> Vec<StoredSession> {
        let inner = self.inner.reopen();
        let query = ListQuery { after: None, limit: usize::MAX };
        let listed = now(inner.list(query)).map(|page| page.sessions).unwrap_or_default();
        listed.into_iter().filter_map(|stat| now(inner.read(&stat.header.id)).ok()).collect()
    }

    /// How many events of a session would survive.
    pub(super) fn durable(&self, id: &SessionId) -> usize {
        self.lock().synced.get(id).map_or(0, |synced| synced.events)
    }

    /// What the next process finds: all that was written or, after a power cut, at least what was
    /// synced.
    pub(super) fn after_crash(&self, power: bool) -> MemoryStore {
        let next = MemoryStore::new();
        for session in self.sessions() {
            let id = &session.header.id;
            let written = session.events.len();
            let (events, tail) = if power {
                let synced = self.lock().synced.get(id).cloned().unwrap_or_default();
                let kept = self.lock().rng.usize(synced.events..=written);
                (kept, if kept == written { session.tail } else { synced.tail })
            } else {
                (written, session.tail)
            };
            if events == 0 && tail.is_none() && power {
                continue;
            }
            copy(&next, &session.header, &session.events[..events], tail);
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn synced(&self, id: &SessionId) {
        if let Ok(stored) = now(self.inner.reopen().read(id)) {
            let synced = Synced { events: stored.events.len(), tail: stored.tail };
            self.lock().synced.insert(id.clone(), synced);
        }
    }

    /// Answers after a while; now and then with a failure, whatever was done.
    fn answer<'a, T: Send + 'a>(
        &self,
        done: Result<T, StoreError>,
        may_fail: bool,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let State { rng, odds, late, .. } = &mut *self.lock();
        let slow = rng.u32(0..1_000) < odds.store_slow;
        let wait = if slow { Duration::from_millis(rng.u64(0..=50)) } else { Duration::ZERO };
        let fails = may_fail && done.is_ok() && rng.u32(0..1_000) < odds.store_late;
        *late += u64::from(fails);
        async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            if fails {
                let (what, cause) = ("answering".to_owned(), "simulated".to_owned());
                return Err(StoreError::Io { what, cause });
            }
            done
        }
        .boxed()
    }

    fn writer(&self, id: &SessionId, inner: Arc<dyn SessionWriter>) -> Arc<dyn SessionWriter> {
        Arc::new(DiskWriter { disk: self.clone(), id: id.clone(), inner })
    }
}

/// What the store in memory does is done when it is asked.
fn now<T>(answer: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
    answer.now_or_never().unwrap_or(Err(StoreError::Closed))
}

fn copy(to: &MemoryStore, header: &Arc<SessionHeader>, events: &[Bytes], tail: Option<StoredTail>) {
    // A fresh store refuses nothing.
    let Ok(writer) = now(to.create(header, 0)) else { return };
    let batch = EventBatch { first_seq: 0, events: events.to_vec() };
    let _ = now(writer.append(batch));
    for part in tail.iter().flat_map(|tail| tail.parts.iter().map(|part| (tail.attempt, part))) {
        let _ = now(writer.tail(part.0, part.1.clone()));
    }
    let _ = now(writer.flush());
    let _ = now(writer.close());
}

impl StoreReader for Disk {
    fn describe(&self) -> String {
        "simulated disk".to_owned()
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        self.answer(now(self.inner.read(id)), false)
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

impl Store for Disk {
    fn create<'a>(
        &'a self,
        header: &'a Arc<SessionHeader>,
        inherited_event_count: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn SessionWriter>, StoreError>> {
        let created = now(self.inner.create(header, inherited_event_count));
        self.answer(created.map(|inner| self.writer(&header.id, inner)), false)
    }

    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<OpenedSession, StoreError>> {
        let opened = now(self.inner.open_write(id));
        self.answer(opened.map(|(inner, stored)| (self.writer(id, inner), stored)), false)
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
        self.answer(now(self.inner.flush()), true)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.answer(now(self.inner.close()), false)
    }
}

struct DiskWriter {
    disk: Disk,
    id: SessionId,
    inner: Arc<dyn SessionWriter>,
}

impl SessionWriter for DiskWriter {
    fn append(&self, batch: EventBatch) -> BoxFuture<'static, Result<(), StoreError>> {
        self.disk.answer(now(self.inner.append(batch)), true)
    }

    fn tail(&self, attempt: u64, part: Bytes) -> BoxFuture<'static, Result<(), StoreError>> {
        self.disk.answer(now(self.inner.tail(attempt, part)), true)
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        let done = now(self.inner.flush());
        if done.is_ok() {
            self.disk.synced(&self.id);
        }
        self.disk.answer(done, true)
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.disk.synced(&self.id);
        self.disk.answer(now(self.inner.close()), false)
    }
}
