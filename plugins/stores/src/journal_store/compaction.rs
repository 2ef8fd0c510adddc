//! Giving space back: the journal written anew without what is deleted.

use std::path::Path;
use std::sync::Arc;

use playhouse_plugin_api::store::StoreError;

use super::failure::store_error;
use super::open::fresh_id;
use crate::journal::{Depth, Disk, JournalConfig, Reader, RealDisk, Writer, journal_bytes};

/// What [`compact`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactReport {
    /// Bytes of the journal before.
    pub bytes_before: u64,
    /// Bytes of the journal after.
    pub bytes_after: u64,
}

/// Writes the journal of the store in `dir` anew, without deleted sessions, superseded tails and
/// values, and events that were sent twice, and removes the old segments. The index, which gives no
/// space back by itself, is removed with those that were moved aside, and made anew at the next opening. Takes the store's lock, so
/// the store must be closed. Durable when it returns; a crash in between loses nothing. The disk
/// needs room for the new journal beside the old one. Blocks.
///
/// # Errors
///
/// [`StoreError::InUse`] if the store is open; [`StoreError::Argument`] if it is damaged, since what
/// is damaged would be gone for good; [`StoreError::Full`] and [`StoreError::Io`], with the journal
/// as it was.
pub fn compact(dir: impl AsRef<Path>) -> Result<CompactReport, StoreError> {
    let dir = dir.as_ref();
    compact_and(Arc::new(RealDisk), dir, JournalConfig::default(), || remove_indexes(dir))
}

/// Removes the index and its damaged predecessors.
fn remove_indexes(dir: &Path) -> Result<(), StoreError> {
    let fail = |cause: std::io::Error| StoreError::Io {
        what: format!("removing the index of {}", dir.display()),
        cause: cause.to_string(),
    };
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == "index" || name.starts_with("index.damaged") {
            std::fs::remove_dir_all(entry.path()).map_err(fail)?;
        }
    }
    Ok(())
}

/// Compacts, and does the rest while it still has the lock.
fn compact_and(
    disk: Arc<dyn Disk>,
    dir: &Path,
    config: JournalConfig,
    rest: impl FnOnce() -> Result<(), StoreError>,
) -> Result<CompactReport, StoreError> {
    let fail = |error| store_error(dir, error);
    let writer = Writer::open(Arc::clone(&disk), dir, fresh_id(), config);
    let mut writer = writer.map_err(fail)?;
    let found = writer.resume(Depth::Full).map_err(fail)?;
    let damaged = found.map.sessions.values().any(|session| session.damage.is_some());
    if damaged || !found.damages.is_empty() {
        return Err(StoreError::Argument(format!(
            "the store at {} is damaged and compaction would make that final; see `playhouse \
             sessions verify`",
            dir.display()
        )));
    }
    let bytes_before = journal_bytes(disk.as_ref(), dir).map_err(fail)?;
    let reader = Reader::new(Arc::clone(&disk), dir, &writer.store());
    writer.compact(&found.map, &reader).map_err(fail)?;
    rest()?;
    let bytes_after = journal_bytes(disk.as_ref(), dir).map_err(fail)?;
    Ok(CompactReport { bytes_before, bytes_after })
}
