//! Jobs: what the committer is asked to do.

use std::sync::Arc;

use bytes::Bytes;
use playhouse_plugin_api::store::{EventBatch, StoreError};

use super::claim::Claim;
use super::tray::Tray;

/// One thing to do. Cheap to clone, so that it can be sent again to the next committer.
#[derive(Clone)]
pub(crate) enum Job {
    /// Write events.
    Append { claim: Arc<Claim>, batch: EventBatch },
    /// Write a part of an attempt's stream.
    Tail {
        claim: Arc<Claim>,
        attempt: u64,
        /// By which a part that is done again is known.
        serial: u32,
        part: Bytes,
    },
    /// Write the header of a session that has no events yet.
    Materialize { claim: Arc<Claim> },
    /// Write a small value, or that there is none any more.
    Put { key: Bytes, value: Option<Bytes> },
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
            Self::Tail { part, .. } => part.len(),
            Self::Put { key, value } => key.len() + value.as_ref().map_or(0, Bytes::len),
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

/// A job on its way through committer and desk. Dropping it unanswered leaves it in the tray, for
/// the next committer.
pub(crate) struct Item {
    pub(crate) job: Job,
    /// The tray and the job's ticket there; `None` if nobody waits.
    pub(crate) answer_to: Option<(Arc<Tray>, u64)>,
}

impl Item {
    /// Says how the job ended.
    pub(crate) fn answer(self, outcome: Outcome) {
        if let Some((tray, ticket)) = self.answer_to {
            tray.answer(ticket, outcome);
        }
    }
}
