//! Keys and values of the index's one tree. All are small: sled puts large ones into files that it
//! does not sync.

use crate::journal::{Block, Place, SessionMap, TailMap};

/// A row's key. The first byte says the kind, so that each kind is one range.
pub enum Key<'a> {
    Covered,
    Id(&'a [u8]),
    Session(u64),
    Kv(&'a [u8]),
    Deleted(u64),
}

const COVERED: u8 = 0;
const ID: u8 = 1;
const SESSION: u8 = 2;
const BLOCK: u8 = 3;
const KV: u8 = 4;
const DELETED: u8 = 5;
const TAIL: u8 = 6;

impl Key<'_> {
    pub fn encode(&self) -> Vec<u8> {
        let tagged = |tag: u8, bytes: &[u8]| [&[tag], bytes].concat();
        match self {
            Self::Covered => vec![COVERED],
            Self::Id(id) => tagged(ID, id),
            Self::Session(number) => tagged(SESSION, &number.to_be_bytes()),
            Self::Kv(key) => tagged(KV, key),
            Self::Deleted(number) => tagged(DELETED, &number.to_be_bytes()),
        }
    }
}

/// The first key behind all ids.
pub fn after_ids() -> Vec<u8> {
    vec![ID + 1]
}

/// The first key behind those of values.
pub fn after_kv() -> Vec<u8> {
    vec![KV + 1]
}

/// What all block keys start with.
pub fn all_blocks() -> Vec<u8> {
    vec![BLOCK]
}

/// What the block keys of one session start with.
pub fn blocks_of(number: u64) -> Vec<u8> {
    [&[BLOCK][..], &number.to_be_bytes()].concat()
}

/// The row of a block. Its key keeps the blocks of a session in journal order.
pub fn block_row(number: u64, block: &Block) -> (Vec<u8>, Vec<u8>) {
    let mut key = blocks_of(number);
    key.extend_from_slice(&block.place.segment.to_be_bytes());
    key.extend_from_slice(&block.place.offset.to_be_bytes());
    let mut value = Vec::with_capacity(16);
    value.extend_from_slice(&block.first_seq.to_be_bytes());
    value.extend_from_slice(&block.count.to_be_bytes());
    value.extend_from_slice(&block.place.length.to_be_bytes());
    (key, value)
}

/// What the tail keys of one session start with.
pub fn tail_of(number: u64) -> Vec<u8> {
    [&[TAIL][..], &number.to_be_bytes()].concat()
}

/// The row of a part of a tail.
pub fn tail_row(number: u64, attempt: u64, serial: u32, place: Place) -> (Vec<u8>, Vec<u8>) {
    let mut key = tail_of(number);
    key.extend_from_slice(&serial.to_be_bytes());
    (key, [&place_bytes(place)[..], &attempt.to_be_bytes()].concat())
}

/// Attempt, serial and place of a part.
pub fn tail_part(key: &[u8], value: &[u8]) -> Option<(u64, u32, Place)> {
    Some((u64_at(value, 20)?, u32_at(key, 9)?, place(value)?))
}

pub fn session_of(key: &[u8]) -> Option<u64> {
    u64_at(key, 1)
}

pub fn block(key: &[u8], value: &[u8]) -> Option<Block> {
    Some(Block {
        first_seq: u64_at(value, 0)?,
        count: u32_at(value, 8)?,
        place: Place {
            segment: u64_at(key, 9)?,
            offset: u64_at(key, 17)?,
            length: u32_at(value, 12)?,
        },
    })
}

pub fn place_bytes(place: Place) -> [u8; 20] {
    let mut out = [0; 20];
    out[..8].copy_from_slice(&place.segment.to_be_bytes());
    out[8..16].copy_from_slice(&place.offset.to_be_bytes());
    out[16..].copy_from_slice(&place.length.to_be_bytes());
    out
}

pub fn place(bytes: &[u8]) -> Option<Place> {
    Some(Place {
        segment: u64_at(bytes, 0)?,
        offset: u64_at(bytes, 8)?,
        length: u32_at(bytes, 16)?,
    })
}

pub fn number(bytes: &[u8]) -> Option<u64> {
    u64_at(bytes, 0)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

/// What the index keeps of a session beside its blocks.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct SessionValue {
    id: String,
    place: Option<[u8; 20]>,
    inherited: u64,
    next_seq: u64,
    size_bytes: u64,
    /// Attempt and last serial; the parts have rows of their own.
    tail: Option<(u64, u32)>,
}

impl SessionValue {
    pub fn of(session: &SessionMap) -> Self {
        Self {
            id: session.id.clone(),
            place: session.place.map(place_bytes),
            inherited: session.inherited,
            next_seq: session.next_seq,
            size_bytes: session.size_bytes,
            tail: session.tail.as_ref().map(|tail| (tail.attempt, tail.serial)),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        // Strings, numbers and byte arrays: this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    pub fn into_map(self) -> SessionMap {
        SessionMap {
            id: self.id,
            place: self.place.and_then(|bytes| place(&bytes)),
            inherited: self.inherited,
            next_seq: self.next_seq,
            size_bytes: self.size_bytes,
            tail: self.tail.map(|(attempt, serial)| TailMap { attempt, serial, parts: Vec::new() }),
            ..SessionMap::default()
        }
    }
}
