//! Why a recording cannot be played.

use playhouse_messages::{event::Seq, session_state::AppendError};

/// Why a recording is refused, or was not played to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A line is no event.
    #[error(
        "line {line} of the recording is no event: {reason}; give what `playhouse sessions show --format jsonl` prints"
    )]
    NotAnEvent {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// An event cannot stand where it stands.
    #[error("event {seq} of the recording: {fault}")]
    Malformed {
        /// The event.
        seq: Seq,
        /// What is wrong with it.
        #[source]
        fault: AppendError,
    },
    /// A recorded call has no finish: it was cancelled, or a crash cut it.
    #[error(
        "call {index}, which event {seq} recorded (turn {turn}, step {step}), has no finish: it was \
         cancelled, or a crash cut it; choose how it ends with `Recording::with_unfinished`"
    )]
    Unfinished {
        /// The event.
        seq: Seq,
        /// Its turn.
        turn: u32,
        /// Its step.
        step: u32,
        /// Which call of the session it is, from 0.
        index: usize,
    },
    /// A sidecar does not say what to change.
    #[error("replay sidecar: {reason}")]
    Sidecar {
        /// What is wrong with it.
        reason: String,
    },
    /// Recorded calls were not made.
    #[error("recorded calls were not made: {left}")]
    Leftovers {
        /// Which ones.
        left: String,
    },
}

impl ReplayError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotAnEvent { .. } => "REPLAY_NOT_AN_EVENT",
            Self::Malformed { .. } => "REPLAY_MALFORMED",
            Self::Unfinished { .. } => "REPLAY_UNFINISHED",
            Self::Sidecar { .. } => "REPLAY_SIDECAR",
            Self::Leftovers { .. } => "REPLAY_LEFTOVERS",
        }
    }
}
