//! Writing the journal: one write a batch, one batch unsynced, a new segment after any doubt.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod compaction;
mod reserve;
mod resume;

use super::disk::{Disk, DiskFile, Held, LockOutcome};
use super::entry::Entry;
use super::error::JournalError;
use super::format::{
    BATCH_HEADER_LEN, Checksum, FORMAT_VERSION, Footer, MAX_BODY, SEGMENT_HEADER_LEN,
    SegmentHeader, StoreId, encode_batch,
};
use super::format_file::{read_format, write_format};
use super::record::{Record, encode_body};
use super::segments::{list_segments, segment_path, segments_dir};

/// Sizes of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalConfig {
    /// A segment is sealed when the next batch would make it longer than this, in bytes. A batch
    /// that is longer has a segment to itself.
    pub segment_bytes: u64,
    /// Bytes set aside on the disk for [`Urgency::Closing`] batches when it is full; 0 for none.
    pub reserve_bytes: u64,
}

impl Default for JournalConfig {
    /// Segments of 64 MiB, and 1 MiB set aside.
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, reserve_bytes: 1 << 20 }
    }
}

/// Whether a batch may take the space that is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// No: a full disk refuses it.
    Ordinary,
    /// Yes: it closes what is open.
    Closing,
}

/// Where a batch was written.
#[derive(Debug, Clone)]
pub struct Written {
    /// The batch's number.
    pub number: u64,
    /// The segment's number.
    pub segment: u64,
    /// An entry for each record, with offsets in the segment's file.
    pub entries: Vec<Entry>,
}

/// The last batch stands somewhere else now, because its old segment cannot be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// The segment it was written to first.
    pub segment: u64,
    /// Where it started there, in bytes.
    pub offset: u64,
    /// The segment it is in now.
    pub to_segment: u64,
    /// Where it starts there, in bytes.
    pub to_offset: u64,
}

/// A segment that was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// The segment's number.
    pub segment: u64,
    /// The number of its last batch.
    pub last_batch: u64,
}

struct OpenSegment {
    number: u64,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    length: u64,
    first_batch: u64,
    entries: Vec<Entry>,
}

/// The one batch that is written and not synced.
struct Unsynced {
    number: u64,
    segment: u64,
    offset: u64,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// The one writer of a journal. It holds the store's lock for as long as it lives. Every call
/// blocks; use it from a thread of its own.
pub struct Writer {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    config: JournalConfig,
    store: StoreId,
    checksum: Checksum,
    segment: Option<OpenSegment>,
    unsynced: Option<Unsynced>,
    /// Entries of the batch before the next, offsets counted from its start.
    trail: Vec<Entry>,
    next_batch: u64,
    next_segment: u64,
    reserve: bool,
    moved: Vec<Moved>,
    sealed: Vec<Sealed>,
    _lock: Box<dyn Held>,
}

/// Several writes if need be: for files that only count once they are renamed or complete.
pub(crate) fn write_all(file: &mut dyn DiskFile, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

impl Writer {
    /// Takes the lock, creating the store if `dir` is not one yet. `fresh` is the id of a new store:
    /// sixteen random bytes.
    ///
    /// Nothing is read of the journal; [`Writer::resume`] does that.
    ///
    /// # Errors
    ///
    /// `StoreInUse` if another writer holds the lock; `FormatUnsupported`, `NotAStore`; I/O errors.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        fresh: StoreId,
        config: JournalConfig,
    ) -> Result<Self, JournalError> {
        let journal = segments_dir(dir);
        disk.create_dir_all(&journal)
            .map_err(|error| JournalError::io("create", &journal, error))?;
        let lock_path = dir.join("lock");
        let lock = match disk.lock(&lock_path) {
            Ok(LockOutcome::Held(lock)) => lock,
            Ok(LockOutcome::Busy(pid)) => {
                let dir = dir.to_path_buf();
                return Err(JournalError::StoreInUse { dir, pid });
            }
            Err(error) => return Err(JournalError::io("lock", lock_path, error)),
        };
        let store = match read_format(disk.as_ref(), dir) {
            Ok(format) if format.damaged => {
                write_format(disk.as_ref(), dir, &format.store)?;
                format.store
            }
            Ok(format) => format.store,
            Err(JournalError::NotAStore { .. })
                if list_segments(disk.as_ref(), dir)?.is_empty() =>
            {
                write_format(disk.as_ref(), dir, &fresh)?;
                if let Some(parent) = dir.parent() {
                    // Best effort: the parent may belong to somebody else.
                    let _ = disk.sync_dir(parent);
                }
                fresh
            }
            Err(error) => return Err(error),
        };
        let mut writer = Self {
            checksum: Checksum::of_store(&store),
            disk,
            dir: dir.to_path_buf(),
            config,
            store,
            segment: None,
            unsynced: None,
            trail: Vec::new(),
            next_batch: 1,
            next_segment: 1,
            reserve: false,
            moved: Vec::new(),
            sealed: Vec::new(),
            _lock: lock,
        };
        writer.set_reserve_aside();
        Ok(writer)
    }

    /// The store's id.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Writes the records as one batch with one write, after syncing the batch before it. When this
    /// returns, the batch survives the death of the process.
    ///
    /// # Errors
    ///
    /// `StoreFull`, an I/O error or `BatchTooLarge`; nothing of the batch is accepted then, and the
    /// same call may be made again.
    pub fn write(&mut self, records: &[Record], urgency: Urgency) -> Result<Written, JournalError> {
        if let Err(error) = self.sync() {
            self.release_reserve(error, urgency)?;
            self.sync()?;
        }
        let size: u64 = records.iter().map(|record| record.size() as u64).sum();
        let too_large = |bytes: u64| JournalError::BatchTooLarge { bytes, limit: MAX_BODY };
        if size > MAX_BODY {
            return Err(too_large(size));
        }
        let (body, entries) = encode_body(&self.trail, records, self.checksum);
        let bytes = encode_batch(self.next_batch, &body, self.checksum)
            .ok_or_else(|| too_large(body.len() as u64))?;
        drop(body);
        let full = self.segment.as_ref().is_some_and(|segment| {
            let length = segment.length + bytes.len() as u64;
            length > self.config.segment_bytes && segment.first_batch < self.next_batch
        });
        if full {
            self.seal()?;
        }
        let offset = match self.put(&bytes, self.next_batch) {
            Ok(offset) => offset,
            Err(error) => self.second_try(&bytes, error, urgency)?,
        };
        // `put` leaves a segment open when it succeeds.
        let segment = self.segment.as_ref().map_or(0, |segment| segment.number);
        let unsynced = Unsynced { number: self.next_batch, segment, offset, bytes, entries };
        self.next_batch += 1;
        Ok(self.settle(unsynced))
    }

    /// A write that failed is tried once more in a new segment; on a full disk only if it may take
    /// what is set aside.
    fn second_try(
        &mut self,
        bytes: &[u8],
        error: JournalError,
        urgency: Urgency,
    ) -> Result<u64, JournalError> {
        if matches!(error, JournalError::StoreFull { .. }) {
            self.release_reserve(error, urgency)?;
        }
        self.put(bytes, self.next_batch)
    }

    /// Makes the written batch the unsynced one, and tells where its records stand.
    fn settle(&mut self, unsynced: Unsynced) -> Written {
        let absolute =
            |entry: &Entry| Entry { offset: entry.offset + unsynced.offset, ..entry.clone() };
        let entries: Vec<Entry> = unsynced.entries.iter().map(absolute).collect();
        if let Some(segment) = &mut self.segment {
            segment.entries.extend_from_slice(&entries);
        }
        let written = Written { number: unsynced.number, segment: unsynced.segment, entries };
        self.trail.clone_from(&unsynced.entries);
        self.unsynced = Some(unsynced);
        written
    }

    /// One write of a batch at the end of the open segment, or of a new one. A segment that did not
    /// take it whole is abandoned.
    fn put(&mut self, bytes: &[u8], number: u64) -> Result<u64, JournalError> {
        if let Some(segment) = &mut self.segment {
            let offset = segment.length;
            match write_once(segment.file.as_mut(), bytes) {
                Ok(()) => {
                    segment.length += bytes.len() as u64;
                    return Ok(offset);
                }
                Err(error) => {
                    let path = segment.path.clone();
                    // Tidiness only: whatever stands there is superseded by the next segment.
                    let _ = segment.file.set_len(offset);
                    self.segment = None;
                    return Err(JournalError::io("write", path, error));
                }
            }
        }
        let header = SegmentHeader {
            version: FORMAT_VERSION,
            base: 0,
            store: self.store,
            segment: self.next_segment,
            first_batch: number,
        };
        let path = segment_path(&self.dir, header.segment);
        let fail = |error| JournalError::io("write", &path, error);
        let mut file = match self.disk.create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Left by an attempt that failed before it held anything.
                self.disk.remove(&path).map_err(fail)?;
                self.disk.create(&path).map_err(fail)?
            }
            other => other.map_err(fail)?,
        };
        let mut first = Vec::with_capacity(SEGMENT_HEADER_LEN + bytes.len());
        first.extend_from_slice(&header.encode());
        first.extend_from_slice(bytes);
        let journal = segments_dir(&self.dir);
        let made = self.disk.sync_dir(&journal).and_then(|()| write_once(file.as_mut(), &first));
        if let Err(error) = made {
            // It must not stay: a later write would use the same number.
            let _ = file.set_len(0);
            let _ = self.disk.remove(&path);
            return Err(fail(error));
        }
        self.next_segment += 1;
        self.segment = Some(OpenSegment {
            number: header.segment,
            path,
            file,
            length: first.len() as u64,
            first_batch: number,
            entries: Vec::new(),
        });
        Ok(SEGMENT_HEADER_LEN as u64)
    }

    /// Makes everything written durable. Returns the number of the last durable batch.
    ///
    /// If the operating system refuses, the file is never trusted again: the batch goes into a new
    /// segment, and only that one's sync counts.
    ///
    /// # Errors
    ///
    /// When that fails too. The batch is still written and not durable; the next call tries again.
    pub fn sync(&mut self) -> Result<u64, JournalError> {
        if let Some(unsynced) = &self.unsynced {
            let number = unsynced.number;
            let synced = match &mut self.segment {
                Some(segment) => segment.file.sync().is_ok(),
                None => false,
            };
            if synced {
                self.unsynced = None;
            } else {
                self.rescue()?;
            }
            if !self.reserve && self.config.reserve_bytes > 0 {
                self.set_reserve_aside();
            }
            return Ok(number);
        }
        Ok(self.next_batch - 1)
    }

    /// Puts the unsynced batch into a new segment and syncs that.
    fn rescue(&mut self) -> Result<(), JournalError> {
        let Some(unsynced) = self.unsynced.take() else {
            return Ok(());
        };
        self.segment = None;
        let (from_segment, from_offset) = (unsynced.segment, unsynced.offset);
        let outcome = self.put(&unsynced.bytes, unsynced.number);
        let offset = match outcome {
            Ok(offset) => offset,
            Err(error) => {
                self.unsynced = Some(unsynced);
                return Err(error);
            }
        };
        let segment = self.segment.as_ref().map_or(0, |segment| segment.number);
        self.moved.push(Moved {
            segment: from_segment,
            offset: from_offset,
            to_segment: segment,
            to_offset: offset,
        });
        self.settle(Unsynced { segment, offset, ..unsynced });
        if let Some(open) = &mut self.segment
            && let Err(error) = open.file.sync()
        {
            let path = open.path.clone();
            self.segment = None;
            return Err(JournalError::io("sync", path, error));
        }
        self.unsynced = None;
        Ok(())
    }

    /// Syncs, and ends the open segment with a footer. The next batch starts a new one.
    ///
    /// # Errors
    ///
    /// Those of [`Writer::sync`]. A footer that cannot be written is no error: the segment stays
    /// without one, which costs a scan when it is read.
    pub fn seal(&mut self) -> Result<(), JournalError> {
        self.sync()?;
        let Some(mut segment) = self.segment.take() else {
            return Ok(());
        };
        let footer = Footer {
            first_batch: segment.first_batch,
            last_batch: self.next_batch - 1,
            entries: std::mem::take(&mut segment.entries),
        };
        if let Some(bytes) = footer.encode(segment.length, self.checksum) {
            let sealed =
                write_once(segment.file.as_mut(), &bytes).and_then(|()| segment.file.sync());
            match sealed {
                Ok(()) => self
                    .sealed
                    .push(Sealed { segment: segment.number, last_batch: footer.last_batch }),
                Err(_) => {
                    let _ = segment.file.set_len(segment.length);
                }
            }
        }
        Ok(())
    }

    /// Batches that were moved since the last call.
    pub fn take_moved(&mut self) -> Vec<Moved> {
        std::mem::take(&mut self.moved)
    }

    /// Segments that were sealed since the last call.
    pub fn take_sealed(&mut self) -> Vec<Sealed> {
        std::mem::take(&mut self.sealed)
    }

    /// The number of the segment that is being written, or of the next one.
    #[must_use]
    pub fn segment(&self) -> u64 {
        self.segment.as_ref().map_or(self.next_segment, |segment| segment.number)
    }

    /// The number that the next batch gets.
    #[must_use]
    pub fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// The number that the next segment gets.
    #[must_use]
    pub fn next_segment(&self) -> u64 {
        self.next_segment
    }

    /// Whether a batch is written and not synced.
    #[must_use]
    pub fn is_unsynced(&self) -> bool {
        self.unsynced.is_some()
    }

    /// Whether the journal ends in a footer, or is empty.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.segment.is_none() && self.unsynced.is_none()
    }
}

/// One write that takes everything, or an error.
fn write_once(file: &mut dyn DiskFile, bytes: &[u8]) -> io::Result<()> {
    match file.write(bytes)? {
        count if count == bytes.len() => Ok(()),
        // Linux writes short when the disk fills up in the middle; it says so only the next time.
        _ => Err(io::Error::new(io::ErrorKind::StorageFull, "the write was cut short")),
    }
}

const _: () = assert!(BATCH_HEADER_LEN + SEGMENT_HEADER_LEN < 512);
