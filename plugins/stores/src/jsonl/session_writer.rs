//! The right to write one session of a JSONL store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use playhouse_plugin_api::store::{EventBatch, SessionWriter, StoreError};

use super::office::{Claimed, Slot};
use super::session_file::SessionFile;

/// See [`SessionWriter`]. Dropping it gives the claim back without a flush.
pub(super) struct JsonlSessionWriter {
    claimed: Arc<Claimed>,
    closed: AtomicBool,
}

impl JsonlSessionWriter {
    pub(super) fn new(claimed: Arc<Claimed>) -> Self {
        Self { claimed, closed: AtomicBool::new(false) }
    }

    /// Queues work on the session's files, now.
    fn submit(
        &self,
        work: impl FnOnce(&mut SessionFile) -> Result<(), StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        if self.closed.load(Ordering::Acquire) {
            return ready(Err(StoreError::Closed)).boxed();
        }
        let (office, claim) = (Arc::clone(&self.claimed.office), Arc::clone(&self.claimed.claim));
        self.claimed.desk.submit(move |slot| {
            let file = slot.file()?;
            let done = work(file);
            if file.is_stored() {
                office.record(file.stat());
                claim.settle();
            }
            if file.is_dirty() {
                office.wrote();
            }
            done
        })
    }
}

impl SessionWriter for JsonlSessionWriter {
    fn append(&self, batch: EventBatch) -> BoxFuture<'static, Result<(), StoreError>> {
        if batch.events.is_empty() {
            let closed = self.closed.load(Ordering::Acquire);
            let open =
                if closed { Err(StoreError::Closed) } else { self.claimed.office.check_open() };
            return ready(open).boxed();
        }
        if !self.closed.load(Ordering::Acquire)
            && let Err(refused) = batch.check()
        {
            return ready(Err(refused)).boxed();
        }
        self.submit(move |file| file.append(&batch))
    }

    fn tail(&self, attempt: u64, part: Bytes) -> BoxFuture<'static, Result<(), StoreError>> {
        self.submit(move |file| file.tail(attempt, &part))
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.submit(|file| {
            file.materialize()?;
            file.sync()
        })
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        if self.closed.swap(true, Ordering::AcqRel) {
            // Nobody may have heard how the first one ended.
            return self.claimed.desk.submit(Slot::sync);
        }
        let claimed = Arc::clone(&self.claimed);
        self.claimed.desk.submit(move |slot| {
            // Given back however this ends.
            let _release = Release(claimed);
            let synced = slot.sync();
            if synced.is_ok() && slot.check().is_ok() {
                *slot = Slot::Empty;
            }
            synced
        })
    }
}

struct Release(Arc<Claimed>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for JsonlSessionWriter {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Acquire) {
            self.claimed.release();
        }
    }
}
