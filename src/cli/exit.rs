//! How the command ends: its exit codes, and errors that fit on one line.

use std::{io, process::ExitCode};

use playhouse_messages::{chunk::Failure, event::TurnEndReason};
use playhouse_models::{
    openai_compatible::ConfigError as RouteError, replay::ReplayError, scripted::ScriptError,
};
use playhouse_plugin_api::{creation::CreateError, store::StoreError};
use playhouse_supervisor::harness::HarnessError;

use super::{config::ConfigError, output::tame};

/// What `--help` says about exit codes.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    completed
  1    a stress run found a fault
  2    nothing was run: bad arguments, config, credentials, store or session
  3    the turn was blocked by a hook
  4    the answer was cut by the output limit
  5    the turn was aborted, by a signal or otherwise
  6    the turn or the command failed, or damage was found
  7    a budget ran out
  130  a second SIGINT or SIGTERM cut the orderly end short";

/// How the command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// All done.
    Completed,
    /// A stress run found a fault of the harness.
    FaultFound,
    /// Nothing was run.
    Refused,
    /// A hook blocked the turn.
    Blocked,
    /// The output limit cut the answer.
    MaxTokens,
    /// The turn was aborted.
    Aborted,
    /// The turn or the command failed.
    Failed,
    /// A budget ran out.
    Budget,
    /// A second signal came before the first was dealt with.
    SecondSignal,
}

impl Exit {
    /// The process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::FaultFound => 1,
            Self::Refused => 2,
            Self::Blocked => 3,
            Self::MaxTokens => 4,
            Self::Aborted => 5,
            Self::Failed => 6,
            Self::Budget => 7,
            Self::SecondSignal => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl From<&TurnEndReason> for Exit {
    fn from(reason: &TurnEndReason) -> Self {
        match reason {
            TurnEndReason::Completed => Self::Completed,
            TurnEndReason::Blocked => Self::Blocked,
            TurnEndReason::MaxTokens => Self::MaxTokens,
            TurnEndReason::Aborted(_) => Self::Aborted,
            TurnEndReason::Budget(_) => Self::Budget,
            // The rest is never written live, or unknown to this build.
            _ => Self::Failed,
        }
    }
}

/// Why the command did not do what it was asked. Each is one line that names the thing and the way
/// out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// The arguments do not fit together.
    #[error("{0}")]
    Usage(String),
    /// The config file is at fault.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A provider's settings are at fault.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A script cannot be played.
    #[error("script {file}: {cause}; correct the script")]
    Script {
        /// Where it came from.
        file: String,
        /// What is wrong with it.
        cause: ScriptError,
    },
    /// A recorded session cannot be played.
    #[error("recording {file}: {cause}")]
    Recording {
        /// Where it came from.
        file: String,
        /// What is wrong with it.
        cause: ReplayError,
    },
    /// The provider's key is not there.
    #[error(
        "no API key for provider \"{provider}\": set the environment variable {variable}, or name \
         another with `api_key_env` in the config"
    )]
    MissingKey {
        /// The route.
        provider: String,
        /// Where the key was looked for.
        variable: String,
    },
    /// The provider's key cannot be one.
    #[error("the environment variable {variable} of provider \"{provider}\" is unusable: {cause}")]
    UnusableKey {
        /// The route.
        provider: String,
        /// Where the key was found.
        variable: String,
        /// What is wrong with it, without the key.
        cause: String,
    },
    /// No such provider.
    #[error("unknown provider \"{name}\": there are {known}; add [providers.{name}] to the config")]
    UnknownProvider {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The library refused or failed.
    #[error("{}", .0.message)]
    Library(Failure),
    /// The work had begun and could not go on, or did not end well.
    #[error("{}", .0.message)]
    Failed(Failure),
    /// The harness did not start.
    #[error(transparent)]
    Harness(#[from] HarnessError),
    /// The operating system failed.
    #[error("{what}: {cause}")]
    Io {
        /// What was attempted, with its path.
        what: String,
        /// The system's words.
        cause: io::Error,
    },
    /// Whoever read the output went away.
    #[error("the output was closed")]
    OutputClosed,
}

impl CliError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Usage(_) => "USAGE",
            Self::Config(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Route(error) => error.code(),
            Self::Script { cause, .. } => cause.code(),
            Self::Recording { cause, .. } => cause.code(),
            Self::MissingKey { .. } => "MISSING_CREDENTIAL",
            Self::UnusableKey { .. } => "INVALID_CREDENTIAL",
            Self::UnknownProvider { .. } => "UNKNOWN_PROVIDER",
            Self::Library(failure) | Self::Failed(failure) => &failure.code,
            Self::Harness(error) => error.code(),
            Self::Io { .. } => "IO",
            Self::OutputClosed => "OUTPUT_CLOSED",
        }
    }

    /// An operating system failure while doing `what`.
    pub fn io(what: impl Into<String>, cause: io::Error) -> Self {
        if cause.kind() == io::ErrorKind::BrokenPipe {
            return Self::OutputClosed;
        }
        Self::Io { what: what.into(), cause }
    }

    /// How the command ends because of it.
    pub fn exit(&self) -> Exit {
        match self {
            // As `head` and `less` expect of what feeds them.
            Self::OutputClosed => Exit::Completed,
            Self::Io { .. } | Self::Harness(_) | Self::Failed(_) => Exit::Failed,
            _ => Exit::Refused,
        }
    }

    /// The error on one line, whatever its parts say, without what would steer a terminal.
    pub fn line(&self) -> String {
        let text = self.to_string();
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        tame(&lines.join("; "))
    }
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        Self::Library(failure)
    }
}

impl From<CreateError> for CliError {
    fn from(error: CreateError) -> Self {
        Self::Library(error.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_many_lines_is_told_on_one() {
        let error = CliError::Usage("a\n  |\n\n b".to_owned());
        assert_eq!(error.line(), "a; |; b");
        assert_eq!(CliError::Usage("\x1b[2Ja".to_owned()).line(), "\u{FFFD}[2Ja");
        assert_eq!((error.code(), error.exit().code()), ("USAGE", 2));
    }

    #[test]
    fn every_end_of_a_turn_has_its_exit_code() {
        assert_eq!(Exit::FaultFound.code(), 1);
        let failure = Failure::unknown("x");
        for (reason, code) in [
            (TurnEndReason::Completed, 0),
            (TurnEndReason::Blocked, 3),
            (TurnEndReason::MaxTokens, 4),
            (TurnEndReason::Aborted(playhouse_messages::event::CancelCause::User), 5),
            (TurnEndReason::Error(failure), 6),
        ] {
            assert_eq!(Exit::from(&reason).code(), code, "{reason:?}");
        }
    }
}
