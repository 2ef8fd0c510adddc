//! Why a continuable child did not do what was asked.

use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::{agent::AgentError, tool::ToolError};

use crate::ChildError;

/// Why an operation on a continuable child was refused, or failed. Unless a variant says otherwise,
/// nothing was accepted then.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ContinuationError {
    /// The child could not be started: no such provider, a capability that it lacks, the depth, no
    /// free slot, or what its creation failed with.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The harness has no continuable children.
    #[error(
        "no continuable sub-agents here: host the plugin `Subagents` in a harness with a store"
    )]
    Unavailable,
    /// The harness has no store, so that no child could ever be resumed.
    #[error("continuable sub-agents need session persistence; give the harness a store")]
    PersistenceUnavailable,
    /// The id of the child to start is taken by a live or stored session.
    #[error("session \"{id}\" already exists; start the child under another id, or under none")]
    DuplicateChild {
        /// The id.
        id: SessionId,
    },
    /// Nothing is started or sent any more below an agent that is being disposed, or anywhere.
    #[error(
        "the sub-agents below \"{below}\" are being ended; nothing is started or sent any more"
    )]
    Draining {
        /// Who asked.
        below: SessionId,
    },
    /// The child, or the parent that it would have, is being disposed right now; or somebody else
    /// has resumed the child's session.
    #[error(
        "sub-agent \"{id}\" is being disposed, or driven by somebody else; once that is over, a \
         message resumes it"
    )]
    ActivationClosing {
        /// Who is being disposed.
        id: SessionId,
    },
    /// The caller is not who it says, or has no say over the child.
    #[error("agent \"{caller}\" has no say over \"{target}\": {why}")]
    Unauthorized {
        /// Who asked.
        caller: SessionId,
        /// Over whom.
        target: SessionId,
        /// What is missing.
        why: &'static str,
    },
    /// The stored session is not that of a continuable child, or cannot be read.
    #[error("sub-agent \"{id}\" cannot be resumed: {why}. Do not try this id again; start another")]
    NotResumable {
        /// The child.
        id: SessionId,
        /// What is wrong.
        why: String,
    },
    /// Who would be told is not live.
    #[error("the parent \"{parent}\" is not live, so nobody gets the report")]
    ParentUnavailable {
        /// The parent.
        parent: SessionId,
    },
    /// A set-up contribution was removed while it set a child up.
    #[error("the set-up of sub-agent \"{id}\" was revoked on the way; try again without it")]
    SetUpRevoked {
        /// The child.
        id: SessionId,
    },
    /// A drain has ended everything, and some disposals failed on the way.
    #[error("all are released, with failures on the way: [{}]", .failures.join("; "))]
    Teardown {
        /// What failed, naming the child.
        failures: Vec<String>,
    },
    /// The caller's token fired before anything was accepted.
    #[error("cancelled before the message was accepted")]
    Cancelled,
    /// The agent did not take the message.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl ContinuationError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Child(error) => error.code(),
            Self::Unavailable => "CONTINUATION_UNAVAILABLE",
            Self::PersistenceUnavailable => "PERSISTENCE_UNAVAILABLE",
            Self::DuplicateChild { .. } => "DUPLICATE_CHILD",
            Self::Draining { .. } => "DRAINING",
            Self::ActivationClosing { .. } => "ACTIVATION_CLOSING",
            Self::Unauthorized { .. } => "UNAUTHORIZED",
            Self::NotResumable { .. } => "NOT_RESUMABLE",
            Self::ParentUnavailable { .. } => "PARENT_UNAVAILABLE",
            Self::SetUpRevoked { .. } => "ACTIVATION_SETUP_REVOKED",
            Self::Teardown { .. } => "ACTIVATION_TEARDOWN_FAILED",
            Self::Cancelled => "CANCELLED",
            Self::Agent(error) => error.code(),
        }
    }
}

impl From<ContinuationError> for Failure {
    fn from(error: ContinuationError) -> Self {
        match error {
            ContinuationError::Child(error) => error.into(),
            ContinuationError::Agent(error) => error.into(),
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

impl From<ContinuationError> for ToolError {
    fn from(error: ContinuationError) -> Self {
        match error {
            ContinuationError::Child(error) => error.into(),
            error => Self::coded("SubagentError", error.code(), error.to_string()),
        }
    }
}
