//! A map of the journal: which sessions there are, and where each one's records stand.
//!
//! It is built from entries in journal order, whether they come from footers, from a scan or from
//! batches that were just written.

use std::collections::{BTreeMap, HashMap};

use super::entry::{Entry, Kind};
use super::error::{Damage, DamageKind};
use super::format::RECORD_HEADER_LEN;

/// Where one record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The segment's number.
    pub segment: u64,
    /// Offset of the record's frame, in bytes.
    pub offset: u64,
    /// Length of frame and payload, in bytes.
    pub length: u32,
}

/// A run of events of one session, in one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Sequence number of the first event.
    pub first_seq: u64,
    /// How many events.
    pub count: u32,
    /// Where.
    pub place: Place,
}

impl Block {
    /// Sequence number behind the last event.
    #[must_use]
    pub fn end_seq(&self) -> u64 {
        self.first_seq.saturating_add(u64::from(self.count))
    }

    /// Bytes of the events alone, without frame and lengths.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        let around = RECORD_HEADER_LEN as u64 + 20 + 4 * u64::from(self.count);
        u64::from(self.place.length).saturating_sub(around)
    }
}

/// Where the parts of an attempt's stream stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TailMap {
    /// The attempt.
    pub attempt: u64,
    /// The serial of the last part.
    pub serial: u32,
    /// The parts' serials and places, in order.
    pub parts: Vec<(u32, Place)>,
}

impl TailMap {
    fn add(&mut self, attempt: u64, serial: u32, place: Place) {
        if serial <= self.serial {
            // Sent again after a restart of the committer.
            return;
        }
        if attempt != self.attempt {
            self.parts.clear();
        }
        (self.attempt, self.serial) = (attempt, serial);
        self.parts.push((serial, place));
    }
}

/// What is known of one session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionMap {
    /// Its id; empty while its own record has not been seen.
    pub id: String,
    /// Where its own record (id and header) stands.
    pub place: Option<Place>,
    /// How many of its first events are inherited.
    pub inherited: u64,
    /// Its events in the order written. Runs may overlap where a writer sent again.
    pub blocks: Vec<Block>,
    /// Sequence number behind the last event.
    pub next_seq: u64,
    /// Payload bytes of its events; those sent again are counted again.
    pub size_bytes: u64,
    /// The stream of the last attempt that was streamed.
    pub tail: Option<TailMap>,
    /// Why it cannot be read whole, if so.
    pub damage: Option<Damage>,
    /// Events from here on may have stood at a damaged place, so that what is read of them, in
    /// whatever copy, cannot be trusted.
    pub doubtful_from: Option<u64>,
}

impl SessionMap {
    /// All but the blocks, of which there may be many.
    #[must_use]
    pub fn without_blocks(&self) -> Self {
        Self {
            id: self.id.clone(),
            place: self.place,
            inherited: self.inherited,
            blocks: Vec::new(),
            next_seq: self.next_seq,
            size_bytes: self.size_bytes,
            tail: self.tail.clone(),
            damage: self.damage.clone(),
            doubtful_from: self.doubtful_from,
        }
    }
}

/// The map. See the module's text.
#[derive(Debug, Clone, Default)]
pub struct Map {
    /// Sessions by number. Deleted ones are not in it.
    pub sessions: BTreeMap<u64, SessionMap>,
    /// Numbers of the sessions by id.
    pub ids: BTreeMap<String, u64>,
    /// Numbers of deleted sessions whose records may still stand in the journal.
    pub deleted: std::collections::BTreeSet<u64>,
    /// The last record of each key.
    pub kv: BTreeMap<Vec<u8>, Place>,
    /// Keys whose last value may be lost.
    pub damaged_keys: HashMap<Vec<u8>, Damage>,
    /// The highest session number seen.
    pub last_session: u64,
}

impl Map {
    /// Takes in the next record's entry.
    pub fn apply(&mut self, segment: u64, entry: &Entry) {
        let place = Place { segment, offset: entry.offset, length: entry.length };
        self.last_session = self.last_session.max(entry.session);
        if entry.kind != Kind::Kv && self.deleted.contains(&entry.session) {
            return;
        }
        match entry.kind {
            Kind::Trail => {}
            Kind::Session => {
                let id = String::from_utf8_lossy(&entry.key).into_owned();
                self.ids.insert(id.clone(), entry.session);
                let session = self.sessions.entry(entry.session).or_default();
                (session.id, session.place) = (id, Some(place));
                session.inherited = entry.first_seq;
            }
            Kind::Events => {
                let session = self.sessions.entry(entry.session).or_default();
                if entry.first_seq > session.next_seq && session.damage.is_none() {
                    session.damage = Some(Damage {
                        segment,
                        offset: entry.offset,
                        kind: DamageKind::EventGap,
                        missing: 0..0,
                        sessions: vec![entry.session],
                        keys: Vec::new(),
                        known: true,
                    });
                }
                let block = Block { first_seq: entry.first_seq, count: entry.count, place };
                session.next_seq = session.next_seq.max(block.end_seq());
                session.size_bytes += block.payload_bytes();
                session.blocks.push(block);
            }
            Kind::Tail => {
                let session = self.sessions.entry(entry.session).or_default();
                let tail = session.tail.get_or_insert_default();
                tail.add(entry.first_seq, entry.count, place);
            }
            Kind::Kv => {
                self.damaged_keys.remove(&entry.key);
                self.kv.insert(entry.key.clone(), place);
            }
            Kind::Tombstone => {
                self.deleted.insert(entry.session);
                if let Some(session) = self.sessions.remove(&entry.session)
                    && self.ids.get(&session.id) == Some(&entry.session)
                {
                    self.ids.remove(&session.id);
                }
            }
        }
    }

    /// Marks what a damaged place held as not whole. `lost` are entries of the damaged batches, as
    /// far as footer or trail tell them.
    pub fn apply_damage(&mut self, damage: &Damage, lost: &[Entry]) {
        for entry in lost {
            self.last_session = self.last_session.max(entry.session);
            match entry.kind {
                Kind::Kv => {
                    self.damaged_keys.insert(entry.key.clone(), damage.clone());
                }
                // A lost tombstone of a session is a session that shows again: it must not.
                _ if self.deleted.contains(&entry.session) => {}
                kind => {
                    let session = self.sessions.entry(entry.session).or_default();
                    session.damage.get_or_insert_with(|| damage.clone());
                    if kind == Kind::Session {
                        session.id = String::from_utf8_lossy(&entry.key).into_owned();
                        self.ids.insert(session.id.clone(), entry.session);
                    }
                    if kind == Kind::Events {
                        let end = entry.first_seq.saturating_add(u64::from(entry.count));
                        session.next_seq = session.next_seq.max(end);
                        let doubtful = session.doubtful_from.unwrap_or(u64::MAX);
                        session.doubtful_from = Some(doubtful.min(entry.first_seq));
                    }
                }
            }
        }
    }

    /// Moves what was said of records in `segment` at or behind `offset` to where they stand now.
    /// The records themselves are the same.
    pub fn relocate(&mut self, segment: u64, offset: u64, to_segment: u64, to_offset: u64) {
        let shift = |place: &mut Place| {
            if place.segment == segment && place.offset >= offset {
                place.segment = to_segment;
                place.offset = place.offset - offset + to_offset;
            }
        };
        for session in self.sessions.values_mut() {
            session.place.iter_mut().for_each(shift);
            let parts = session.tail.iter_mut().flat_map(|tail| &mut tail.parts);
            parts.map(|(_, place)| place).for_each(shift);
            // The records that moved are those of the last batch.
            for block in session.blocks.iter_mut().rev() {
                if block.place.segment != segment {
                    break;
                }
                shift(&mut block.place);
            }
        }
        self.kv.values_mut().for_each(shift);
    }
}
