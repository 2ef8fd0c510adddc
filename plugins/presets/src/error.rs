//! Why something was not done with a preset.

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::creation::CreateError;

/// Why something was not done with a preset. Nothing is left of what was begun.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PresetError {
    /// No root has it.
    #[error("no agent preset \"{id}\"; there are: {known}")]
    Unknown {
        /// The id.
        id: String,
        /// The ids that there are, joined by commas.
        known: String,
    },
    /// The id could not be a directory's name.
    #[error(
        "invalid agent preset id \"{id}\": it starts with a-z or 0-9 and goes on with a-z, 0-9 or -"
    )]
    Id {
        /// The id.
        id: String,
    },
    /// Its files cannot be used.
    #[error("agent preset \"{id}\" is broken: {reason}")]
    Broken {
        /// The preset.
        id: String,
        /// What is wrong.
        reason: String,
    },
    /// A row was refused when the preset was mounted.
    #[error("agent preset \"{id}\" was not mounted: {}", .failure.message)]
    Mount {
        /// The preset.
        id: String,
        /// What refused.
        failure: Box<Failure>,
    },
    /// Only a preset of the user's own can be changed.
    #[error("agent preset \"{id}\" belongs to the system; copy it and change the copy")]
    NotYours {
        /// The preset.
        id: String,
    },
    /// The id is taken.
    #[error("agent preset \"{id}\" already exists; choose another id")]
    Exists {
        /// The preset.
        id: String,
    },
    /// There is no place for presets of the user's own.
    #[error("no user root for agent presets is configured; add one to the roots")]
    NoUserRoot,
    /// The session has produced something under its preset.
    #[error("session \"{session}\" has turns already: its preset cannot be changed; start another")]
    NotBlank {
        /// The session.
        session: String,
    },
    /// A file or directory could not be read or written.
    #[error("{path}: {reason}")]
    Io {
        /// Where.
        path: String,
        /// Why.
        reason: String,
    },
    /// The session could not be read, ended or made.
    #[error("{}", .0.message)]
    Agent(Failure),
}

impl PresetError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Unknown { .. } => "UNKNOWN_PRESET",
            Self::Id { .. } => "INVALID_ARGUMENT",
            Self::Broken { .. } => "PRESET_BROKEN",
            Self::Mount { .. } => "PRESET_MOUNT",
            Self::NotYours { .. } => "PRESET_NOT_YOURS",
            Self::Exists { .. } => "PRESET_EXISTS",
            Self::NoUserRoot => "NO_USER_ROOT",
            Self::NotBlank { .. } => "PRESET_NOT_BLANK",
            Self::Io { .. } => "PRESET_IO",
            Self::Agent(failure) => &failure.code,
        }
    }

    pub(crate) fn io(path: &std::path::Path, fault: &std::io::Error) -> Self {
        Self::Io { path: path.display().to_string(), reason: fault.to_string() }
    }
}

impl From<PresetError> for Failure {
    fn from(error: PresetError) -> Self {
        match error {
            PresetError::Agent(failure) => failure,
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

impl From<CreateError> for PresetError {
    fn from(error: CreateError) -> Self {
        Self::Agent(error.into())
    }
}
