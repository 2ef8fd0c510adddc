//! Keys and values of the index's one tree. All are small: sled puts large ones into files that it
//! does not sync.

use crate::journal::{Block, Bytes, Place, SessionMap, TailMap};

/// A row's key. The first byte says the kind, so that each kind is one range.
pub enum Key<'a> {
    Covered,
    Id(&'a [u8]),
    Session(u64),
    Kv(&'a [u8]),
    Deleted(u64),
}

/// How rows are written. An index of another layout says nothing of how far it goes, and is made
/// anew.
const LAYOUT: u8 = 2;

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
            Self::Covered => vec![COVERED, LAYOUT],
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

/// What the keys of all sessions start with.
pub fn all_sessions() -> Vec<u8> {
    vec![SESSION]
}

/// What all block keys start with.
pub fn all_blocks() -> Vec<u8> {
    vec![BLOCK]
}

/// What the block keys of one session start with.
pub fn blocks_of(number: u64) -> Vec<u8> {
    [&[BLOCK][..], &number.to_be_bytes()].concat()
}

/// The row of a block that has one. Its key keeps the blocks of a session in journal order.
fn block_row(number: u64, block: &Block) -> (Vec<u8>, Vec<u8>) {
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

/// The row of a part of a tail that has one.
fn tail_row(number: u64, attempt: u64, serial: u32, place: Place) -> (Vec<u8>, Vec<u8>) {
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

/// How many of a session's blocks stand in its own row: all of most sessions, so that such a session
/// is two rows. sled splits a page at 16 rows and remembers each page for good.
const BLOCKS_INSIDE: usize = 32;
/// How many parts of its tail do.
const PARTS_INSIDE: usize = 32;

/// The rows of a session but that of its id. `known` are the first blocks that its row has already.
pub fn session_rows(
    number: u64,
    session: &SessionMap,
    mut known: Vec<Block>,
) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let room = BLOCKS_INSIDE.saturating_sub(known.len()).min(session.blocks.len());
    let (inside, outside) = session.blocks.split_at(room);
    known.extend_from_slice(inside);
    let row = (Key::Session(number).encode(), session_value(session, &known));
    let blocks = outside.iter().map(move |block| block_row(number, block));
    let parts = session.tail.iter().flat_map(move |tail| {
        let outside = tail.parts.iter().skip(PARTS_INSIDE);
        outside.map(move |&(serial, place)| tail_row(number, tail.attempt, serial, place))
    });
    std::iter::once(row).chain(blocks).chain(parts)
}

fn session_value(session: &SessionMap, blocks: &[Block]) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + 32 * blocks.len() + session.id.len());
    for count in [session.inherited, session.next_seq, session.size_bytes] {
        out.extend_from_slice(&count.to_le_bytes());
    }
    out.push(session.place.is_some().into());
    out.extend(session.place.iter().flat_map(|&place| place_bytes(place)));
    out.push(session.tail.is_some().into());
    if let Some(tail) = &session.tail {
        out.extend_from_slice(&tail.attempt.to_le_bytes());
        out.extend_from_slice(&tail.serial.to_le_bytes());
        let parts = &tail.parts[..tail.parts.len().min(PARTS_INSIDE)];
        push_count(&mut out, parts.len());
        for (serial, place) in parts {
            out.extend_from_slice(&serial.to_le_bytes());
            out.extend_from_slice(&place_bytes(*place));
        }
    }
    push_count(&mut out, blocks.len());
    for block in blocks {
        out.extend_from_slice(&block.first_seq.to_le_bytes());
        out.extend_from_slice(&block.count.to_le_bytes());
        out.extend_from_slice(&place_bytes(block.place));
    }
    out.extend_from_slice(session.id.as_bytes());
    out
}

fn push_count(out: &mut Vec<u8>, count: usize) {
    // At most what stands inside of a row.
    out.push(u8::try_from(count).unwrap_or(u8::MAX));
}

const _: () = assert!(BLOCKS_INSIDE <= u8::MAX as usize && PARTS_INSIDE <= u8::MAX as usize);

/// What a session's own row says, with those blocks and parts that stand in it.
pub fn session(value: &[u8]) -> Option<SessionMap> {
    let mut from = Bytes(value);
    let (inherited, next_seq, size_bytes) = (from.u64()?, from.u64()?, from.u64()?);
    let place_in = |from: &mut Bytes<'_>| place(from.take(20)?);
    let own = if from.u8()? == 0 { None } else { Some(place_in(&mut from)?) };
    let mut tail = None;
    if from.u8()? != 0 {
        let (attempt, serial) = (from.u64()?, from.u32()?);
        let mut parts = Vec::new();
        for _ in 0..from.u8()? {
            parts.push((from.u32()?, place_in(&mut from)?));
        }
        tail = Some(TailMap { attempt, serial, parts });
    }
    let mut blocks = Vec::new();
    for _ in 0..from.u8()? {
        let (first_seq, count) = (from.u64()?, from.u32()?);
        blocks.push(Block { first_seq, count, place: place_in(&mut from)? });
    }
    let id = String::from_utf8(from.0.to_vec()).ok()?;
    Some(SessionMap {
        id,
        place: own,
        inherited,
        blocks,
        next_seq,
        size_bytes,
        tail,
        ..SessionMap::default()
    })
}
