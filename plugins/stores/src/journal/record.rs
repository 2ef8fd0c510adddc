//! Records: what a batch holds.

use bytes::Bytes as Buffer;

use super::entry::{Entry, Kind};
use super::format::{
    BATCH_HEADER_LEN, Bytes, Checksum, RECORD_HEADER_LEN, push_record, take_record,
};

/// One thing to write down. Records of one batch are read back all or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A session comes into being.
    Session {
        /// The store's number for it, never used twice.
        session: u64,
        /// Its id.
        id: String,
        /// How many of its first events were inherited from another session.
        inherited: u64,
        /// Its header as JSON.
        header: Buffer,
    },
    /// Events with consecutive sequence numbers.
    Events {
        /// The session's number.
        session: u64,
        /// Sequence number of the first.
        first_seq: u64,
        /// Each event as JSON.
        events: Vec<Buffer>,
    },
    /// A part of the stream of a model attempt. The first part of another attempt replaces all parts
    /// of the one before.
    Tail {
        /// The session's number.
        session: u64,
        /// Which attempt.
        attempt: u64,
        /// Counts up with each part of the session, over all attempts, so that a part that was sent
        /// twice is known.
        serial: u32,
        /// Bytes that mean nothing to the journal.
        part: Buffer,
    },
    /// A small value; the last one written for a key counts.
    Kv {
        /// The key.
        key: Buffer,
        /// Its value, or `None` if the key is removed.
        value: Option<Buffer>,
    },
    /// A session is gone; its records mean nothing from here on.
    Tombstone {
        /// The session's number.
        session: u64,
    },
}

impl Record {
    /// How many bytes the record takes in a batch, near enough to bound one.
    #[must_use]
    pub fn size(&self) -> usize {
        RECORD_HEADER_LEN
            + 24
            + match self {
                Self::Session { id, header, .. } => id.len() + header.len(),
                Self::Events { events, .. } => events.iter().map(|event| event.len() + 4).sum(),
                Self::Tail { part, .. } => part.len(),
                Self::Kv { key, value } => key.len() + value.as_ref().map_or(0, Buffer::len),
                Self::Tombstone { .. } => 0,
            }
    }

    /// How long the record is that removes a key, frame included.
    #[must_use]
    pub fn removal_len(key: &[u8]) -> usize {
        RECORD_HEADER_LEN + 1 + 4 + key.len()
    }

    fn push(&self, body: &mut Vec<u8>, checksum: Checksum) {
        match self {
            Self::Session { session, id, inherited, header } => {
                let parts: [&[u8]; 5] = [
                    &session.to_le_bytes(),
                    &inherited.to_le_bytes(),
                    &length(id.len()),
                    id.as_bytes(),
                    header,
                ];
                push_record(body, Kind::Session as u8, &parts, checksum);
            }
            Self::Events { session, first_seq, events } => {
                let (number, first) = (session.to_le_bytes(), first_seq.to_le_bytes());
                let count = length(events.len());
                let lengths: Vec<[u8; 4]> = events.iter().map(|e| length(e.len())).collect();
                let mut parts: Vec<&[u8]> = vec![&number, &first, &count];
                for (event, length) in events.iter().zip(&lengths) {
                    parts.push(length);
                    parts.push(event);
                }
                push_record(body, Kind::Events as u8, &parts, checksum);
            }
            Self::Tail { session, attempt, serial, part } => {
                let parts: [&[u8]; 4] =
                    [&session.to_le_bytes(), &attempt.to_le_bytes(), &serial.to_le_bytes(), part];
                push_record(body, Kind::Tail as u8, &parts, checksum);
            }
            Self::Kv { key, value } => {
                let flag = [u8::from(value.is_some())];
                let value: &[u8] = value.as_deref().unwrap_or_default();
                let parts: [&[u8]; 4] = [&flag, &length(key.len()), key, value];
                push_record(body, Kind::Kv as u8, &parts, checksum);
            }
            Self::Tombstone { session } => {
                let number = session.to_le_bytes();
                push_record(body, Kind::Tombstone as u8, &[&number], checksum);
            }
        }
    }

    /// The record of a kind and a payload. `None` if the payload does not have the kind's shape.
    #[must_use]
    pub fn decode(kind: Kind, payload: &Buffer) -> Option<Self> {
        let mut from = Bytes(payload);
        let rest = |from: &Bytes<'_>| payload.slice_ref(from.0);
        Some(match kind {
            Kind::Trail => return None,
            Kind::Session => {
                let (session, inherited) = (from.u64()?, from.u64()?);
                let id_length = usize::try_from(from.u32()?).ok()?;
                let id = std::str::from_utf8(from.take(id_length)?).ok()?.to_owned();
                Self::Session { session, id, inherited, header: rest(&from) }
            }
            Kind::Events => {
                let (session, first_seq, count) = (from.u64()?, from.u64()?, from.u32()?);
                let mut events = Vec::new();
                for _ in 0..count {
                    let length = usize::try_from(from.u32()?).ok()?;
                    events.push(payload.slice_ref(from.take(length)?));
                }
                if !from.0.is_empty() || first_seq.checked_add(u64::from(count)).is_none() {
                    return None;
                }
                Self::Events { session, first_seq, events }
            }
            Kind::Tail => {
                let (session, attempt, serial) = (from.u64()?, from.u64()?, from.u32()?);
                Self::Tail { session, attempt, serial, part: rest(&from) }
            }
            Kind::Kv => {
                let has_value = from.u8()? != 0;
                let key_length = usize::try_from(from.u32()?).ok()?;
                let key = payload.slice_ref(from.take(key_length)?);
                Self::Kv { key, value: has_value.then(|| rest(&from)) }
            }
            Kind::Tombstone => {
                let session = from.u64()?;
                from.0.is_empty().then_some(Self::Tombstone { session })?
            }
        })
    }
}

fn length(bytes: usize) -> [u8; 4] {
    // Longer ones make the batch too large, which is refused before anything is written.
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}

/// The body of a batch, and an entry for each record with its offset counted from the batch's start.
#[must_use]
pub fn encode_body(
    trail: &[Entry],
    records: &[Record],
    checksum: Checksum,
) -> (Vec<u8>, Vec<Entry>) {
    let mut body = Vec::with_capacity(records.iter().map(Record::size).sum::<usize>() + 64);
    let mut payload = Vec::with_capacity(trail.len() * 40);
    for entry in trail {
        entry.encode(&mut payload);
    }
    push_record(&mut body, Kind::Trail as u8, &[&payload], checksum);
    let entries = records
        .iter()
        .map(|record| {
            let at = body.len();
            record.push(&mut body, checksum);
            let length = u32::try_from(body.len() - at).unwrap_or(u32::MAX);
            entry_of(record, (BATCH_HEADER_LEN + at) as u64, length)
        })
        .collect();
    (body, entries)
}

/// Records with their entries.
pub type Records = Vec<(Entry, Record)>;

/// What a body holds: the trail, and each record with its entry (offsets counted from the batch's
/// start). `None` if it does not have the shape of a body.
#[must_use]
pub fn decode_body(body: &Buffer, checksum: Checksum) -> Option<(Vec<Entry>, Records)> {
    let mut from = Bytes(body);
    let (kind, payload) = take_record(&mut from, checksum)?;
    if kind != Kind::Trail as u8 {
        return None;
    }
    let mut trail = Vec::new();
    let mut rest = Bytes(payload);
    while !rest.0.is_empty() {
        trail.push(Entry::decode(&mut rest)?);
    }
    let mut records = Vec::new();
    while !from.0.is_empty() {
        let at = body.len() - from.0.len();
        let (kind, payload) = take_record(&mut from, checksum)?;
        let record = Record::decode(Kind::from_byte(kind)?, &body.slice_ref(payload))?;
        let length = u32::try_from(payload.len() + RECORD_HEADER_LEN).ok()?;
        records.push((entry_of(&record, (BATCH_HEADER_LEN + at) as u64, length), record));
    }
    Some((trail, records))
}

fn entry_of(record: &Record, offset: u64, length: u32) -> Entry {
    let (kind, session, first_seq, count, key) = match record {
        Record::Session { session, id, inherited, .. } => {
            (Kind::Session, *session, *inherited, 0, id.as_bytes().to_vec())
        }
        Record::Events { session, first_seq, events } => {
            let count = u32::try_from(events.len()).unwrap_or(u32::MAX);
            (Kind::Events, *session, *first_seq, count, Vec::new())
        }
        Record::Tail { session, attempt, serial, .. } => {
            (Kind::Tail, *session, *attempt, *serial, Vec::new())
        }
        Record::Kv { key, .. } => (Kind::Kv, 0, 0, 0, key.to_vec()),
        Record::Tombstone { session } => (Kind::Tombstone, *session, 0, 0, Vec::new()),
    };
    Entry { kind, session, first_seq, count, offset, length, key }
}
