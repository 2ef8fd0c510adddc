//! An entry: one line of a table of contents, saying which record stands where.

use super::format::Bytes;

/// The kinds of record, as the byte that stands before each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The entries of the batch before, so that a damaged batch's contents are known from the next.
    Trail = 0,
    /// A session's number, id and header.
    Session = 1,
    /// Events of one session with consecutive sequence numbers.
    Events = 2,
    /// A part of the stream of a model attempt.
    Tail = 3,
    /// A key and its value.
    Kv = 4,
    /// A session is deleted.
    Tombstone = 5,
}

impl Kind {
    /// The kind that a byte stands for.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Trail,
            1 => Self::Session,
            2 => Self::Events,
            3 => Self::Tail,
            4 => Self::Kv,
            5 => Self::Tombstone,
            _ => return None,
        })
    }
}

/// Where one record stands and what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What kind of record.
    pub kind: Kind,
    /// The session's number; 0 for [`Kind::Kv`].
    pub session: u64,
    /// [`Kind::Events`]: sequence number of the first; [`Kind::Session`]: events inherited;
    /// [`Kind::Tail`]: the attempt.
    pub first_seq: u64,
    /// [`Kind::Events`]: how many; [`Kind::Tail`]: the serial.
    pub count: u32,
    /// Offset of the record's frame in the segment's file, in bytes.
    pub offset: u64,
    /// Length of frame and payload, in bytes.
    pub length: u32,
    /// [`Kind::Session`]: the id; [`Kind::Kv`]: the key; else empty.
    pub key: Vec<u8>,
}

impl Entry {
    /// Puts the entry's bytes at the end of `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8);
        // Keys are bounded by the stores (an id or key over 64 KiB is refused long before).
        let key_length = u32::try_from(self.key.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&key_length.to_le_bytes());
        out.extend_from_slice(&self.session.to_le_bytes());
        out.extend_from_slice(&self.first_seq.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.key);
    }

    /// Takes an entry off the front.
    pub fn decode(from: &mut Bytes<'_>) -> Option<Self> {
        let kind = Kind::from_byte(from.u8()?)?;
        let key_length = usize::try_from(from.u32()?).ok()?;
        Some(Self {
            kind,
            session: from.u64()?,
            first_seq: from.u64()?,
            count: from.u32()?,
            offset: from.u64()?,
            length: from.u32()?,
            key: from.take(key_length)?.to_vec(),
        })
    }
}
