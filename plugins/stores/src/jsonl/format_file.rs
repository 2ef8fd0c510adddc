//! The format file: that a directory is a JSONL store, and of which version.

use std::path::Path;
use std::sync::Arc;

use playhouse_plugin_api::store::StoreError;

use super::layout::{Named, draft, is_value, named};
use super::shelf::Shelf;
use crate::journal::{JournalError, RealDisk};

/// The version of the bytes that this build writes, and the highest that it reads.
pub const JSONL_FORMAT_VERSION: u32 = 1;

/// What a format file of this kind begins with.
pub(crate) const WORD: &str = "playhouse-jsonl";
/// What the journal's begins with.
pub(crate) const JOURNAL_WORD: &str = "playhouse-store";

/// One line: the kind, the version, and the checksum of the line before it. Every version keeps to it.
fn line(version: u32) -> String {
    let text = format!("{WORD} {version}");
    let crc = crc32fast::hash(text.as_bytes());
    format!("{text} {crc:08x}\n")
}

/// The state of a store's format file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Whole,
    /// Damaged or gone, in a directory that holds sessions or values. The next writer puts it right.
    Damaged,
    /// There is none, and nothing else of a store.
    Missing,
}

/// Reads the format file.
///
/// # Errors
///
/// [`StoreError::FormatUnsupported`] if a newer version wrote it, [`StoreError::Argument`] if it is
/// that of something else.
pub(super) fn read(shelf: &Shelf) -> Result<Format, StoreError> {
    let dir = shelf.layout().dir().display();
    let found = shelf.bytes(&shelf.layout().format())?;
    let text = found.as_deref().map(String::from_utf8_lossy);
    let version = text.as_deref().and_then(|text| {
        let version = text.split(' ').nth(1)?.parse().ok()?;
        (line(version) == text).then_some(version)
    });
    match version {
        Some(version) if version <= JSONL_FORMAT_VERSION => return Ok(Format::Whole),
        Some(version) => {
            return Err(StoreError::FormatUnsupported {
                what: format!("the store at {dir}"),
                cause: format!(
                    "it has format {version}, and this version knows {JSONL_FORMAT_VERSION}; upgrade \
                     Playhouse"
                ),
            });
        }
        None => {}
    }
    let is_ours = holds_anything(shelf)?;
    match text {
        None if is_ours => Ok(Format::Damaged),
        None => Ok(Format::Missing),
        // Damage to our own line; a line of another kind of store is no damage.
        Some(text) if text.starts_with(WORD) || (is_ours && !text.starts_with(JOURNAL_WORD)) => {
            Ok(Format::Damaged)
        }
        Some(_) => Err(StoreError::Argument(format!(
            "{dir} is not a JSONL store: its format file cannot be read"
        ))),
    }
}

/// Whether sessions or values lie there. Directories alone are what a crash leaves of a store that was
/// being made.
fn holds_anything(shelf: &Shelf) -> Result<bool, StoreError> {
    let (sessions, values) = (shelf.layout().sessions(), shelf.layout().values());
    Ok(shelf.names(&sessions)?.iter().any(|name| named(name) != Named::Other)
        || shelf.names(&values)?.iter().any(|name| is_value(name)))
}

/// Whether a store lies in `dir` whatever became of its format file.
pub(crate) fn is_ours_without_format(dir: &Path) -> bool {
    let shelf = Shelf::new(Arc::new(RealDisk), dir);
    let layout = shelf.layout();
    let has_places = layout.sessions().is_dir() && layout.values().is_dir();
    has_places && holds_anything(&shelf).unwrap_or(true)
}

/// Writes the format file, durably and whole or not at all.
pub(super) fn write(shelf: &Shelf) -> Result<(), StoreError> {
    let path = shelf.layout().format();
    shelf.draft(&path, line(JSONL_FORMAT_VERSION).as_bytes())?;
    let renamed = shelf.disk().rename(&draft(&path), &path);
    renamed.map_err(|error| shelf.fail(JournalError::io("write", &path, error)))?;
    shelf.sync_dir(shelf.layout().dir())
}
