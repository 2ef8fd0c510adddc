//! The right to write one session of a journal store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use playhouse_plugin_api::store::{EventBatch, SessionWriter, StoreError};

use super::claim::Claim;
use super::job::{Job, Outcome};
use super::office::Office;

/// See [`SessionWriter`]. Dropping it gives the claim back without a flush.
pub(crate) struct JournalSessionWriter {
    office: Arc<Office>,
    claim: Arc<Claim>,
    closed: Arc<AtomicBool>,
}

impl JournalSessionWriter {
    pub(crate) fn new(office: Arc<Office>, claim: Arc<Claim>) -> Self {
        Self { office, claim, closed: Arc::new(AtomicBool::new(false)) }
    }

    fn submit(&self, job: Job) -> BoxFuture<'static, Result<(), StoreError>> {
        if self.closed.load(Ordering::Acquire) {
            return ready(Err(StoreError::Closed)).boxed();
        }
        self.office.submit(job)
    }
}

/// Stores the header if nothing is stored yet, and makes everything before durable.
fn flush(
    office: &Arc<Office>,
    claim: &Arc<Claim>,
    materialize: bool,
) -> BoxFuture<'static, Result<(), StoreError>> {
    // Both are queued now, so that the flush covers what was appended before and nothing else.
    let header = materialize.then(|| office.submit(Job::Materialize { claim: Arc::clone(claim) }));
    let sync = office.submit(Job::Sync);
    async move {
        if let Some(header) = header {
            header.await?;
        }
        sync.await
    }
    .boxed()
}

impl SessionWriter for JournalSessionWriter {
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
        let (claim, serial) = (Arc::clone(&self.claim), self.claim.next_serial());
        self.submit(Job::Tail { claim, attempt, serial, part })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        if self.closed.load(Ordering::Acquire) {
            return ready(Err(StoreError::Closed)).boxed();
        }
        flush(&self.office, &self.claim, true)
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        if self.closed.swap(true, Ordering::AcqRel) {
            // Nobody may have heard how the first one ended.
            let synced = self.office.submit(Job::Sync);
            return async move { done_if_closed(synced.await) }.boxed();
        }
        // Given back however this ends, also if nobody waits for it.
        let release = Release { office: Arc::clone(&self.office), claim: Arc::clone(&self.claim) };
        // A session that was never materialized leaves no trace.
        let flushed = flush(&self.office, &self.claim, false);
        async move {
            let flushed = flushed.await;
            drop(release);
            flushed
        }
        .boxed()
    }
}

struct Release {
    office: Arc<Office>,
    claim: Arc<Claim>,
}

impl Drop for Release {
    fn drop(&mut self) {
        self.office.release(&self.claim);
    }
}

impl Drop for JournalSessionWriter {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Acquire) {
            self.office.release(&self.claim);
        }
    }
}

/// A store that is closed has told how that went.
pub(crate) fn done_if_closed(outcome: Outcome) -> Outcome {
    match outcome {
        Err(StoreError::Closed) => Ok(()),
        outcome => outcome,
    }
}
