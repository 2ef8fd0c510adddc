//! Why a child was not started.

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    creation::CreateError,
    scope::ScopeClosed,
    tool::{SchemaError, ToolError},
};

/// Why a child was not started, or a provider not registered. Nothing of the child is left then.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ChildError {
    /// Nobody starts children under this name.
    #[error("no sub-agent provider \"{name}\"; there are: {known}")]
    NoProvider {
        /// The name.
        name: String,
        /// The registered names, joined by commas.
        known: String,
    },
    /// The name is taken.
    #[error("sub-agent provider \"{name}\" is already registered; remove that one first")]
    DuplicateProvider {
        /// The name.
        name: String,
    },
    /// The provider cannot do what the request asks for.
    #[error("sub-agent provider \"{provider}\" does not support {capability}; leave it out")]
    UnsupportedCapability {
        /// The provider.
        provider: String,
        /// `outputSchema`, `depthLimit`, `toolFilter` or `persona`.
        capability: &'static str,
    },
    /// The child would stand too deep.
    #[error("subagent depth {depth} exceeds maxDepth {max_depth}")]
    Depth {
        /// The child's depth.
        depth: u32,
        /// The deepest that is allowed.
        max_depth: u32,
    },
    /// As many children live as may.
    #[error("all {limit} sub-agent slots are taken; wait until a child ends, then try again")]
    Capacity {
        /// How many may live at once.
        limit: usize,
    },
    /// The structured result cannot be asked for.
    #[error("outputSchema: {0}")]
    Schema(#[from] SchemaError),
    /// The configuration makes no sense.
    #[error("{0}")]
    Config(String),
    /// The scope to register in is closed.
    #[error(transparent)]
    Closed(#[from] ScopeClosed),
    /// The child could not be made.
    #[error("{}", .0.message)]
    Start(Failure),
}

impl ChildError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::NoProvider { .. } => "NO_PROVIDER",
            Self::DuplicateProvider { .. } => "DUPLICATE_PROVIDER",
            Self::UnsupportedCapability { .. } => "UNSUPPORTED_CAPABILITY",
            Self::Depth { .. } => "SUBAGENT_DEPTH",
            Self::Capacity { .. } => "SUBAGENT_CAPACITY",
            Self::Schema(error) => error.code(),
            Self::Config(_) => "INVALID_ARGUMENT",
            Self::Closed(closed) => closed.code(),
            Self::Start(failure) => &failure.code,
        }
    }
}

impl From<CreateError> for ChildError {
    fn from(error: CreateError) -> Self {
        Self::Start(error.into())
    }
}

impl From<ChildError> for Failure {
    fn from(error: ChildError) -> Self {
        match error {
            ChildError::Start(failure) => failure,
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

impl From<ChildError> for ToolError {
    fn from(error: ChildError) -> Self {
        let name = match error {
            ChildError::Depth { .. } => "SubagentDepthError",
            _ => "SubagentError",
        };
        Self::coded(name, error.code(), error.to_string())
    }
}
