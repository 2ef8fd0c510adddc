//! Reading one segment's bytes: good batches, bad stretches, and where the good part ends.

use bytes::Bytes as Buffer;

use super::entry::Entry;
use super::format::{
    BATCH_HEADER_LEN, BATCH_MAGIC, BatchHeader, Checksum, Footer, SEGMENT_HEADER_LEN,
    SegmentHeader, TRAILER_LEN, Trailer,
};
use super::record::{Record, decode_body};

/// A batch whose checksums hold.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Its number.
    pub number: u64,
    /// Where its header starts, in bytes.
    pub offset: u64,
    /// Where it ends, in bytes.
    pub end: u64,
    /// Its checksum, which with length and number says whether two batches are equal.
    pub body_crc: u32,
    /// The entries of the batch before it, offsets counted from that batch's start.
    pub trail: Vec<Entry>,
    /// An entry for each of its records, with offsets in the file.
    pub entries: Vec<Entry>,
    /// Whether its body could be understood. If not, `trail` and `entries` are empty.
    pub understood: bool,
}

/// A stretch of bytes that is no batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadStretch {
    /// Where it starts, in bytes.
    pub offset: u64,
    /// Where it ends, in bytes: at the next good batch, or at the end.
    pub end: u64,
}

/// What one segment's bytes hold.
#[derive(Debug, Clone)]
pub struct SegmentScan {
    /// Its header, if the checksum holds.
    pub header: Option<SegmentHeader>,
    /// The good batches, as they stand.
    pub batches: Vec<Batch>,
    /// Bad stretches that have a good batch, or a sealed end, behind them.
    pub bad: Vec<BadStretch>,
    /// Where the last good batch ends (or the header, if there is none).
    pub end: u64,
    /// Where the bytes end that are not footer: `end` if nothing is torn.
    pub data_end: u64,
    /// The footer, if the segment is sealed and the footer can be read.
    pub footer: Option<Footer>,
}

impl SegmentScan {
    /// Whether bytes stand behind the last good batch that are no batch.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.end < self.data_end
    }
}

/// Scans the bytes of a whole segment. Never fails: what cannot be read is a bad stretch.
#[must_use]
pub fn scan_segment(bytes: &Buffer, checksum: Checksum) -> SegmentScan {
    let header = SegmentHeader::decode(bytes);
    let (data_end, footer) = match Trailer::decode(bytes, checksum) {
        Some(trailer) => read_footer(bytes, &trailer, checksum),
        None => (bytes.len(), None),
    };
    let mut scan = SegmentScan {
        header,
        batches: Vec::new(),
        bad: Vec::new(),
        end: SEGMENT_HEADER_LEN.min(data_end) as u64,
        data_end: data_end as u64,
        footer,
    };
    let data = bytes.slice(..data_end);
    let mut at = SEGMENT_HEADER_LEN;
    while at < data.len() {
        match batch_at(&data, at, checksum) {
            Ok(batch) => {
                at = to_usize(batch.end);
                scan.end = batch.end;
                scan.batches.push(batch);
            }
            Err(resume) => {
                let next = next_header(&data, resume, checksum);
                // Bytes behind the known end of a bad batch: it was synced when they were written,
                // so it is damaged and not torn.
                let written_behind = resume > at + 1 && resume < data.len();
                if next.is_none() && scan.footer.is_none() && !written_behind {
                    break;
                }
                let end = next.unwrap_or(data.len());
                scan.bad.push(BadStretch { offset: at as u64, end: end as u64 });
                at = end;
                scan.end = end as u64;
            }
        }
    }
    scan
}

/// Where the batches end, and the footer that says so. A trailer whose footer cannot be read still
/// says where the batches end.
fn read_footer(bytes: &Buffer, trailer: &Trailer, checksum: Checksum) -> (usize, Option<Footer>) {
    let start = to_usize(trailer.offset);
    let footer_end = bytes.len() - TRAILER_LEN;
    match bytes.get(start..footer_end) {
        Some(body) => (start, Footer::decode(trailer, body, checksum)),
        // The trailer holds and points elsewhere: bytes between were cut out of the file.
        None => (footer_end, None),
    }
}

/// The batch at `at`, or from where to look for the next one.
fn batch_at(data: &Buffer, at: usize, checksum: Checksum) -> Result<Batch, usize> {
    let header = BatchHeader::decode(&data[at..], checksum).ok_or(at + 1)?;
    let start = at + BATCH_HEADER_LEN;
    let end = start + header.length as usize;
    // The header's own checksum holds, so its length can be trusted: what stands inside the body
    // is payload, and no place to look for batches.
    if end > data.len() {
        return Err(data.len());
    }
    let body = data.slice(start..end);
    if !header.holds(&body, checksum) {
        return Err(end);
    }
    let decoded = decode_body(&body, checksum);
    let understood = decoded.is_some();
    let (trail, records) = decoded.unwrap_or_default();
    let entries = records.into_iter().map(|(mut entry, _)| {
        entry.offset += at as u64;
        entry
    });
    Ok(Batch {
        number: header.number,
        offset: at as u64,
        end: end as u64,
        body_crc: header.body_crc,
        trail,
        entries: entries.collect(),
        understood,
    })
}

/// The first place at or behind `from` where a good batch header stands. Its body may be bad: that
/// it was written at all says that what stands before it was synced.
fn next_header(data: &Buffer, from: usize, checksum: Checksum) -> Option<usize> {
    let mut at = from;
    while let Some(bytes) = data.get(at..) {
        let found = bytes.windows(BATCH_MAGIC.len()).position(|window| window == BATCH_MAGIC)?;
        at += found;
        if BatchHeader::decode(&data[at..], checksum).is_some() {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// The records of the batch that starts at `offset`, if it is good.
#[must_use]
pub fn records_at(bytes: &Buffer, offset: u64, checksum: Checksum) -> Option<Vec<(Entry, Record)>> {
    let at = to_usize(offset);
    let header = BatchHeader::decode(bytes.get(at..)?, checksum)?;
    let start = at + BATCH_HEADER_LEN;
    let end = start.checked_add(header.length as usize)?;
    bytes.get(start..end)?;
    let body = bytes.slice(start..end);
    header.holds(&body, checksum).then_some(())?;
    let (_, mut records) = decode_body(&body, checksum)?;
    for (entry, _) in &mut records {
        entry.offset += offset;
    }
    Some(records)
}

fn to_usize(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
