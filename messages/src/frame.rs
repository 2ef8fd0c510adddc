//! Live frames of a running attempt: process-local, never durable.

use serde::{Deserialize, Serialize};

use crate::{
    event::{Seq, StepAt},
    id::SessionId,
    packed::TimedChunk,
};

/// Names an attempt within its agent's life: `<session>:<n>`, n from 1.
pub fn attempt_id(session: &SessionId, n: u64) -> String {
    format!("{session}:{n}")
}

/// What a subscriber of the live stream sees: one start, chunks in order, one end.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// The stream is open.
    Start {
        /// The attempt.
        attempt_id: String,
        /// The step that it serves.
        at: StepAt,
    },
    /// Chunks from `index` on. A subscriber that was slow gets several at once.
    Chunks {
        /// The attempt.
        attempt_id: String,
        /// The index of the first of them.
        index: u64,
        /// The chunks.
        chunks: Vec<TimedChunk>,
    },
    /// The attempt is settled in the log, or never will be.
    End {
        /// The attempt.
        attempt_id: String,
        /// How many chunks it had.
        index: u64,
        /// What became of it.
        outcome: FrameOutcome,
    },
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum FrameOutcome {
    /// One event settles it.
    Committed {
        /// `assistant/message` or `assistant/attempt`.
        event_type: String,
        /// Its seq.
        seq: Seq,
    },
    /// No event settles it.
    Abandoned,
}
