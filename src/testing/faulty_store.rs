//! A store whose operations fail when told to, or by chance.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{
    EventBatch, ListPage, ListQuery, OpenedSession, SessionStat, SessionWriter, Store, StoreError,
    StoreReader, StoredSession, ValuePage, ValueQuery,
};

use super::faults::{Faults, Mishap, StoreOdds, StoreOp};

/// A store over another that can be made to fail before or after the deed, to be slow, and to be
/// full: by count, or by odds from a seed. Clones share the faults.
///
/// ```
/// use playhouse::testing::{FaultyStore, StoreOdds, StoreOp};
/// use playhouse::plugin_api::store::{Store, StoreError};
///
/// # fn run(inner: impl Store) {
/// let store = FaultyStore::new(inner);
/// store.fail(StoreOp::Append, 2, StoreError::Full { path: "/disk".into() });
/// // The next two appends fail, the third one works.
/// store.fill(4096);
/// // Once 4 KiB more have been written, the disk is full.
/// store.heal();
/// store.chaos(7, StoreOdds::default());
/// // From now on, a seeded generator says what fails.
/// # }
/// ```
#[derive(Clone)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    faults: Faults,
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

    /// Lets the next `times` operations of this kind fail before anything is done, in place of what
    /// was said before of the kind.
    pub fn fail(&self, op: StoreOp, times: usize, error: StoreError) {
        self.faults.plan(op, times, Mishap::Refused(error));
    }

    /// As [`FaultyStore::fail`], but what was asked is done: a flush that fails after it has synced,
    /// an append that fails after it has written.
    pub fn fail_late(&self, op: StoreOp, times: usize, error: StoreError) {
        self.faults.plan(op, times, Mishap::Lost(error));
    }

    /// Lets the next `times` operations of this kind be done, and answer this much later on tokio's
    /// clock.
    pub fn delay(&self, op: StoreOp, times: usize, by: Duration) {
        self.faults.plan(op, times, Mishap::Slow(by));
    }

    /// Leaves this many bytes for events and tails. What does not fit any more is refused with
    /// [`StoreError::Full`], until there is more room or [`FaultyStore::heal`].
    pub fn fill(&self, bytes_left: u64) {
        self.faults.fill(bytes_left);
    }

    /// From now on also fails by chance. The same seed draws the same for the same operations in the
    /// same order.
    pub fn chaos(&self, seed: u64, odds: StoreOdds) {
        self.faults.chaos(seed, odds);
    }

    /// Lets every operation work again: takes back all that was told, and frees the disk.
    pub fn heal(&self) {
        self.faults.heal();
    }

    /// How many operations of this kind have failed, on demand or by chance. Late ones count, slow
    /// ones do not.
    pub fn struck(&self, op: StoreOp) -> usize {
        self.faults.struck(op)
    }

    /// How often each kind of fault struck, slow answers included.
    pub fn tally(&self) -> BTreeMap<&'static str, u64> {
        self.faults.tally()
    }
}

impl Faults {
    /// Lets an operation meet its fate.
    fn meet<'a, T: Send + 'a>(
        &self,
        op: StoreOp,
        bytes: usize,
        work: impl FnOnce() -> BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        match self.draw(op, bytes) {
            None => work(),
            // Whoever closes is told of a failure, and has closed.
            Some(Mishap::Refused(error)) if op != StoreOp::Close => {
                futures::future::ready(Err(error)).boxed()
            }
            Some(Mishap::Refused(error) | Mishap::Lost(error)) => {
                let work = work();
                async move { work.await.and(Err(error)) }.boxed()
            }
            Some(Mishap::Slow(by)) => {
                let work = work();
                async move {
                    let done = work.await;
                    tokio::time::sleep(by).await;
                    done
                }
                .boxed()
            }
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
        self.faults.meet(StoreOp::Read, 0, || self.inner.read(id))
    }

    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>> {
        self.faults.meet(StoreOp::List, 0, || self.inner.stat(id))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>> {
        self.faults.meet(StoreOp::List, 0, || self.inner.list(query))
    }

    fn list_values(&self, query: ValueQuery) -> BoxFuture<'_, Result<ValuePage, StoreError>> {
        self.faults.meet(StoreOp::Value, 0, || self.inner.list_values(query))
    }

    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.faults.meet(StoreOp::Value, 0, || self.inner.get_value(key))
    }
}

impl Store for FaultyStore {
    fn create<'a>(
        &'a self,
        header: &'a Arc<SessionHeader>,
        inherited_event_count: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn SessionWriter>, StoreError>> {
        let created = self
            .faults
            .meet(StoreOp::Create, 0, || self.inner.create(header, inherited_event_count));
        async move { Ok(self.faults.writer(created.await?)) }.boxed()
    }

    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<OpenedSession, StoreError>> {
        let opened = self.faults.meet(StoreOp::OpenWrite, 0, || self.inner.open_write(id));
        async move {
            let (writer, stored) = opened.await?;
            Ok((self.faults.writer(writer), stored))
        }
        .boxed()
    }

    fn delete<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        self.faults.meet(StoreOp::Delete, 0, || self.inner.delete(id))
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.faults.meet(StoreOp::Value, value.len(), || self.inner.put_value(key, value))
    }

    fn remove_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.faults.meet(StoreOp::Value, 0, || self.inner.remove_value(key))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.faults.meet(StoreOp::Flush, 0, || self.inner.flush())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.faults.meet(StoreOp::Close, 0, || self.inner.close())
    }
}

struct FaultyWriter {
    inner: Arc<dyn SessionWriter>,
    faults: Faults,
}

impl SessionWriter for FaultyWriter {
    fn append(&self, batch: EventBatch) -> BoxFuture<'static, Result<(), StoreError>> {
        let bytes = batch.events.iter().map(Bytes::len).sum();
        self.faults.meet(StoreOp::Append, bytes, || self.inner.append(batch))
    }

    fn tail(&self, attempt: u64, part: Bytes) -> BoxFuture<'static, Result<(), StoreError>> {
        self.faults.meet(StoreOp::Tail, part.len(), || self.inner.tail(attempt, part))
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.faults.meet(StoreOp::Flush, 0, || self.inner.flush())
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.faults.meet(StoreOp::Close, 0, || self.inner.close())
    }
}
