//! The format file: which version of the bytes a store has, and its id.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::error::JournalError;
use super::format::{FORMAT_VERSION, SEGMENT_HEADER_LEN, SegmentHeader, StoreId};
use super::segments::{list_segments, segment_path};
use super::writer::write_all;

/// What the format file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreFormat {
    /// The store's id.
    pub store: StoreId,
    /// Whether the file is damaged or gone, and the id is from a segment's header.
    pub damaged: bool,
}

fn format_path(dir: &Path) -> PathBuf {
    dir.join("format")
}

/// One line: `playhouse-store`, version, id, and the checksum of the line before it.
fn line(version: u32, store: &StoreId) -> String {
    let mut text = format!("playhouse-store {version} ");
    for byte in store {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    let crc = crc32fast::hash(text.as_bytes());
    let _ = writeln!(text, " {crc:08x}");
    text
}

/// Reads a store's version and id.
///
/// # Errors
///
/// `NotAStore` if `dir` is none, `FormatUnsupported` if a newer version wrote it; I/O errors.
pub fn read_format(disk: &dyn Disk, dir: &Path) -> Result<StoreFormat, JournalError> {
    let path = format_path(dir);
    let fail = |error| JournalError::io("read", &path, error);
    let mut reason = "it has no format file";
    match disk.open(&path) {
        Ok(file) => {
            let length = file.length().map_err(fail)?.min(4096);
            let mut text = vec![0; usize::try_from(length).unwrap_or(0)];
            file.read_at(&mut text, 0).map_err(fail)?;
            let text = String::from_utf8_lossy(&text);
            let words: Vec<&str> = text.split_ascii_whitespace().collect();
            if let ["playhouse-store", version, rest @ ..] = &words[..]
                && let Ok(found) = version.parse::<u32>()
            {
                let id = match rest {
                    [id, _] => u128::from_str_radix(id, 16).ok().map(u128::to_be_bytes),
                    _ => None,
                };
                let whole = id.filter(|store| line(found, store) == text);
                match whole {
                    Some(store) if found <= FORMAT_VERSION => {
                        return Ok(StoreFormat { store, damaged: false });
                    }
                    // Damage to a line of our own shape is not a newer version.
                    None if id.is_some() || found <= FORMAT_VERSION => {}
                    _ => return Err(unsupported(dir, found)),
                }
            }
            reason = "its format file cannot be read";
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
    }
    match store_of_segments(disk, dir)? {
        Some(store) => Ok(StoreFormat { store, damaged: true }),
        None => Err(JournalError::NotAStore { dir: dir.to_path_buf(), reason: reason.to_owned() }),
    }
}

fn unsupported(dir: &Path, found: u32) -> JournalError {
    JournalError::FormatUnsupported {
        dir: dir.to_path_buf(),
        found: u64::from(found),
        supported: u64::from(FORMAT_VERSION),
    }
}

/// The id in the first segment header that can be read.
fn store_of_segments(disk: &dyn Disk, dir: &Path) -> Result<Option<StoreId>, JournalError> {
    for number in list_segments(disk, dir)? {
        let mut bytes = [0; SEGMENT_HEADER_LEN];
        let read = disk.open(&segment_path(dir, number));
        if read.and_then(|file| file.read_at(&mut bytes, 0)).is_ok()
            && let Some(header) = SegmentHeader::decode(&bytes)
        {
            if header.version > FORMAT_VERSION {
                return Err(unsupported(dir, header.version));
            }
            return Ok(Some(header.store));
        }
    }
    Ok(None)
}

/// Writes the format file, durably and whole or not at all.
pub(super) fn write_format(
    disk: &dyn Disk,
    dir: &Path,
    store: &StoreId,
) -> Result<(), JournalError> {
    let draft = dir.join("format.new");
    let fail = |error| JournalError::io("write", format_path(dir), error);
    // Left by a process that died here.
    let _ = disk.remove(&draft);
    let mut file = disk.create(&draft).map_err(fail)?;
    write_all(file.as_mut(), line(FORMAT_VERSION, store).as_bytes()).map_err(fail)?;
    file.sync().map_err(fail)?;
    disk.rename(&draft, &format_path(dir)).map_err(fail)?;
    disk.sync_dir(dir).map_err(fail)
}
