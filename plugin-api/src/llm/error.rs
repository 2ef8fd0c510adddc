//! What the model seam refuses, with codes that logs and callers rely on.

use playhouse_messages::chunk::Failure;

/// Why the registry, or a prepared call, refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    /// The adapter, or the list of routes that it registers for, is unusable.
    #[error("{reason}")]
    InvalidAdapter {
        /// What is wrong.
        reason: String,
    },
    /// Another registration holds the route, or the list names it twice.
    #[error("an adapter for provider \"{provider}\" is already registered")]
    DuplicateAdapter {
        /// The route.
        provider: String,
    },
    /// The registration was disposed.
    #[error("this adapter registration was disposed; register the adapter again")]
    RegistrationDisposed,
    /// Nobody serves the route.
    #[error("no adapter registered for provider \"{provider}\"")]
    NoAdapter {
        /// The route.
        provider: String,
    },
    /// The adapter's list of models is malformed.
    #[error("the model list of provider \"{provider}\" is invalid: {reason}")]
    InvalidCatalog {
        /// The route.
        provider: String,
        /// What is wrong.
        reason: String,
    },
    /// The adapter's facts of a model are malformed.
    #[error("provider \"{provider}\" describes model \"{model}\" wrongly: {reason}")]
    InvalidModel {
        /// Which part is wrong.
        part: ModelPart,
        /// The route.
        provider: String,
        /// The model asked for.
        model: String,
        /// What is wrong.
        reason: String,
    },
    /// The model does not take the effort.
    #[error("provider \"{provider}\" model \"{model}\" does not support reasoning effort \"{effort}\"{}", offer(.supported))]
    UnsupportedReasoningEffort {
        /// The route.
        provider: String,
        /// The model.
        model: String,
        /// The effort asked for.
        effort: String,
        /// What the model takes.
        supported: Vec<String>,
    },
    /// A prepared call was used twice, or for another configuration.
    #[error("{reason}")]
    InvalidPreparedCall {
        /// What is wrong.
        reason: &'static str,
    },
    /// The adapter failed before a stream existed.
    #[error("{0}")]
    Adapter(Failure),
}

/// Which part of a model's description is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelPart {
    /// Provider, id, name or modalities.
    Info,
    /// The context window.
    Context,
    /// The default output limit.
    MaxTokens,
    /// The reasoning efforts.
    Reasoning,
}

fn offer(supported: &[String]) -> String {
    if supported.is_empty() {
        String::new()
    } else {
        format!("; it takes {}", supported.join(", "))
    }
}

impl LlmError {
    /// The stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::InvalidAdapter { .. } => "INVALID_ADAPTER",
            Self::DuplicateAdapter { .. } => "DUPLICATE_ADAPTER",
            Self::RegistrationDisposed => "REGISTRATION_DISPOSED",
            Self::NoAdapter { .. } => "NO_ADAPTER",
            Self::InvalidCatalog { .. } => "INVALID_CATALOG",
            Self::InvalidModel { part, .. } => match part {
                ModelPart::Info => "INVALID_MODEL_INFO",
                ModelPart::Context => "INVALID_MODEL_CONTEXT",
                ModelPart::MaxTokens => "INVALID_MODEL_MAX_TOKENS",
                ModelPart::Reasoning => "INVALID_MODEL_REASONING",
            },
            Self::UnsupportedReasoningEffort { .. } => "UNSUPPORTED_REASONING_EFFORT",
            Self::InvalidPreparedCall { .. } => "INVALID_PREPARED_CALL",
            Self::Adapter(failure) => &failure.code,
        }
    }
}

impl From<LlmError> for Failure {
    fn from(error: LlmError) -> Self {
        match error {
            LlmError::Adapter(failure) => failure,
            other => Failure::new(other.code(), other.to_string()),
        }
    }
}

/// Failures of an adapter are its own words; they pass as they are.
impl From<Failure> for LlmError {
    fn from(failure: Failure) -> Self {
        Self::Adapter(failure)
    }
}
