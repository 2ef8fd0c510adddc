//! Why something was not done with a job.

use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::{scope::ScopeClosed, tool::ToolError};

use crate::JobId;

/// Why a job was not started, or something not done with one. A job that was not started has left
/// nothing.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The service has ended.
    #[error("background jobs have ended with their plugin; start it again")]
    Closed,
    /// The owner could neither read nor stop it.
    #[error(
        "no job controller serves {whom}: give it the job tools, or attach another controller, \
         before it starts background work"
    )]
    NoController {
        /// Whom.
        whom: String,
    },
    /// A text is missing, or a number is out of range.
    #[error("{0}")]
    Invalid(String),
    /// The owner is not the live agent of its id.
    #[error("agent \"{id}\" is not live: a job needs an owner that can end it")]
    OwnerGone {
        /// The agent.
        id: SessionId,
    },
    /// The owner has as many active jobs as it may.
    #[error(
        "the limit of {limit} running background jobs is reached; wait for one to finish, or kill \
         one"
    )]
    Limit {
        /// How many one owner may have.
        limit: usize,
    },
    /// The producer did not start the work.
    #[error("the job did not start: {}", .0.message)]
    Start(Failure),
    /// There is no such job.
    #[error("unknown job \"{id}\"; list the jobs there are")]
    Unknown {
        /// The id that was asked for.
        id: JobId,
    },
    /// Somebody else's.
    #[error("job \"{id}\" belongs to another session")]
    Foreign {
        /// The job.
        id: JobId,
    },
    /// The producer refused to cancel; the job goes on.
    #[error("job \"{id}\" could not be cancelled and goes on: {}", .failure.message)]
    Cancel {
        /// The job.
        id: JobId,
        /// What the producer said.
        failure: Failure,
    },
    /// The wait was cancelled; the job goes on.
    #[error("the wait for job \"{id}\" was cancelled; the job goes on")]
    Aborted {
        /// The job.
        id: JobId,
    },
    /// The scope to register in is closed.
    #[error(transparent)]
    ScopeClosed(#[from] ScopeClosed),
}

impl JobError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Closed => "JOBS_CLOSED",
            Self::NoController { .. } => "NO_JOB_CONTROLLER",
            Self::Invalid(_) => "INVALID_ARGUMENT",
            Self::OwnerGone { .. } => "JOB_OWNER_GONE",
            Self::Limit { .. } => "JOB_LIMIT",
            Self::Start(failure) => &failure.code,
            Self::Unknown { .. } => "UNKNOWN_JOB",
            Self::Foreign { .. } => "FOREIGN_JOB",
            Self::Cancel { .. } => "JOB_CANCEL",
            Self::Aborted { .. } => "ABORTED",
            Self::ScopeClosed(closed) => closed.code(),
        }
    }
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<JobError> for ToolError {
    fn from(error: JobError) -> Self {
        Self::coded("JobError", error.code(), error.to_string())
    }
}
