//! Why a projection cannot be had.

use playhouse_messages::{chunk::Failure, event::Seq};
use playhouse_plugin_api::{scope::ScopeClosed, store::StoreError};

/// Why a projection could not be registered or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectionError {
    /// Another version of it is registered.
    #[error(
        "projection `{key}` is registered with state version {registered}, not {offered}; remove \
         that one first"
    )]
    VersionConflict {
        /// The projection.
        key: String,
        /// The version that is there.
        registered: u32,
        /// The version that was offered.
        offered: u32,
    },
    /// Nobody registered it.
    #[error("there is no projection `{key}`; register it first")]
    Unknown {
        /// The projection.
        key: String,
    },
    /// Its state is of another type.
    #[error("the state of projection `{key}` is not a `{expected}`")]
    WrongType {
        /// The projection.
        key: String,
        /// The type that was asked for.
        expected: &'static str,
    },
    /// Its code failed, for this session and for good.
    #[error("projection `{key}` failed{}: {cause}", at(*seq))]
    Failed {
        /// The projection.
        key: String,
        /// The event that it failed at, if it was one.
        seq: Option<Seq>,
        /// What it said.
        cause: String,
    },
    /// The scope to register in is closed.
    #[error(transparent)]
    Closed(#[from] ScopeClosed),
    /// The store failed, or has no such session.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn at(seq: Option<Seq>) -> String {
    seq.map_or_else(String::new, |seq| format!(" at event {seq}"))
}

impl ProjectionError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::VersionConflict { .. } => "PROJECTION_VERSION_CONFLICT",
            Self::Unknown { .. } => "PROJECTION_UNKNOWN",
            Self::WrongType { .. } => "PROJECTION_WRONG_TYPE",
            Self::Failed { .. } => "PROJECTION_FAILED",
            Self::Closed(closed) => closed.code(),
            Self::Store(error) => error.code(),
        }
    }
}

impl From<ProjectionError> for Failure {
    fn from(error: ProjectionError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
