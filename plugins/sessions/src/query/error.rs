//! Why a question has no answer.

use playhouse_messages::{
    chunk::Failure,
    event::{CancelCause, Seq},
    id::SessionId,
};
use playhouse_plugin_api::store::StoreError;

/// Why a question about sessions has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Nobody wants the answer any more.
    #[error("the query was cancelled")]
    Aborted(Option<CancelCause>),
    /// A stored session is damaged.
    #[error("{0}")]
    CorruptSession(StoreError),
    /// The session has no such event.
    #[error("session `{id}` has no event {seq}: it has {len}")]
    EventNotFound {
        /// The session.
        id: SessionId,
        /// The event.
        seq: Seq,
        /// How many it has.
        len: u64,
    },
    /// The cursor is not one of this request.
    #[error("the cursor does not belong to this request; ask for the first page")]
    InvalidCursor,
    /// A filter that makes no sense.
    #[error("filter: {0}")]
    InvalidFilter(&'static str),
    /// A page without a size, or too large.
    #[error("a page has 1 to {most} entries, not {asked}")]
    InvalidLimit {
        /// What was asked for.
        asked: usize,
        /// The most.
        most: usize,
    },
    /// The parents of a session form a cycle.
    #[error("the ancestors of session `{id}` form a cycle; its header is damaged")]
    InvalidLineage {
        /// The session.
        id: SessionId,
    },
    /// A phrase without a word.
    #[error("the phrase to look for is empty; give it a word")]
    InvalidQuery,
    /// A stored log whose surface does not hold.
    #[error("session `{id}`, event {seq}: {cause}; `playhouse sessions verify` tells more")]
    InvalidSurface {
        /// The session.
        id: SessionId,
        /// The event.
        seq: Seq,
        /// What is wrong with it.
        cause: String,
    },
    /// A window that is too large.
    #[error("a window has at most {most} events before and after the one that is asked for")]
    InvalidWindow {
        /// The most.
        most: u64,
    },
    /// The store failed.
    #[error("{0}")]
    PersistenceFailed(StoreError),
    /// There is no such session, live or stored.
    #[error("there is no session `{id}`; list them to see what is there")]
    SessionNotFound {
        /// The session.
        id: SessionId,
    },
    /// A live session and the stored one of its id are not the same.
    #[error("session `{id}` is live and stored with different headers: `{field}` differs")]
    SourceConflict {
        /// The session.
        id: SessionId,
        /// The header's field.
        field: &'static str,
    },
    /// What is searched has changed since the cursor was given.
    #[error("what is searched has changed since this page's cursor; ask for the first page again")]
    StaleCursor,
}

impl QueryError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Aborted(_) => "SESSION_QUERY_ABORTED",
            Self::CorruptSession(_) => "SESSION_QUERY_CORRUPT_SESSION",
            Self::EventNotFound { .. } => "SESSION_QUERY_EVENT_NOT_FOUND",
            Self::InvalidCursor => "SESSION_QUERY_INVALID_CURSOR",
            Self::InvalidFilter(_) => "SESSION_QUERY_INVALID_FILTER",
            Self::InvalidLimit { .. } => "SESSION_QUERY_INVALID_LIMIT",
            Self::InvalidLineage { .. } => "SESSION_QUERY_INVALID_LINEAGE",
            Self::InvalidQuery => "SESSION_QUERY_INVALID_QUERY",
            Self::InvalidSurface { .. } => "SESSION_QUERY_INVALID_SURFACE",
            Self::InvalidWindow { .. } => "SESSION_QUERY_INVALID_WINDOW",
            Self::PersistenceFailed(_) => "SESSION_QUERY_PERSISTENCE_FAILED",
            Self::SessionNotFound { .. } => "SESSION_QUERY_SESSION_NOT_FOUND",
            Self::SourceConflict { .. } => "SESSION_QUERY_SOURCE_CONFLICT",
            Self::StaleCursor => "SESSION_QUERY_STALE_CURSOR",
        }
    }

    /// What the store said of a session.
    pub(super) fn of(error: StoreError) -> Self {
        match error {
            StoreError::NotFound { id, .. } => Self::SessionNotFound { id },
            error @ (StoreError::Corrupt { .. } | StoreError::FormatUnsupported { .. }) => {
                Self::CorruptSession(error)
            }
            error => Self::PersistenceFailed(error),
        }
    }
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
