//! Reading records back from the places that a map names.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes as Buffer;

use super::disk::{Disk, DiskFile};
use super::entry::Kind;
use super::error::{Damage, DamageKind, JournalError};
use super::format::{Bytes, Checksum, StoreId, take_record};
use super::map::{Block, Place, SessionMap, TailMap};
use super::record::Record;
use super::segments::segment_path;

/// Reads records. Takes no lock; every call blocks.
#[derive(Clone)]
pub struct Reader {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    checksum: Checksum,
}

/// The segments that one call has opened.
type Opened = HashMap<u64, Box<dyn DiskFile>>;

impl Reader {
    /// A reader of the store in `dir`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: &Path, store: &StoreId) -> Self {
        Self { disk, dir: dir.to_path_buf(), checksum: Checksum::of_store(store) }
    }

    /// The record at a place.
    ///
    /// # Errors
    ///
    /// `Corrupt` if it is not there or its checksum does not hold; I/O errors.
    pub fn record(&self, place: Place, session: u64) -> Result<Record, JournalError> {
        self.record_with(&mut Opened::new(), place, session)
    }

    fn record_with(
        &self,
        opened: &mut Opened,
        place: Place,
        session: u64,
    ) -> Result<Record, JournalError> {
        let path = segment_path(&self.dir, place.segment);
        let file = match opened.entry(place.segment) {
            std::collections::hash_map::Entry::Occupied(file) => file.into_mut(),
            std::collections::hash_map::Entry::Vacant(vacant) => {
                let file = self.disk.open(&path);
                vacant.insert(file.map_err(|error| JournalError::io("open", &path, error))?)
            }
        };
        let mut bytes = vec![0; place.length as usize];
        match file.read_at(&mut bytes, place.offset) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(damaged(DamageKind::MissingBatches, place, session));
            }
            Err(error) => return Err(JournalError::io("read", path, error)),
        }
        let bytes = Buffer::from(bytes);
        let mut from = Bytes(&bytes);
        let taken = take_record(&mut from, self.checksum)
            .ok_or_else(|| damaged(DamageKind::BadBatch, place, session))?;
        Kind::from_byte(taken.0)
            .and_then(|kind| Record::decode(kind, &bytes.slice_ref(taken.1)))
            .ok_or_else(|| damaged(DamageKind::BadRecord, place, session))
    }

    /// A session's id, header and inherited count, from its own record.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the place holds something else; I/O errors.
    pub fn session(
        &self,
        number: u64,
        place: Place,
    ) -> Result<(String, Buffer, u64), JournalError> {
        match self.record(place, number)? {
            Record::Session { session, id, inherited, header } if session == number => {
                Ok((id, header, inherited))
            }
            _ => Err(damaged(DamageKind::BadRecord, place, number)),
        }
    }

    /// The parts of a session's tail, in order.
    ///
    /// # Errors
    ///
    /// `Corrupt` if one is not there; I/O errors.
    pub fn tail(&self, number: u64, tail: &TailMap) -> Result<Vec<Buffer>, JournalError> {
        let mut opened = Opened::new();
        let read =
            |&(serial, place): &(u32, Place)| match self.record_with(&mut opened, place, number)? {
                Record::Tail { session, attempt, serial: found, part }
                    if (session, attempt, found) == (number, tail.attempt, serial) =>
                {
                    Ok(part)
                }
                _ => Err(damaged(DamageKind::BadRecord, place, number)),
            };
        tail.parts.iter().map(read).collect()
    }

    /// Those events of `range` that a session has, each as JSON. Reads only the records that hold them.
    ///
    /// # Errors
    ///
    /// `Corrupt` if one is missing, or comes twice and differs; I/O errors.
    pub fn events(
        &self,
        number: u64,
        session: &SessionMap,
        range: Range<u64>,
    ) -> Result<Vec<Buffer>, JournalError> {
        if let Some(damage) = &session.damage {
            return Err(JournalError::Corrupt(Box::new(damage.clone())));
        }
        self.events_of(number, &session.blocks, range)
    }

    /// As [`Reader::events`], from the blocks alone.
    ///
    /// # Errors
    ///
    /// As [`Reader::events`].
    pub fn events_of(
        &self,
        number: u64,
        blocks: &[Block],
        range: Range<u64>,
    ) -> Result<Vec<Buffer>, JournalError> {
        let mut out = Vec::new();
        self.gather(number, blocks, range, &mut out).map(|()| out)
    }

    /// The events of a damaged session up to the first that is missing or in doubt.
    #[must_use]
    pub fn prefix(&self, number: u64, session: &SessionMap) -> Vec<Buffer> {
        let mut out = Vec::new();
        // Why it ends there is the session's damage.
        let _ = self.gather(number, &session.blocks, 0..u64::MAX, &mut out);
        let sound = session.doubtful_from.and_then(|from| usize::try_from(from).ok());
        out.truncate(sound.unwrap_or(usize::MAX));
        out
    }

    fn gather(
        &self,
        number: u64,
        blocks: &[Block],
        range: Range<u64>,
        out: &mut Vec<Buffer>,
    ) -> Result<(), JournalError> {
        let mut opened = Opened::new();
        let mut next = range.start;
        let holds = |block: &&Block| block.end_seq() > range.start && block.first_seq < range.end;
        for block in blocks.iter().filter(holds) {
            if block.first_seq > next {
                return Err(damaged(DamageKind::EventGap, block.place, number));
            }
            let record = self.record_with(&mut opened, block.place, number)?;
            let Record::Events { session, first_seq, events } = record else {
                return Err(damaged(DamageKind::BadRecord, block.place, number));
            };
            if session != number
                || first_seq != block.first_seq
                || events.len() != block.count as usize
            {
                return Err(damaged(DamageKind::BadRecord, block.place, number));
            }
            for (seq, event) in (first_seq..).zip(events) {
                if !range.contains(&seq) {
                    continue;
                }
                if seq == next {
                    out.push(event);
                    next += 1;
                } else {
                    // Sent again after a restart of the committer: equal is legal.
                    let before = usize::try_from(seq - range.start).ok().and_then(|at| out.get(at));
                    if before != Some(&event) {
                        // Nobody can say which of the two it was.
                        out.truncate(usize::try_from(seq - range.start).unwrap_or(0));
                        return Err(damaged(DamageKind::DifferingEvent, block.place, number));
                    }
                }
            }
        }
        Ok(())
    }
}

fn damaged(kind: DamageKind, place: Place, session: u64) -> JournalError {
    JournalError::Corrupt(Box::new(Damage {
        segment: place.segment,
        offset: place.offset,
        kind,
        missing: 0..0,
        sessions: if session == 0 { Vec::new() } else { vec![session] },
        keys: Vec::new(),
        known: true,
    }))
}
