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
/// values, and events that were sent twice, and removes the old segments. Takes the store's lock, so
/// the store must be closed. Durable when it returns; a crash in between loses nothing. The disk
/// needs room for the new journal beside the old one. Blocks.
///
/// # Errors
///
/// [`StoreError::InUse`] if the store is open; [`StoreError::Argument`] if it is damaged, since what
/// is damaged would be gone for good; [`StoreError::Full`] and [`StoreError::Io`], with the journal
/// as it was.
pub fn compact(dir: impl AsRef<Path>) -> Result<CompactReport, StoreError> {
    compact_on(Arc::new(RealDisk), dir.as_ref(), JournalConfig::default())
}

pub(crate) fn compact_on(
    disk: Arc<dyn Disk>,
    dir: &Path,
    config: JournalConfig,
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
    let bytes_after = journal_bytes(disk.as_ref(), dir).map_err(fail)?;
    Ok(CompactReport { bytes_before, bytes_after })
}
