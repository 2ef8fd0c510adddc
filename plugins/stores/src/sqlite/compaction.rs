//! Giving space back: the database written anew without its free pages.

use std::path::Path;

use playhouse_plugin_api::store::StoreError;

use super::SqliteConfig;
use super::failure::{Fault, io_error};
use super::open::{begin_writing, check_catalog, end_writing, lock};
use super::schema::FILE;
use super::verify::verify_sqlite;
use crate::journal_store::CompactReport;

/// Writes the database of the store in `dir` anew (`VACUUM`), without the pages that deleted sessions
/// have left. Takes the store's lock, so the store must be closed. Durable when it returns; a crash in
/// between loses nothing. Needs room for a copy in SQLite's directory for temporary files, and for the
/// old pages beside the database. Blocks.
///
/// # Errors
///
/// [`StoreError::InUse`] if the store is open; [`StoreError::Argument`] if it is damaged, since what
/// is damaged would be gone for good; [`StoreError::Full`] and [`StoreError::Io`], with the database
/// as it was.
pub fn compact_sqlite(dir: impl AsRef<Path>) -> Result<CompactReport, StoreError> {
    let (dir, config) = (dir.as_ref(), SqliteConfig::default());
    let _held = lock(dir)?;
    let fail = |fault: Fault| fault.of_store(dir);
    // The log goes into the database, so that the file is all there is.
    end_writing(begin_writing(dir, &config).map_err(fail)?).map_err(fail)?;
    if !verify_sqlite(dir, &mut |_| ())?.is_whole() {
        return Err(StoreError::Argument(format!(
            "the store at {} is damaged and compaction would make that final; see `playhouse \
             sessions verify`",
            dir.display()
        )));
    }
    let bytes_before = file_bytes(dir)?;
    let connection = begin_writing(dir, &config).map_err(fail)?;
    connection.execute_batch("VACUUM").map_err(|error| fail(error.into()))?;
    check_catalog(&connection).map_err(fail)?;
    end_writing(connection).map_err(fail)?;
    Ok(CompactReport { bytes_before, bytes_after: file_bytes(dir)? })
}

fn file_bytes(dir: &Path) -> Result<u64, StoreError> {
    let file = dir.join(FILE);
    let found = std::fs::metadata(&file).map_err(|error| io_error("read", &file, &error))?;
    Ok(found.len())
}
