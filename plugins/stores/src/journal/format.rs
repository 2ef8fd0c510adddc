//! The journal's bytes: segment header, batch, record frame, footer. `docs/journal.md` freezes them.
//!
//! Everything here is pure: bytes in, values out. Integers are little endian.

use super::entry::Entry;

/// Version of the bytes, in the format file and in every segment header.
pub const FORMAT_VERSION: u32 = 1;
/// First bytes of a segment.
pub const SEGMENT_MAGIC: [u8; 8] = *b"PLAYHSEG";
/// First bytes of a batch.
pub const BATCH_MAGIC: [u8; 4] = *b"PHB\x01";
/// First bytes of a footer.
pub const FOOTER_MAGIC: [u8; 4] = *b"PHF\x01";
/// Last bytes of a sealed segment.
pub const END_MAGIC: [u8; 8] = *b"PLAYHEND";
/// Length of a segment header, in bytes.
pub const SEGMENT_HEADER_LEN: usize = 48;
/// Length of a batch header, in bytes.
pub const BATCH_HEADER_LEN: usize = 24;
/// Length of the frame before a record's payload, in bytes.
pub const RECORD_HEADER_LEN: usize = 9;
/// Length of the trailer that ends a sealed segment, in bytes.
pub const TRAILER_LEN: usize = 44;
/// The largest body a batch may have, in bytes.
pub const MAX_BODY: u64 = 1 << 30;

/// Sixteen random bytes that every file of one store carries.
pub type StoreId = [u8; 16];

/// The checksum of one store: CRC-32 seeded with the store's id, so that bytes of another journal
/// (say, one that an agent has read and that stands in an event) are never taken for our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checksum(u32);

impl Checksum {
    /// The checksum of the store with this id.
    #[must_use]
    pub fn of_store(id: &StoreId) -> Self {
        Self(crc32fast::hash(id))
    }

    /// The checksum of the parts, one after the other.
    #[must_use]
    pub fn over(self, parts: &[&[u8]]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

/// Reads integers off the front of a slice; `None` when it is too short.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// The first bytes of a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Version of the bytes that follow.
    pub version: u32,
    /// If not 0, the journal begins this many segments before the next: at this segment for 1, at
    /// the one before for 2. Segments before that do not count.
    pub base: u16,
    /// The store this segment belongs to.
    pub store: StoreId,
    /// The segment's number, the same as in its file name.
    pub segment: u64,
    /// The number of its first batch. Batches of the segment before with this number or a higher
    /// one are superseded by the ones here.
    pub first_batch: u64,
}

impl SegmentHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_LEN] {
        let mut out = [0; SEGMENT_HEADER_LEN];
        out[..8].copy_from_slice(&SEGMENT_MAGIC);
        // One that does not fit is none that this code has; it reads as newer than all.
        let version = u16::try_from(self.version).unwrap_or(u16::MAX);
        out[8..10].copy_from_slice(&version.to_le_bytes());
        out[10..12].copy_from_slice(&self.base.to_le_bytes());
        out[12..28].copy_from_slice(&self.store);
        out[28..36].copy_from_slice(&self.segment.to_le_bytes());
        out[36..44].copy_from_slice(&self.first_batch.to_le_bytes());
        let crc = crc32fast::hash(&out[..44]);
        out[44..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header at the start of a segment, if its checksum holds. Its version is not judged.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let whole = bytes.get(..SEGMENT_HEADER_LEN)?;
        let mut from = Bytes(whole);
        if from.array::<8>()? != SEGMENT_MAGIC {
            return None;
        }
        let header = Self {
            version: u32::from(from.u16()?),
            base: from.u16()?,
            store: from.array()?,
            segment: from.u64()?,
            first_batch: from.u64()?,
        };
        (from.u32()? == crc32fast::hash(&whole[..44])).then_some(header)
    }
}

/// The bytes before a batch's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// The batch's number; the journal's first is 1, and there are no gaps.
    pub number: u64,
    /// Length of the body, in bytes.
    pub length: u32,
    /// Checksum over number, length and body.
    pub body_crc: u32,
}

impl BatchHeader {
    /// The header at the start of `bytes`, if its own checksum holds.
    #[must_use]
    pub fn decode(bytes: &[u8], checksum: Checksum) -> Option<Self> {
        let whole = bytes.get(..BATCH_HEADER_LEN)?;
        let mut from = Bytes(whole);
        if from.array::<4>()? != BATCH_MAGIC {
            return None;
        }
        let (number, length) = (from.u64()?, from.u32()?);
        if from.u32()? != checksum.over(&[&whole[..16]]) || u64::from(length) > MAX_BODY {
            return None;
        }
        Some(Self { number, length, body_crc: from.u32()? })
    }

    /// Whether `body` is the body that belongs to this header.
    #[must_use]
    pub fn holds(&self, body: &[u8], checksum: Checksum) -> bool {
        let (number, length) = (self.number.to_le_bytes(), self.length.to_le_bytes());
        checksum.over(&[&BATCH_MAGIC, &number, &length, body]) == self.body_crc
    }
}

/// The bytes of a batch: header and body. `None` if the body is over [`MAX_BODY`].
#[must_use]
pub fn encode_batch(number: u64, body: &[u8], checksum: Checksum) -> Option<Vec<u8>> {
    let length = u32::try_from(body.len()).ok()?;
    if u64::from(length) > MAX_BODY {
        return None;
    }
    let mut out = Vec::with_capacity(BATCH_HEADER_LEN + body.len());
    out.extend_from_slice(&BATCH_MAGIC);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    let header_crc = checksum.over(&[&out]);
    let body_crc = checksum.over(&[&out, body]);
    out.extend_from_slice(&header_crc.to_le_bytes());
    out.extend_from_slice(&body_crc.to_le_bytes());
    out.extend_from_slice(body);
    Some(out)
}

/// Puts one record's frame and payload at the end of `body`.
pub fn push_record(body: &mut Vec<u8>, kind: u8, payload: &[&[u8]], checksum: Checksum) {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    // A longer payload makes the body longer than MAX_BODY too, which `encode_batch` refuses.
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut parts: Vec<&[u8]> = Vec::with_capacity(payload.len() + 2);
    let kind = [kind];
    parts.push(&kind);
    parts.push(&length);
    parts.extend_from_slice(payload);
    let crc = checksum.over(&parts);
    body.extend_from_slice(&kind);
    body.extend_from_slice(&length);
    body.extend_from_slice(&crc.to_le_bytes());
    for part in payload {
        body.extend_from_slice(part);
    }
}

/// Takes one record off the front: its kind and payload, if its checksum holds.
pub fn take_record<'a>(from: &mut Bytes<'a>, checksum: Checksum) -> Option<(u8, &'a [u8])> {
    let kind = from.u8()?;
    let length = from.u32()?;
    let crc = from.u32()?;
    let payload = from.take(usize::try_from(length).ok()?)?;
    let held = checksum.over(&[&[kind], &length.to_le_bytes(), payload]) == crc;
    held.then_some((kind, payload))
}

/// What a sealed segment says of itself: where each record is, and which batches it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footer {
    /// Number of the first batch.
    pub first_batch: u64,
    /// Number of the last batch.
    pub last_batch: u64,
    /// Every record, in the order in which they stand in the file.
    pub entries: Vec<Entry>,
}

/// The last bytes of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Where the footer starts, which is where the batches end.
    pub offset: u64,
    /// Length of the footer without this trailer, in bytes.
    pub length: u32,
    /// Number of the first batch.
    pub first_batch: u64,
    /// Number of the last batch.
    pub last_batch: u64,
    /// Checksum of the footer.
    pub crc: u32,
}

impl Trailer {
    /// The trailer in the last bytes of a file, if its checksum holds.
    #[must_use]
    pub fn decode(last: &[u8], checksum: Checksum) -> Option<Self> {
        let whole = last.get(last.len().checked_sub(TRAILER_LEN)?..)?;
        let mut from = Bytes(whole);
        let trailer = Self {
            offset: from.u64()?,
            length: from.u32()?,
            first_batch: from.u64()?,
            last_batch: from.u64()?,
            crc: from.u32()?,
        };
        let crc = from.u32()?;
        (crc == checksum.over(&[&whole[..32]]) && from.array::<8>()? == END_MAGIC)
            .then_some(trailer)
    }
}

impl Footer {
    /// The bytes that seal a segment whose batches end at `offset`. `None` if there are too many
    /// entries for the format; such a segment stays unsealed.
    #[must_use]
    pub fn encode(&self, offset: u64, checksum: Checksum) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(8 + self.entries.len() * 40 + TRAILER_LEN);
        out.extend_from_slice(&FOOTER_MAGIC);
        out.extend_from_slice(&u32::try_from(self.entries.len()).ok()?.to_le_bytes());
        for entry in &self.entries {
            entry.encode(&mut out);
        }
        let length = u32::try_from(out.len()).ok()?;
        let crc = checksum.over(&[&out]);
        let start = out.len();
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&self.first_batch.to_le_bytes());
        out.extend_from_slice(&self.last_batch.to_le_bytes());
        out.extend_from_slice(&crc.to_le_bytes());
        let trailer_crc = checksum.over(&[&out[start..]]);
        out.extend_from_slice(&trailer_crc.to_le_bytes());
        out.extend_from_slice(&END_MAGIC);
        Some(out)
    }

    /// The footer that a trailer describes, from the bytes it points at.
    #[must_use]
    pub fn decode(trailer: &Trailer, bytes: &[u8], checksum: Checksum) -> Option<Self> {
        if bytes.len() != trailer.length as usize || checksum.over(&[bytes]) != trailer.crc {
            return None;
        }
        let mut from = Bytes(bytes);
        if from.array::<4>()? != FOOTER_MAGIC {
            return None;
        }
        let count = from.u32()?;
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.push(Entry::decode(&mut from)?);
        }
        from.0.is_empty().then_some(Self {
            first_batch: trailer.first_batch,
            last_batch: trailer.last_batch,
            entries,
        })
    }
}
