//! What the store knows: the ledger, the index and the journal's files, for readers and the thread
//! that writes.
//!
//! The **ledger** maps what the index does not hold yet; a lookup merges the two. When the index
//! fails, the ledger is filled from the journal and the store goes on without an index.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use playhouse_messages::{event::Seq, header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{Revision, SessionStat, StoreError, StoredSession, StoredTail};

use super::claim::{Claim, Stored};
use super::failure::{store_error, store_error_of};
use super::listing::stat_of_claim;
use crate::index::{Covered, Index, IndexError};
use crate::journal::{
    Damage, Depth, Disk, JournalConfig, JournalError, Map, Place, Reader, Record, SessionMap,
    StoreId, Writer, recover,
};

/// How long is waited for a thread that still has the writer when a store is abandoned.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// What is known beside the index.
#[derive(Default)]
pub(crate) struct Ledger {
    /// What the index does not hold; all, if there is no index.
    pub(crate) recent: Arc<Map>,
    /// How many records were written since it was folded into the index.
    pub(crate) fresh: usize,
    pub(crate) claims: HashMap<SessionId, Arc<Claim>>,
    pub(crate) last_session: u64,
    pub(crate) index: Option<Arc<Index>>,
    /// Counts how often `recent` was folded into the index, so that a reader sees that it has
    /// looked at the two at different times.
    pub(crate) folds: u64,
    pub(crate) damages: Vec<Damage>,
}

/// Where the writer is while no thread has it.
pub(crate) enum Slot {
    Free(Box<Writer>),
    Taken,
    /// The thread that had it panicked.
    Lost,
    Closed,
}

pub(crate) struct Core {
    pub(crate) dir: PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) store: StoreId,
    pub(crate) config: JournalConfig,
    reader: Reader,
    ledger: Mutex<Ledger>,
    slot: Mutex<Slot>,
    slot_changed: Condvar,
}

impl Core {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        dir: &Path,
        config: JournalConfig,
        writer: Writer,
        ledger: Ledger,
    ) -> Self {
        let store = writer.store();
        let slot = Mutex::new(Slot::Free(Box::new(writer)));
        Self { config, slot, ..Self::reading(disk, dir, &store, ledger) }
    }

    /// A core that cannot write.
    pub(crate) fn reading(
        disk: Arc<dyn Disk>,
        dir: &Path,
        store: &StoreId,
        ledger: Ledger,
    ) -> Self {
        Self {
            dir: dir.to_path_buf(),
            reader: Reader::new(Arc::clone(&disk), dir, store),
            disk,
            store: *store,
            config: JournalConfig::default(),
            ledger: Mutex::new(ledger),
            slot: Mutex::new(Slot::Closed),
            slot_changed: Condvar::new(),
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Every change is one call on a map; a panic between two leaves records unlisted at worst,
        // and the thread that panicked has lost the writer, which fills the ledger anew.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the writer and takes it; opens a new one if the last holder panicked.
    pub(crate) fn take_writer(&self) -> Result<Box<Writer>, StoreError> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Free(writer) => return Ok(writer),
                Slot::Taken => {
                    slot = self.slot_changed.wait(slot).unwrap_or_else(PoisonError::into_inner);
                }
                Slot::Closed => {
                    *slot = Slot::Closed;
                    return Err(StoreError::Closed);
                }
                Slot::Lost => {
                    let opened = self.reopen();
                    if opened.is_err() {
                        *slot = Slot::Lost;
                    }
                    return opened.map(Box::new);
                }
            }
        }
    }

    pub(crate) fn put_writer(&self, state: Slot) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.slot_changed.notify_all();
    }

    /// Lets go of the files when there is no committer to do it in its turn. The thread of the last one
    /// may be at its last write; one that hangs there keeps them.
    pub(crate) fn abandon(&self) {
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = |slot: &mut Slot| matches!(slot, Slot::Taken);
        let waited = self.slot_changed.wait_timeout_while(slot, LAST_WRITE, is_taken);
        let (mut slot, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !matches!(*slot, Slot::Taken) {
            *slot = Slot::Closed;
            self.slot_changed.notify_all();
            drop(slot);
            self.ledger().index = None;
        }
    }

    fn reopen(&self) -> Result<Writer, StoreError> {
        let fail = |error| store_error(&self.dir, error);
        let disk = Arc::clone(&self.disk);
        let mut writer =
            Writer::open(disk, &self.dir, self.store, self.config.clone()).map_err(fail)?;
        let found = writer.resume(Depth::Footers).map_err(fail)?;
        let mut ledger = self.ledger();
        ledger.index = None;
        ledger.last_session = ledger.last_session.max(found.map.last_session);
        ledger.damages = found.damages;
        for claim in ledger.claims.values() {
            let mut stored = claim.stored();
            // The thread may have died between the write that stored the session and this note.
            let number = found.map.ids.get(claim.id.as_str()).filter(|_| !claim.placeholder);
            stored.number = stored.number.or(number.copied());
            if let Some(session) = stored.number.and_then(|number| found.map.sessions.get(&number))
            {
                stored.next_seq = session.next_seq;
                stored.tail_serial = session.tail.as_ref().map_or(0, |tail| tail.serial);
            }
        }
        ledger.recent = Arc::new(found.map);
        ledger.folds += 1;
        Ok(writer)
    }

    /// Goes on without the index: the ledger gets everything, from the journal.
    fn lose_index(&self, error: &IndexError) -> Result<(), StoreError> {
        let mut ledger = self.ledger();
        if ledger.index.take().is_none() {
            return Ok(());
        }
        tracing::error!(dir = %self.dir.display(), %error, "the store goes on without its index");
        let found = recover(self.disk.as_ref(), &self.dir, &self.store, Depth::Footers)
            .map_err(|error| store_error(&self.dir, error))?;
        ledger.recent = Arc::new(found.map);
        ledger.folds += 1;
        Ok(())
    }

    /// Asks the index and the ledger as of one moment.
    pub(super) fn consult<T>(
        &self,
        ask: impl Fn(&Index) -> Result<T, IndexError>,
        merge: impl Fn(&Ledger, Option<T>) -> T,
    ) -> Result<T, StoreError> {
        loop {
            let (folds, index) = {
                let ledger = self.ledger();
                match &ledger.index {
                    None => return Ok(merge(&ledger, None)),
                    Some(index) => (ledger.folds, Arc::clone(index)),
                }
            };
            match ask(&index) {
                Ok(answer) => {
                    let ledger = self.ledger();
                    if ledger.folds == folds {
                        return Ok(merge(&ledger, Some(answer)));
                    }
                }
                Err(error) => self.lose_index(&error)?,
            }
        }
    }

    /// The number of a stored session.
    pub(crate) fn find(&self, id: &SessionId) -> Result<Option<u64>, StoreError> {
        self.consult(
            |index| index.find(id.as_str()),
            |ledger, indexed| {
                let recent = ledger.recent.ids.get(id.as_str()).copied();
                recent.or(indexed.flatten().filter(|n| !ledger.recent.deleted.contains(n)))
            },
        )
    }

    /// What is known of a session, its blocks included.
    pub(crate) fn session(&self, number: u64) -> Result<Option<SessionMap>, StoreError> {
        self.consult(
            |index| index.session(number),
            |ledger, indexed| {
                if ledger.recent.deleted.contains(&number) {
                    return None;
                }
                let indexed = indexed.flatten();
                match ledger.recent.sessions.get(&number) {
                    None => indexed,
                    Some(recent) => {
                        let mut whole = recent.clone();
                        let mut blocks = indexed.map(|session| session.blocks).unwrap_or_default();
                        blocks.extend(recent.blocks.iter().copied());
                        whole.blocks = blocks;
                        Some(whole)
                    }
                }
            },
        )
    }

    /// Makes sure that the ledger counts on from what the index knows of a session.
    pub(crate) fn stub(&self, number: u64) -> Result<(), StoreError> {
        if self.ledger().recent.sessions.contains_key(&number) {
            return Ok(());
        }
        let head = self.consult(
            |index| index.head(number),
            |ledger, indexed| {
                indexed.flatten().filter(|_| !ledger.recent.deleted.contains(&number))
            },
        )?;
        if let Some(head) = head {
            let mut ledger = self.ledger();
            Arc::make_mut(&mut ledger.recent).sessions.entry(number).or_insert(head);
        }
        Ok(())
    }

    /// Those events of `range` that a session has.
    pub(crate) fn events(
        &self,
        id: &SessionId,
        number: u64,
        range: Range<Seq>,
    ) -> Result<Vec<Bytes>, StoreError> {
        let Some(session) = self.session(number)? else {
            return Ok(Vec::new());
        };
        let events = self.reader.events(number, &session, range);
        events.map_err(|error| store_error_of(&self.dir, id, error))
    }

    /// A session's header, checked.
    pub(crate) fn header(
        &self,
        id: &SessionId,
        number: u64,
        session: &SessionMap,
    ) -> Result<(Arc<SessionHeader>, u64), StoreError> {
        if let Some(damage) = &session.damage {
            let error = JournalError::Corrupt(Box::new(damage.clone()));
            return Err(store_error_of(&self.dir, id, error));
        }
        self.own_record(id, number, session)
    }

    /// A session's header as its own record has it, whatever else of the session is damaged.
    fn own_record(
        &self,
        id: &SessionId,
        number: u64,
        session: &SessionMap,
    ) -> Result<(Arc<SessionHeader>, u64), StoreError> {
        let fail = |error| store_error_of(&self.dir, id, error);
        let corrupt = |cause: String| StoreError::Corrupt {
            id: id.clone(),
            place: session.place.map_or_else(
                || "its header".to_owned(),
                |place| format!("segment {} offset {}", place.segment, place.offset),
            ),
            cause,
        };
        let place = session.place.ok_or_else(|| corrupt("its own record is missing".to_owned()))?;
        let (_, json, inherited) = self.reader.session(number, place).map_err(fail)?;
        let header = parse_header(id, &json).map_err(|refused| refused.unwrap_or_else(corrupt))?;
        if header.id != *id {
            return Err(corrupt(format!("its header says that it is session `{}`", header.id)));
        }
        Ok((Arc::new(header), inherited))
    }

    /// Header, inherited count and the first events of a session that cannot be read whole.
    #[expect(
        clippy::type_complexity,
        reason = "the parts of a stored session, taken apart at once"
    )]
    pub(crate) fn prefix(
        &self,
        id: &SessionId,
    ) -> Result<Option<(Arc<SessionHeader>, u64, Vec<Bytes>)>, StoreError> {
        let Some(number) = self.find(id)? else { return Ok(None) };
        let Some(session) = self.session(number)? else { return Ok(None) };
        let (header, inherited) = self.own_record(id, number, &session)?;
        Ok(Some((header, inherited, self.reader.prefix(number, &session))))
    }

    fn not_found(&self, id: &SessionId) -> StoreError {
        StoreError::NotFound { id: id.clone(), store: self.describe() }
    }

    pub(crate) fn describe(&self) -> String {
        format!("the journal at {}", self.dir.display())
    }

    /// Reads a stored or claimed session.
    pub(crate) fn read(&self, id: &SessionId) -> Result<(StoredSession, Stored), StoreError> {
        let Some(number) = self.find(id)? else {
            let claim = self.ledger().claims.get(id).filter(|claim| !claim.placeholder).cloned();
            let claim = claim.ok_or_else(|| self.not_found(id))?;
            let stored = StoredSession {
                header: Arc::clone(&claim.header),
                inherited_event_count: claim.inherited,
                events: Vec::new(),
                tail: None,
            };
            return Ok((stored, Stored::default()));
        };
        let session = self.session(number)?.ok_or_else(|| self.not_found(id))?;
        let fail = |error| store_error_of(&self.dir, id, error);
        let (header, inherited_event_count) = self.header(id, number, &session)?;
        let events = self.reader.events(number, &session, 0..Seq::MAX).map_err(fail)?;
        let tail = match &session.tail {
            None => None,
            Some(tail) => Some(StoredTail {
                attempt: tail.attempt,
                parts: self.reader.tail(number, tail).map_err(fail)?,
            }),
        };
        let next_seq = events.len() as u64;
        let tail_serial = session.tail.as_ref().map_or(0, |tail| tail.serial);
        let stored = StoredSession { header, inherited_event_count, events, tail };
        Ok((stored, Stored { number: Some(number), next_seq, tail_serial }))
    }

    /// Those events of `range` that are stored: only the blocks that hold them are read.
    pub(crate) fn read_events(
        &self,
        id: &SessionId,
        range: Range<Seq>,
    ) -> Result<Vec<Bytes>, StoreError> {
        match self.find(id)? {
            Some(number) => self.events(id, number, range),
            None if self.stat(id)?.is_some() => Ok(Vec::new()),
            None => Err(self.not_found(id)),
        }
    }

    /// What the catalog says of a session.
    pub(crate) fn stat(&self, id: &SessionId) -> Result<Option<SessionStat>, StoreError> {
        if let Some(number) = self.find(id)? {
            let Some(session) = self.session(number)? else { return Ok(None) };
            return self.stat_of(id, number, &session).map(Some);
        }
        let ledger = self.ledger();
        let claim = ledger.claims.get(id).filter(|claim| !claim.placeholder);
        Ok(claim.map(|claim| stat_of_claim(claim)))
    }

    pub(super) fn stat_of(
        &self,
        id: &SessionId,
        number: u64,
        session: &SessionMap,
    ) -> Result<SessionStat, StoreError> {
        let (header, _) = self.header(id, number, session)?;
        let SessionMap { next_seq, size_bytes, .. } = *session;
        let revision = Revision::new(number, next_seq);
        Ok(SessionStat { header, event_count: next_seq, size_bytes, revision })
    }

    /// A small value.
    pub(crate) fn value(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let fail = |error| store_error(&self.dir, error);
        if let Some(damage) = self.ledger().recent.damaged_keys.get(key) {
            return Err(fail(JournalError::Corrupt(Box::new(damage.clone()))));
        }
        let place = self.consult(
            |index| index.value(key),
            |ledger, indexed| ledger.recent.kv.get(key).copied().or(indexed.flatten()),
        )?;
        match place {
            None => Ok(None),
            Some(place) => match self.reader.record(place, 0).map_err(fail)? {
                Record::Kv { value, .. } => Ok(value),
                _ => Ok(None),
            },
        }
    }

    /// Whether a key's last record gives it a value, and does not remove it. Only an empty value is
    /// as short as a removal, so nothing large is read.
    pub(super) fn has_value(&self, key: &[u8], place: Place) -> Result<bool, StoreError> {
        if place.length as usize > Record::removal_len(key) {
            return Ok(true);
        }
        let record = self.reader.record(place, 0);
        let record = record.map_err(|error| store_error(&self.dir, error))?;
        Ok(matches!(record, Record::Kv { value: Some(_), .. }))
    }

    /// Puts what the ledger knows into the index, and empties the ledger.
    pub(crate) fn fold(&self, writer: &Writer, clean: bool) -> Result<(), StoreError> {
        let (recent, index, covered) = {
            let ledger = self.ledger();
            let Some(index) = &ledger.index else { return Ok(()) };
            let covered = Covered {
                store: self.store,
                next_batch: writer.next_batch(),
                next_segment: writer.next_segment(),
                last_session: ledger.last_session,
                clean,
            };
            (Arc::clone(&ledger.recent), Arc::clone(index), covered)
        };
        // The thread that writes the journal is the only one that changes the ledger's map, and it
        // is the one that waits here.
        let added = index.add(&recent, &covered);
        drop(recent);
        if let Err(error) = added {
            return self.lose_index(&error);
        }
        let mut ledger = self.ledger();
        ledger.recent = Map { last_session: ledger.last_session, ..Map::default() }.into();
        ledger.fresh = 0;
        ledger.folds += 1;
        Ok(())
    }
}

/// A stored header. The version comes first: a header of another shape still says "upgrade". The
/// error is a refusal, or words for what is damaged.
pub(crate) fn parse_header(
    id: &SessionId,
    json: &[u8],
) -> Result<SessionHeader, Result<StoreError, String>> {
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    let refuse = |cause: String| {
        Ok(StoreError::FormatUnsupported { what: format!("session `{id}`"), cause })
    };
    let version: Version =
        serde_json::from_slice(json).map_err(|error| Err(format!("its header: {error}")))?;
    let known = playhouse_messages::header::FORMAT_VERSION;
    if version.version != known {
        let probe = SessionHeader { version: version.version, ..SessionHeader::new(id.clone(), 0) };
        let cause = probe.check().err().map_or_else(String::new, |error| error.to_string());
        return Err(refuse(cause));
    }
    let header: SessionHeader =
        serde_json::from_slice(json).map_err(|error| Err(format!("its header: {error}")))?;
    header.check().map_err(|error| Err(error.to_string()))?;
    Ok(header)
}
