//! What goes wrong in SQLite, in the words of the store's seam.

use std::path::Path;

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::StoreError;
use rusqlite::{ErrorCode, ffi::SQLITE_READONLY_ROLLBACK};

use super::schema::FILE;

/// Why something was not done.
#[derive(Debug)]
pub(crate) enum Fault {
    /// SQLite's own words.
    Sqlite(rusqlite::Error),
    /// What is stored is not what was stored.
    Damaged { place: String, cause: String },
    /// It was refused, and nothing was changed.
    Refused(StoreError),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl Fault {
    pub(crate) fn damaged(place: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::Damaged { place: place.into(), cause: cause.into() }
    }

    /// The place and the cause, if stored bytes are at fault: SQLite's own verdict, or statements of
    /// ours that fail on a schema that was checked.
    fn damage(&self) -> Option<(String, String)> {
        match self {
            Self::Damaged { place, cause } => Some((format!("{FILE}, {place}"), cause.clone())),
            Self::Sqlite(error) if !self.is_of_the_system() => {
                Some((FILE.to_owned(), error.to_string()))
            }
            _ => None,
        }
    }

    /// Whether stored bytes are at fault.
    pub(crate) fn is_damage(&self) -> bool {
        self.damage().is_some()
    }

    fn is_of_the_system(&self) -> bool {
        use ErrorCode as Code;
        let Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) = self else { return false };
        !matches!(
            failure.code,
            Code::DatabaseCorrupt
                | Code::NotADatabase
                | Code::ConstraintViolation
                | Code::TypeMismatch
                | Code::TooBig
                | Code::SchemaChanged
                | Code::Unknown
        )
    }

    /// Whether the connection may not be used again.
    pub(crate) fn ends_the_connection(&self) -> bool {
        self.is_of_the_system() || self.is_damage()
    }

    /// As an error that concerns the whole store.
    pub(crate) fn of_store(self, dir: &Path) -> StoreError {
        let path = dir.display().to_string();
        if let Some((place, cause)) = self.damage() {
            return StoreError::Io {
                what: format!("reading the store at {path}"),
                cause: format!(
                    "it is damaged at {place}: {cause}; `playhouse sessions verify` lists all damage"
                ),
            };
        }
        match self {
            Self::Refused(error) => error,
            Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _))
                if failure.code == ErrorCode::DiskFull =>
            {
                StoreError::Full { path }
            }
            // Of another program's making: a store's own writer keeps no rollback journal.
            Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _))
                if failure.extended_code == SQLITE_READONLY_ROLLBACK =>
            {
                StoreError::Io {
                    what: format!("reading {path}/{FILE}"),
                    cause: format!(
                        "another program left a change half done, which {FILE}-journal can take \
                         back; that is done when the store is opened for writing"
                    ),
                }
            }
            Self::Sqlite(error) => {
                StoreError::Io { what: format!("using {path}/{FILE}"), cause: error.to_string() }
            }
            Self::Damaged { place, cause } => StoreError::Io { what: place, cause },
        }
    }

    /// As an error that concerns one session.
    pub(crate) fn of_session(self, dir: &Path, id: &SessionId) -> StoreError {
        match self.damage() {
            Some((place, cause)) => StoreError::Corrupt { id: id.clone(), place, cause },
            None => self.of_store(dir),
        }
    }

    /// For reports: place and cause.
    pub(crate) fn words(self, dir: &Path) -> String {
        match self.damage() {
            Some((place, cause)) => format!("{place}: {cause}"),
            None => self.of_store(dir).to_string(),
        }
    }
}

/// A failed call to the file system.
pub(crate) fn io_error(what: &str, path: &Path, error: &std::io::Error) -> StoreError {
    if error.kind() == std::io::ErrorKind::StorageFull {
        return StoreError::Full { path: path.display().to_string() };
    }
    StoreError::Io {
        what: format!("could not {what} {}", path.display()),
        cause: error.to_string(),
    }
}
