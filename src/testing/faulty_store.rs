//! A store whose operations fail when told to.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{
    EventBatch, ListPage, ListQuery, SessionStat, SessionWriter, Store, StoreError, StoreReader,
    StoredSession,
};

/// An operation of a store or of a session's writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOp {
    /// [`Store::create`].
    Create,
    /// [`Store::open_write`].
    OpenWrite,
    /// [`Store::read`].
    Read,
    /// [`Store::list`] and [`Store::stat`].
    List,
    /// [`Store::delete`].
    Delete,
    /// [`Store::put_value`] and [`Store::get_value`].
    Value,
    /// [`SessionWriter::append`].
    Append,
    /// [`SessionWriter::tail`].
    Tail,
    /// [`SessionWriter::flush`] and [`Store::flush`].
    Flush,
    /// [`SessionWriter::close`] and [`Store::close`]: the claim or the store is released all the
    /// same.
    Close,
}

/// A store over another whose operations fail when told to. Clones share the faults.
///
/// ```
/// use playhouse::testing::{FaultyStore, StoreOp};
/// use playhouse::plugin_api::store::{Store, StoreError, StoreReader};
///
/// # fn run(inner: impl Store) {
/// let store = FaultyStore::new(inner);
/// store.fail(StoreOp::Append, 2, StoreError::Full { path: "/disk".into() });
/// // The next two appends fail, the third one works.
/// # }
/// ```
#[derive(Clone)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    faults: Faults,
}

#[derive(Clone, Default)]
struct Faults(Arc<Mutex<HashMap<StoreOp, Fault>>>);

struct Fault {
    left: usize,
    error: StoreError,
    struck: usize,
}

impl FaultyStore {
    /// A store that works like `inner` until told otherwise.
    pub fn new(inner: impl Store) -> Self {
        Self::over(Arc::new(inner))
    }

    /// As [`FaultyStore::new`], over a store that is shared.
    pub fn over(inner: Arc<dyn Store>) -> Self {
        Self { inner, faults: Faults::default() }
    }

    /// Lets the next `times` operations of this kind fail, in place of what was said before.
    pub fn fail(&self, op: StoreOp, times: usize, error: StoreError) {
        let struck = self.struck(op);
        self.faults.lock().insert(op, Fault { left: times, error, struck });
    }

    /// Lets every operation work again.
    pub fn heal(&self) {
        for fault in self.faults.lock().values_mut() {
            fault.left = 0;
        }
    }

    /// How many operations of this kind have failed on demand.
    pub fn struck(&self, op: StoreOp) -> usize {
        self.faults.lock().get(&op).map_or(0, |fault| fault.struck)
    }
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, HashMap<StoreOp, Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, op: StoreOp) -> Result<(), StoreError> {
        match self.lock().get_mut(&op) {
            Some(fault) if fault.left > 0 => {
                fault.left -= 1;
                fault.struck += 1;
                Err(fault.error.clone())
            }
            _ => Ok(()),
        }
    }

    fn writer(&self, inner: Arc<dyn SessionWriter>) -> Arc<dyn SessionWriter> {
        Arc::new(FaultyWriter { inner, faults: self.clone() })
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({})", self.inner.describe())
    }
}

impl StoreReader for FaultyStore {
    fn describe(&self) -> String {
        format!("faulty {}", self.inner.describe())
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        match self.faults.check(StoreOp::Read) {
            Ok(()) => self.inner.read(id),
            Err(error) => failed(error),
        }
    }

    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>> {
        match self.faults.check(StoreOp::List) {
            Ok(()) => self.inner.stat(id),
            Err(error) => failed(error),
        }
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>> {
        match self.faults.check(StoreOp::List) {
            Ok(()) => self.inner.list(query),
            Err(error) => failed(error),
        }
    }

    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        match self.faults.check(StoreOp::Value) {
            Ok(()) => self.inner.get_value(key),
            Err(error) => failed(error),
        }
    }
}

impl Store for FaultyStore {
    fn create<'a>(
        &'a self,
        header: &'a Arc<SessionHeader>,
        inherited_event_count: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn SessionWriter>, StoreError>> {
        async move {
            self.faults.check(StoreOp::Create)?;
            let writer = self.inner.create(header, inherited_event_count).await?;
            Ok(self.faults.writer(writer))
        }
        .boxed()
    }

    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<(Arc<dyn SessionWriter>, StoredSession), StoreError>> {
        async move {
            self.faults.check(StoreOp::OpenWrite)?;
            let (writer, stored) = self.inner.open_write(id).await?;
            Ok((self.faults.writer(writer), stored))
        }
        .boxed()
    }

    fn delete<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        match self.faults.check(StoreOp::Delete) {
            Ok(()) => self.inner.delete(id),
            Err(error) => failed(error),
        }
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        match self.faults.check(StoreOp::Value) {
            Ok(()) => self.inner.put_value(key, value),
            Err(error) => failed(error),
        }
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        match self.faults.check(StoreOp::Flush) {
            Ok(()) => self.inner.flush(),
            Err(error) => failed(error),
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let fault = self.faults.check(StoreOp::Close);
            self.inner.close().await.and(fault)
        }
        .boxed()
    }
}

struct FaultyWriter {
    inner: Arc<dyn SessionWriter>,
    faults: Faults,
}

impl SessionWriter for FaultyWriter {
    fn append(&self, batch: EventBatch) -> BoxFuture<'static, Result<(), StoreError>> {
        match self.faults.check(StoreOp::Append) {
            Ok(()) => self.inner.append(batch),
            Err(error) => failed(error),
        }
    }

    fn tail(&self, attempt: u64, part: Bytes) -> BoxFuture<'static, Result<(), StoreError>> {
        match self.faults.check(StoreOp::Tail) {
            Ok(()) => self.inner.tail(attempt, part),
            Err(error) => failed(error),
        }
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        match self.faults.check(StoreOp::Flush) {
            Ok(()) => self.inner.flush(),
            Err(error) => failed(error),
        }
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        let fault = self.faults.check(StoreOp::Close);
        let closing = self.inner.close();
        async move { closing.await.and(fault) }.boxed()
    }
}

fn failed<'a, T: Send + 'a>(error: StoreError) -> BoxFuture<'a, Result<T, StoreError>> {
    futures::future::ready(Err(error)).boxed()
}
