//! The journal's errors, in the words of the store's seam.

use std::path::Path;

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::StoreError;

use crate::journal::JournalError;

/// An error that concerns the whole store.
pub(crate) fn store_error(dir: &Path, error: JournalError) -> StoreError {
    let path = dir.display().to_string();
    match error {
        JournalError::StoreInUse { pid, .. } => StoreError::InUse {
            path,
            owner: pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}")),
        },
        JournalError::FormatUnsupported { found, supported, .. } => StoreError::FormatUnsupported {
            what: format!("the store at {path}"),
            cause: format!(
                "it has format {found}, and this version knows {supported}; upgrade Playhouse"
            ),
        },
        JournalError::StoreFull { .. } => StoreError::Full { path },
        JournalError::BatchTooLarge { .. } | JournalError::NotAStore { .. } => {
            StoreError::Argument(error.to_string())
        }
        JournalError::Corrupt(damage) => {
            StoreError::Io { what: format!("reading {path}"), cause: damage.to_string() }
        }
        JournalError::Io { action, path, source } => StoreError::Io {
            what: format!("could not {action} {}", path.display()),
            cause: source.to_string(),
        },
    }
}

/// An error that concerns one session.
pub(crate) fn store_error_of(dir: &Path, id: &SessionId, error: JournalError) -> StoreError {
    match error {
        JournalError::Corrupt(damage) => StoreError::Corrupt {
            id: id.clone(),
            place: format!("segment {} offset {}", damage.segment, damage.offset),
            cause: damage.kind.words().to_owned(),
        },
        other => store_error(dir, other),
    }
}
