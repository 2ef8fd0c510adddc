//! Why a session gets no title.

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{scope::ScopeClosed, session::SessionError};

/// Why a session could not be named.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TitleError {
    /// Limits that cannot hold.
    #[error("titles: {reason}")]
    Config {
        /// What is wrong with them.
        reason: &'static str,
    },
    /// Nothing is left of a title once it is fit to show.
    #[error("the title is empty once it is fit to show; give it some text")]
    Empty,
    /// There is no prompt yet to make a title from.
    #[error("the session has no prompt yet to make a title from; send one, or rename it")]
    NoPrompt,
    /// Another provider is there.
    #[error("titles are provided by `{name}` already; remove that one first")]
    ProviderTaken {
        /// Its name.
        name: String,
    },
    /// A later request for a title, or a rename, came in between.
    #[error("the title was superseded by a later one")]
    Superseded,
    /// The provider failed.
    #[error("the title provider failed: {}", .0.message)]
    Provider(Failure),
    /// The log does not take the title.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The scope to register in is closed.
    #[error(transparent)]
    Closed(#[from] ScopeClosed),
}

impl TitleError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Config { .. } => "TITLE_INVALID_CONFIG",
            Self::Empty => "TITLE_EMPTY",
            Self::NoPrompt => "TITLE_NO_PROMPT",
            Self::ProviderTaken { .. } => "TITLE_PROVIDER_TAKEN",
            Self::Superseded => "TITLE_SUPERSEDED",
            Self::Provider(failure) => &failure.code,
            Self::Session(error) => error.code(),
            Self::Closed(closed) => closed.code(),
        }
    }
}

impl From<TitleError> for Failure {
    fn from(error: TitleError) -> Self {
        match error {
            TitleError::Provider(failure) => failure,
            error => Self::new(error.code(), error.to_string()),
        }
    }
}
