//! Jobs: what the committer is asked to do.

use std::sync::Arc;

use bytes::Bytes;
use playhouse_plugin_api::store::{EventBatch, StoreError};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::claim::Claim;

/// One thing to do. Cheap to clone, so that it can be sent again to the next committer.
#[derive(Clone)]
pub(crate) enum Job {
    /// Write events.
    Append { claim: Arc<Claim>, batch: EventBatch },
    /// Write the stream of an attempt that has not settled.
    Tail { claim: Arc<Claim>, payload: Bytes },
    /// Write the header of a session that has no events yet.
    Materialize { claim: Arc<Claim> },
    /// Write a small value.
    Put { key: Bytes, value: Bytes },
    /// Write that a session is gone.
    Delete { number: u64 },
    /// Nothing, in its turn: all jobs before it are done when it is.
    Barrier,
    /// Make everything before it durable.
    Sync,
    /// Sync, seal, bring the index up to date, and let go of the store.
    Close,
}

impl Job {
    /// Bytes that it keeps in memory until it is written.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Append { batch, .. } => batch.len_bytes(),
            Self::Tail { payload, .. } => payload.len(),
            Self::Put { key, value } => key.len() + value.len(),
            _ => 0,
        }
    }

    /// Whether it may take the space that is set aside for a full disk: it closes a turn.
    pub(crate) fn closes(&self) -> bool {
        match self {
            Self::Append { batch, .. } => {
                batch.events.last().is_some_and(|event| event.starts_with(br#"{"type":"turn/end""#))
            }
            _ => false,
        }
    }
}

/// How a job ends.
pub(crate) type Outcome = Result<(), StoreError>;

/// A job with whom to tell. Dropping it unanswered tells that it may be sent again.
pub(crate) struct Item {
    pub(crate) job: Job,
    pub(crate) reply: oneshot::Sender<Outcome>,
    /// Its share of the bytes that may wait, given back when it is done.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}
