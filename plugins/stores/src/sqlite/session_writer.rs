//! The right to write one session of a SQLite store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use playhouse_plugin_api::store::{EventBatch, SessionWriter, StoreError};

use super::Office;
use super::claims::{Claim, Entered};
use super::queue::Job;
use crate::journal_store::done_if_closed;

/// See [`SessionWriter`]. Dropping it gives the claim back without a flush.
pub(crate) struct SqliteSessionWriter {
    office: Arc<Office>,
    claim: Arc<Claim>,
    entered: Mutex<Option<Entered>>,
    closed: AtomicBool,
}

impl SqliteSessionWriter {
    pub(crate) fn new(office: Arc<Office>, entered: Entered) -> Self {
        let claim = Arc::clone(&entered.claim);
        Self { office, claim, entered: Mutex::new(Some(entered)), closed: AtomicBool::new(false) }
    }

    fn submit(&self, job: Job) -> BoxFuture<'static, Result<(), StoreError>> {
        if self.closed.load(Ordering::Acquire) {
            return ready(Err(StoreError::Closed)).boxed();
        }
        self.office.submit(job)
    }
}

impl SessionWriter for SqliteSessionWriter {
    fn append(&self, batch: EventBatch) -> BoxFuture<'static, Result<(), StoreError>> {
        if !self.closed.load(Ordering::Acquire) {
            match batch.check() {
                Err(refused) => return ready(Err(refused)).boxed(),
                Ok(()) if batch.events.is_empty() => return ready(Ok(())).boxed(),
                Ok(()) => {}
            }
        }
        self.submit(Job::Append { claim: Arc::clone(&self.claim), batch })
    }

    fn tail(&self, attempt: u64, part: Bytes) -> BoxFuture<'static, Result<(), StoreError>> {
        self.submit(Job::Tail { claim: Arc::clone(&self.claim), attempt, part })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.submit(Job::Materialize { claim: Arc::clone(&self.claim) })
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        if self.closed.swap(true, Ordering::AcqRel) {
            // Nobody may have heard how the first one ended.
            let flushed = self.office.submit(Job::Barrier);
            return async move { done_if_closed(flushed.await) }.boxed();
        }
        // A session that was never materialized leaves no trace.
        let flushed = self.office.submit(Job::Barrier);
        let entered = self.entered.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move {
            let flushed = flushed.await;
            drop(entered);
            flushed
        }
        .boxed()
    }
}
