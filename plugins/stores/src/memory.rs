//! A store that keeps sessions in memory: for tests, simulations and throw-away agents.
//!
//! It keeps the promises of the seam for as long as the value lives; "written" and "durable" mean
//! "in this process". Clones share what is stored, so a clone serves as the store of a next life.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use playhouse_messages::{header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{
    EventBatch, ListPage, ListQuery, Revision, SessionStat, SessionWriter, Store, StoreError,
    StoreReader, StoredSession, StoredTail, ValuePage, ValueQuery,
};

use crate::journal_store::{check_key, check_new};

/// The store. See the module's text.
#[derive(Clone, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<Shelves>>,
    closed: Arc<AtomicBool>,
}

#[derive(Default)]
struct Shelves {
    sessions: BTreeMap<SessionId, Kept>,
    values: BTreeMap<String, Bytes>,
    lives: u64,
}

struct Kept {
    /// Tells it from sessions that had its id before.
    life: u64,
    header: Arc<SessionHeader>,
    inherited: u64,
    events: Vec<Bytes>,
    tail: Option<StoredTail>,
    /// Whether anything of it is stored.
    materialized: bool,
    /// The closed mark of the writer that has it.
    owner: Option<Arc<AtomicBool>>,
}

impl Kept {
    fn stat(&self) -> SessionStat {
        SessionStat {
            header: Arc::clone(&self.header),
            event_count: self.events.len() as u64,
            size_bytes: self.events.iter().map(|event| event.len() as u64).sum(),
            revision: Revision::new(self.life, self.events.len() as u64),
        }
    }

    fn append(&mut self, batch: &EventBatch) -> Result<(), StoreError> {
        let id = || self.header.id.clone();
        let expected = self.events.len() as u64;
        if batch.first_seq > expected && !batch.events.is_empty() {
            return Err(StoreError::SequenceMismatch { id: id(), expected, got: batch.first_seq });
        }
        let mut new = Vec::new();
        for (seq, event) in (batch.first_seq..).zip(&batch.events) {
            let held = usize::try_from(seq).ok().and_then(|at| self.events.get(at));
            match held {
                Some(held) if held == event => {}
                Some(_) => return Err(StoreError::Conflict { id: id(), seq }),
                None => new.push(event.clone()),
            }
        }
        self.materialized |= !new.is_empty();
        self.events.append(&mut new);
        Ok(())
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A store over the same sessions, open even if this one is closed, as a process that starts
    /// anew would have it.
    #[must_use]
    pub fn reopen(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), closed: Arc::default() }
    }

    /// Puts other bytes in the place of a stored event, as damage would: for tests of readers.
    ///
    /// # Panics
    ///
    /// If there is no such event.
    #[cfg(any(test, feature = "testing"))]
    pub fn damage(&self, id: &SessionId, seq: usize, bytes: Bytes) {
        let mut shelves = lock(&self.shared);
        let kept = shelves.sessions.get_mut(id);
        let kept = kept.unwrap_or_else(|| panic!("no session {id} to damage"));
        kept.events[seq] = bytes;
    }

    fn shelves(&self) -> Result<MutexGuard<'_, Shelves>, StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        Ok(lock(&self.shared))
    }

    fn not_found(&self, id: &SessionId) -> StoreError {
        StoreError::NotFound { id: id.clone(), store: self.describe() }
    }

    fn create_now(
        &self,
        header: &Arc<SessionHeader>,
        inherited: u64,
    ) -> Result<Arc<dyn SessionWriter>, StoreError> {
        let mut shelves = self.shelves()?;
        check_new(header, inherited)?;
        if shelves.sessions.contains_key(&header.id) {
            return Err(StoreError::AlreadyExists { id: header.id.clone() });
        }
        let closed = Arc::new(AtomicBool::new(false));
        shelves.lives += 1;
        let kept = Kept {
            life: shelves.lives,
            header: Arc::clone(header),
            inherited,
            events: Vec::new(),
            tail: None,
            materialized: false,
            owner: Some(Arc::clone(&closed)),
        };
        shelves.sessions.insert(header.id.clone(), kept);
        Ok(self.writer(&header.id, closed))
    }

    fn writer(&self, id: &SessionId, closed: Arc<AtomicBool>) -> Arc<dyn SessionWriter> {
        Arc::new(MemoryWriter { store: self.clone(), id: id.clone(), closed })
    }

    fn read_now(&self, id: &SessionId) -> Result<StoredSession, StoreError> {
        let shelves = self.shelves()?;
        let kept = shelves.sessions.get(id).ok_or_else(|| self.not_found(id))?;
        Ok(stored(kept))
    }

    fn open_now(
        &self,
        id: &SessionId,
    ) -> Result<(Arc<dyn SessionWriter>, StoredSession), StoreError> {
        let mut shelves = self.shelves()?;
        let kept = shelves.sessions.get_mut(id).ok_or_else(|| self.not_found(id))?;
        if kept.owner.is_some() {
            return Err(StoreError::AlreadyOwned { id: id.clone() });
        }
        let closed = Arc::new(AtomicBool::new(false));
        kept.owner = Some(Arc::clone(&closed));
        let session = stored(kept);
        Ok((self.writer(id, closed), session))
    }

    fn list_now(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        use std::ops::Bound;
        let shelves = self.shelves()?;
        let start = query.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = shelves.sessions.range::<SessionId, _>((start, Bound::Unbounded));
        let sessions: Vec<SessionStat> =
            behind.by_ref().take(query.limit.max(1)).map(|(_, kept)| kept.stat()).collect();
        let last = sessions.last().map(|stat| stat.header.id.clone());
        let next = behind.next().and(last);
        Ok(ListPage { sessions, next })
    }

    fn list_values_now(&self, query: &ValueQuery) -> Result<ValuePage, StoreError> {
        use std::ops::Bound;
        let shelves = self.shelves()?;
        let start = query.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let behind = shelves.values.range::<str, _>((start, Bound::Unbounded));
        Ok(ValuePage::of(query, behind.map(|(key, _)| key.clone())))
    }

    fn delete_now(&self, id: &SessionId) -> Result<(), StoreError> {
        let mut shelves = self.shelves()?;
        let kept = shelves.sessions.get(id).ok_or_else(|| self.not_found(id))?;
        if kept.owner.is_some() {
            return Err(StoreError::AlreadyOwned { id: id.clone() });
        }
        shelves.sessions.remove(id);
        Ok(())
    }

    fn put_now(&self, key: &str, value: Bytes) -> Result<(), StoreError> {
        check_key(key)?;
        self.shelves()?.values.insert(key.to_owned(), value);
        Ok(())
    }

    /// Gives a writer's claim back; a session that never held anything is gone with it.
    fn release(&self, id: &SessionId, owner: &Arc<AtomicBool>) {
        let mut shelves = lock(&self.shared);
        if let Some(kept) = shelves.sessions.get_mut(id)
            && kept.owner.as_ref().is_some_and(|held| Arc::ptr_eq(held, owner))
        {
            kept.owner = None;
            if !kept.materialized {
                shelves.sessions.remove(id);
            }
        }
    }
}

fn lock(shelves: &Mutex<Shelves>) -> MutexGuard<'_, Shelves> {
    // No code of ours panics while it holds this.
    shelves.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stored(kept: &Kept) -> StoredSession {
    StoredSession {
        header: Arc::clone(&kept.header),
        inherited_event_count: kept.inherited,
        events: kept.events.clone(),
        tail: kept.tail.clone(),
    }
}

impl StoreReader for MemoryStore {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        async move { self.read_now(id) }.boxed()
    }

    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>> {
        async move { Ok(self.shelves()?.sessions.get(id).map(Kept::stat)) }.boxed()
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>> {
        async move { self.list_now(&query) }.boxed()
    }

    fn list_values(&self, query: ValueQuery) -> BoxFuture<'_, Result<ValuePage, StoreError>> {
        async move { self.list_values_now(&query) }.boxed()
    }

    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        async move { Ok(self.shelves()?.values.get(key).cloned()) }.boxed()
    }
}

impl Store for MemoryStore {
    fn create<'a>(
        &'a self,
        header: &'a Arc<SessionHeader>,
        inherited_event_count: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn SessionWriter>, StoreError>> {
        async move { self.create_now(header, inherited_event_count) }.boxed()
    }

    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<(Arc<dyn SessionWriter>, StoredSession), StoreError>> {
        async move { self.open_now(id) }.boxed()
    }

    fn delete<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        async move { self.delete_now(id) }.boxed()
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        async move { self.put_now(key, value) }.boxed()
    }

    fn remove_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            check_key(key)?;
            self.shelves()?.values.remove(key);
            Ok(())
        }
        .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(self.shelves().map(|_| ())).boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        if !self.closed.swap(true, Ordering::AcqRel) {
            // Its writers end with it, as they do when a process ends.
            let mut shelves = lock(&self.shared);
            shelves.sessions.retain(|_, kept| kept.materialized);
            for kept in shelves.sessions.values_mut() {
                if let Some(owner) = kept.owner.take() {
                    owner.store(true, Ordering::Release);
                }
            }
        }
        ready(Ok(())).boxed()
    }
}

struct MemoryWriter {
    store: MemoryStore,
    id: SessionId,
    closed: Arc<AtomicBool>,
}

impl MemoryWriter {
    /// Does something to the session, now: calls take effect in their order.
    fn with(
        &self,
        change: impl FnOnce(&mut Kept) -> Result<(), StoreError>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let outcome = if self.closed.load(Ordering::Acquire) {
            Err(StoreError::Closed)
        } else {
            self.store.shelves().and_then(|mut shelves| {
                let kept = shelves.sessions.get_mut(&self.id);
                kept.ok_or_else(|| self.store.not_found(&self.id)).and_then(change)
            })
        };
        ready(outcome).boxed()
    }
}

impl SessionWriter for MemoryWriter {
    fn append(&self, batch: EventBatch) -> BoxFuture<'static, Result<(), StoreError>> {
        self.with(|kept| batch.check().and_then(|()| kept.append(&batch)))
    }

    fn tail(&self, attempt: u64, part: Bytes) -> BoxFuture<'static, Result<(), StoreError>> {
        self.with(|kept| {
            kept.materialized = true;
            match &mut kept.tail {
                Some(tail) if tail.attempt == attempt => tail.parts.push(part),
                tail => *tail = Some(StoredTail { attempt, parts: vec![part] }),
            }
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.with(|kept| {
            kept.materialized = true;
            Ok(())
        })
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.store.release(&self.id, &self.closed);
        }
        ready(Ok(())).boxed()
    }
}

impl Drop for MemoryWriter {
    fn drop(&mut self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.store.release(&self.id, &self.closed);
        }
    }
}
