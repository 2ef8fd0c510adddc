//! Why a child of a group did not do what it was for.

use playhouse_messages::chunk::Failure;

use crate::{ChildError, ChildResult, StopReason};

/// Why a child of a group did not do what it was for. Nothing of it is left but its log.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ChildFailed {
    /// It was not started.
    #[error(transparent)]
    Start(#[from] ChildError),
    /// It ended otherwise than by completing; what there is of an answer is in the result.
    #[error("the child {}{}", told(&.0.stop_reason), diagnosed(.0))]
    Stopped(Box<ChildResult>),
    /// It ended, and could not be released well.
    #[error("the child {}; its disposal failed: {failure}", told(&.result.stop_reason))]
    Disposal {
        /// What it came to.
        result: Box<ChildResult>,
        /// What went wrong then.
        failure: Failure,
    },
    /// Its transport failed, so that it has no result.
    #[error("the child has no result: {0}")]
    Fault(Failure),
}

impl ChildFailed {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Start(error) => error.code(),
            Self::Stopped(result) => stopped_code(&result.stop_reason),
            Self::Disposal { .. } => "SUBAGENT_DISPOSAL",
            Self::Fault(failure) => &failure.code,
        }
    }

    /// Its result, as far as it has one.
    pub fn result(&self) -> Option<&ChildResult> {
        match self {
            Self::Stopped(result) | Self::Disposal { result, .. } => Some(result),
            Self::Start(_) | Self::Fault(_) => None,
        }
    }

    /// Whether another child might do better: after an error of the child or of its transport, and
    /// when all slots were taken. Not if it was cancelled or cut by a limit, declined, or could never
    /// be started.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Start(error) => matches!(error, ChildError::Capacity { .. }),
            Self::Stopped(result) => result.stop_reason == StopReason::Error,
            Self::Fault(_) => true,
            Self::Disposal { .. } => false,
        }
    }
}

/// The code of an end that is a failure.
pub(crate) fn stopped_code(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::Completed => "SUBAGENT_DISPOSAL",
        StopReason::Aborted => "SUBAGENT_ABORTED",
        StopReason::MaxTokens => "SUBAGENT_MAX_TOKENS",
        StopReason::Refusal => "SUBAGENT_REFUSED",
        StopReason::Error => "SUBAGENT_FAILED",
        StopReason::Other(_) => "SUBAGENT_STOPPED",
    }
}

/// What became of a child, behind its name.
pub(crate) fn told(reason: &StopReason) -> String {
    match reason {
        StopReason::Completed => "completed".to_owned(),
        StopReason::Aborted => "was cancelled".to_owned(),
        StopReason::Error => "failed".to_owned(),
        StopReason::MaxTokens => "hit its output token limit".to_owned(),
        StopReason::Refusal => "declined the task".to_owned(),
        StopReason::Other(other) => format!("ended abnormally ({other})"),
    }
}

fn diagnosed(result: &ChildResult) -> String {
    result.diagnostic.as_ref().map(|text| format!(": {text}")).unwrap_or_default()
}
