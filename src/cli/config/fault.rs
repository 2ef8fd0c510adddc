//! What is wrong with a config, and where.

use std::{fmt, path::PathBuf};

/// A place in a config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The key.
    pub key: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: `{}`", self.file.display(), self.line, self.key)
    }
}

impl Place {
    /// An error at this place.
    pub fn fault(&self, problem: impl Into<String>) -> ConfigError {
        ConfigError::Invalid { place: self.clone(), problem: problem.into() }
    }
}

/// Why a config is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("config {file}: {cause}; name an existing file with --config")]
    Unreadable {
        /// The file.
        file: String,
        /// The system's words.
        cause: String,
    },
    /// Something in it is wrong.
    #[error("{place}: {problem}")]
    Invalid {
        /// Where.
        place: Place,
        /// What, and the way out.
        problem: String,
    },
}

impl ConfigError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "CONFIG_UNREADABLE",
            Self::Invalid { .. } => "INVALID_CONFIG",
        }
    }
}
