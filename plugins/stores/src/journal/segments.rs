//! The segments of a journal as files: where they are, and what one read of each gives.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes as Buffer;

use super::disk::Disk;
use super::error::JournalError;
use super::format::{
    Checksum, FORMAT_VERSION, Footer, SEGMENT_HEADER_LEN, SegmentHeader, StoreId, TRAILER_LEN,
    Trailer,
};
use super::recovery::Depth;
use super::scan::{SegmentScan, scan_segment};

/// One segment as it was read.
pub(crate) struct Part {
    pub(crate) number: u64,
    pub(crate) contents: Contents,
}

pub(crate) enum Contents {
    Sealed(SegmentHeader, Footer),
    Scanned(SegmentScan),
}

impl Part {
    pub(crate) fn header(&self) -> Option<&SegmentHeader> {
        match &self.contents {
            Contents::Sealed(header, _) => Some(header),
            Contents::Scanned(scan) => scan.header.as_ref(),
        }
    }

    pub(crate) fn first(&self) -> Option<u64> {
        match &self.contents {
            Contents::Sealed(_, footer) => Some(footer.first_batch),
            Contents::Scanned(scan) => scan.batches.first().map(|batch| batch.number),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.contents, Contents::Scanned(scan)
            if scan.batches.is_empty() && scan.bad.is_empty() && scan.footer.is_none())
    }

    /// The batch number from which on this part supersedes the part before it.
    pub(crate) fn supersedes_from(&self) -> Option<u64> {
        let header = self.header()?;
        let first = self.first()?;
        (header.segment == self.number && header.first_batch == first).then_some(first)
    }
}

/// The directory of the segments.
pub(crate) fn segments_dir(dir: &Path) -> PathBuf {
    dir.join("journal")
}

/// The file of a segment.
pub(crate) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    segments_dir(dir).join(format!("{number:016}.segment"))
}

/// Numbers of the segments that are there, in order.
pub(crate) fn list_segments(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>, JournalError> {
    let names = match disk.list(&segments_dir(dir)) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(JournalError::io("list", segments_dir(dir), error)),
    };
    let mut numbers: Vec<u64> =
        names.iter().filter_map(|name| name.strip_suffix(".segment")?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Bytes of all segments together.
pub(crate) fn journal_bytes(disk: &dyn Disk, dir: &Path) -> Result<u64, JournalError> {
    let mut bytes = 0;
    for number in list_segments(disk, dir)? {
        let path = segment_path(dir, number);
        let length = disk.open(&path).and_then(|file| file.length());
        bytes += length.map_err(|error| JournalError::io("read", path, error))?;
    }
    Ok(bytes)
}

/// The numbers of the next segment and batch, if the journal ends in a footer.
pub(crate) fn sealed_end(
    disk: &dyn Disk,
    dir: &Path,
    store: &StoreId,
) -> Result<Option<(u64, u64)>, JournalError> {
    let Some(number) = list_segments(disk, dir)?.pop() else { return Ok(Some((1, 1))) };
    let path = segment_path(dir, number);
    let checksum = Checksum::of_store(store);
    let part = read_part(disk, &path, checksum, Depth::Footers)
        .map_err(|error| JournalError::io("read", path, error))?;
    Ok(match part {
        Contents::Sealed(header, footer) if header.segment == number => {
            Some((number + 1, footer.last_batch + 1))
        }
        _ => None,
    })
}

/// Takes out the parts before the one at which the journal begins. Returns their numbers, and the
/// number of the first batch.
pub(crate) fn drop_superseded(parts: &mut Vec<Part>) -> (Vec<u64>, u64) {
    let base = parts.iter().rev().find_map(|part| {
        let header = part.header().filter(|h| h.base > 0 && h.segment == part.number)?;
        let start = part.number.checked_sub(u64::from(header.base) - 1)?;
        let first = parts.iter().find(|part| part.number == start)?;
        // Segments whose first is gone or unreadable count from the very beginning, so that what is
        // missing shows.
        let first = first.header().filter(|header| header.segment == start)?.first_batch;
        Some((start, first))
    });
    let Some((start, first)) = base else { return (Vec::new(), 1) };
    let before = parts.iter().map(|part| part.number).filter(|number| *number < start).collect();
    parts.retain(|part| part.number >= start);
    (before, first)
}

/// Is told how many segments are read, and of how many.
pub type SegmentProgress<'a> = dyn FnMut(u64, u64) + 'a;

pub(crate) fn read_parts(
    disk: &dyn Disk,
    dir: &Path,
    numbers: &[u64],
    checksum: Checksum,
    depth: Depth,
    progress: &mut SegmentProgress<'_>,
) -> Result<Vec<Part>, JournalError> {
    let mut parts = Vec::with_capacity(numbers.len());
    for (done, &number) in (0..).zip(numbers) {
        progress(done, numbers.len() as u64);
        let path = segment_path(dir, number);
        match read_part(disk, &path, checksum, depth) {
            Ok(contents) => {
                let part = Part { number, contents };
                if let Some(header) = part.header()
                    && header.version > FORMAT_VERSION
                {
                    return Err(JournalError::FormatUnsupported {
                        dir: dir.to_path_buf(),
                        found: u64::from(header.version),
                        supported: u64::from(FORMAT_VERSION),
                    });
                }
                parts.push(part);
            }
            // The writer beside us has taken back a segment that it could not write.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A new writer has cut its torn tail while we read it.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(JournalError::io("read", path, error)),
        }
    }
    Ok(parts)
}

fn read_part(
    disk: &dyn Disk,
    path: &Path,
    checksum: Checksum,
    depth: Depth,
) -> io::Result<Contents> {
    let file = disk.open(path)?;
    let length = file.length()?;
    let read = |offset: u64, count: usize| -> io::Result<Vec<u8>> {
        let mut buf = vec![0; count];
        file.read_at(&mut buf, offset)?;
        Ok(buf)
    };
    let edges = (SEGMENT_HEADER_LEN + TRAILER_LEN) as u64;
    if depth == Depth::Footers && length >= edges {
        let header = SegmentHeader::decode(&read(0, SEGMENT_HEADER_LEN)?);
        let trailer_at = length - TRAILER_LEN as u64;
        let trailer =
            Trailer::decode(&read(trailer_at, TRAILER_LEN)?, checksum).filter(|trailer| {
                trailer.offset.checked_add(u64::from(trailer.length)) == Some(trailer_at)
            });
        if let (Some(header), Some(trailer)) = (header, trailer) {
            let bytes = read(trailer.offset, trailer.length as usize)?;
            if let Some(footer) = Footer::decode(&trailer, &bytes, checksum) {
                return Ok(Contents::Sealed(header, footer));
            }
        }
    }
    let length = usize::try_from(length).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let bytes = Buffer::from(read(0, length)?);
    Ok(Contents::Scanned(scan_segment(&bytes, checksum)))
}

/// Whether the sealed parts can be taken at their word: right names, no gap between them.
pub(crate) fn footers_fit(parts: &[Part], first: u64) -> bool {
    let mut expected = first;
    let mut before_is_sealed = true;
    parts.iter().all(|part| {
        // The last batch of an abandoned segment may stand in the next segment again.
        let again = !before_is_sealed && part.first().is_some_and(|first| first + 1 == expected);
        before_is_sealed = matches!(part.contents, Contents::Sealed(..));
        match &part.contents {
            Contents::Sealed(header, footer) => {
                let follows = footer.first_batch == expected || again;
                expected = footer.last_batch + 1;
                follows && header.segment == part.number && header.first_batch == footer.first_batch
            }
            Contents::Scanned(scan) => {
                let follows = part.first().is_none_or(|first| first >= expected) || again;
                if let Some(last) = scan.batches.last() {
                    expected = last.number + 1;
                }
                follows
            }
        }
    })
}
