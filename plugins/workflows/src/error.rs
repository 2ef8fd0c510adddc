//! Why a workflow was not started, and the codes of those that fail.

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::tool::ToolError;

/// The codes with which a run fails, or a call of a hook ends it.
pub mod code {
    /// A hook was called with what it does not take.
    pub const INVALID_ARGUMENT: &str = "INVALID_ARGUMENT";
    /// `agent` was given an option that it does not have.
    pub const UNSUPPORTED_OPTION: &str = "UNSUPPORTED_OPTION";
    /// A `schema` is no JSON Schema of an object.
    pub const UNSUPPORTED_SCHEMA: &str = "UNSUPPORTED_SCHEMA";
    /// More children than the run may start.
    pub const AGENT_CAP: &str = "AGENT_CAP";
    /// More items than a combinator takes.
    pub const ITEM_CAP: &str = "ITEM_CAP";
    /// A child could not be started.
    pub const AGENT_START: &str = "AGENT_START";
    /// A child was lost, without a stop reason.
    pub const AGENT_RESULT: &str = "AGENT_RESULT";
    /// The run was cancelled.
    pub const CANCELLED: &str = "CANCELLED";
    /// What the workflow returned is not plain JSON.
    pub const RESULT_UNSERIALIZABLE: &str = "RESULT_UNSERIALIZABLE";
    /// The script cannot be parsed.
    pub const SCRIPT_PARSE: &str = "SCRIPT_PARSE";
    /// The workflow threw, or returned an error.
    pub const WORKFLOW_ERROR: &str = "WORKFLOW_ERROR";
    /// The script computed for too long without awaiting anything.
    pub const SCRIPT_TIMEOUT: &str = "SCRIPT_TIMEOUT";
    /// What runs the workflow died.
    pub const WORKER_DIED: &str = "WORKER_DIED";
    /// Something of a run is left that would not end.
    pub const WORKFLOW_LEFTOVERS: &str = "WORKFLOW_LEFTOVERS";
}

/// Why a workflow was not started. Nothing of it has run then, and nothing is left of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkflowError {
    /// The meta is not as it must be.
    #[error("the workflow's meta is invalid: {}", .violations.join("; "))]
    MetaInvalid {
        /// Everything that is wrong with it.
        violations: Vec<String>,
    },
    /// The body cannot be parsed.
    #[error("the script cannot be parsed: {0}")]
    ScriptParse(String),
    /// The request makes no sense.
    #[error("{0}")]
    InvalidArgument(String),
    /// Nobody starts children under the provider's name.
    #[error("no sub-agent provider \"{provider}\"; there are: {known}")]
    NoProvider {
        /// The name.
        provider: String,
        /// The registered names, joined by commas.
        known: String,
    },
    /// The engine's limits cannot be kept.
    #[error("the workflow engine's limits: {0}; correct them")]
    Config(String),
    /// The script's thread could not be had.
    #[error("the script's thread: {0}; fewer workflows may run at once here")]
    Thread(String),
}

impl WorkflowError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::MetaInvalid { .. } => "META_INVALID",
            Self::ScriptParse(_) => code::SCRIPT_PARSE,
            Self::InvalidArgument(_) => code::INVALID_ARGUMENT,
            Self::NoProvider { .. } => code::AGENT_START,
            Self::Config(_) => "INVALID_CONFIG",
            Self::Thread(_) => code::WORKER_DIED,
        }
    }
}

impl From<WorkflowError> for Failure {
    fn from(error: WorkflowError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<WorkflowError> for ToolError {
    fn from(error: WorkflowError) -> Self {
        Self::coded("WorkflowError", error.code(), error.to_string())
    }
}
