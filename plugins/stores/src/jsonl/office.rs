//! The office: what a store and its session writers share. Who may write which session, and a desk for
//! each session that is being written.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures::future::join_all;
use playhouse_messages::{header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{Revision, SessionStat, StoreError, StoredSession};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::desk::Desk;
use super::session_file::SessionFile;
use super::shelf::Shelf;
use crate::journal::Held;

/// What lies on a session's desk.
pub(super) enum Slot {
    /// Nothing.
    Empty,
    /// The files of a session that has, or had, a writer.
    Open(Box<SessionFile>),
    /// Work has panicked: nobody knows how far it got. Opening the session again tells.
    Lost,
    /// The store is closed.
    Shut,
}

impl Slot {
    pub(super) fn file(&mut self) -> Result<&mut SessionFile, StoreError> {
        match self {
            Self::Open(file) => Ok(file),
            Self::Empty | Self::Shut => Err(StoreError::Closed),
            Self::Lost => Err(lost()),
        }
    }

    /// Fails once the store is closed.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if matches!(self, Self::Shut) { Err(StoreError::Closed) } else { Ok(()) }
    }

    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        match self {
            Self::Open(file) => file.sync(),
            Self::Lost => Err(lost()),
            Self::Empty | Self::Shut => Ok(()),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Open(file) => !file.is_dirty(),
            _ => true,
        }
    }
}

fn lost() -> StoreError {
    StoreError::Io {
        what: "writing a session's file".to_owned(),
        cause: "an earlier write panicked; open the session again".to_owned(),
    }
}

pub(super) type SessionDesk = Arc<Desk<Slot>>;

/// The right to write one session.
#[derive(Default)]
pub(super) struct Claim {
    /// What a writer claims of which nothing is stored yet.
    pending: Mutex<Option<(Arc<SessionHeader>, u64, Revision)>>,
}

impl Claim {
    /// From now on the session is to be seen, without anything in it.
    pub(super) fn announce(&self, header: &Arc<SessionHeader>, inherited: u64) {
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Arc::clone(header), inherited, Revision::unstored()));
    }

    /// It is stored, and its files say what there is.
    pub(super) fn settle(&self) {
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn pending(&self) -> Option<(Arc<SessionHeader>, u64, Revision)> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Place {
    desk: SessionDesk,
    claim: Option<Arc<Claim>>,
}

struct Places {
    by_id: BTreeMap<SessionId, Place>,
    closed: bool,
}

/// When the last store value, session writer and unfinished job is gone, the lock goes.
pub(super) struct Office {
    pub(super) shelf: Arc<Shelf>,
    /// Values are written one after the other.
    pub(super) values: Arc<Desk<bool>>,
    runtime: Handle,
    places: Mutex<Places>,
    /// What is known of sessions' files. Nobody else writes them, so it stays true.
    stats: Mutex<HashMap<SessionId, SessionStat>>,
    held: Mutex<Option<Box<dyn Held>>>,
    /// Told of each write that is not durable.
    written: Arc<Notify>,
    syncer: OnceLock<AbortHandle>,
}

impl Drop for Office {
    fn drop(&mut self) {
        if let Some(syncer) = self.syncer.get() {
            syncer.abort();
        }
    }
}

impl Office {
    pub(super) fn new(shelf: Shelf, held: Box<dyn Held>, window: Duration) -> Arc<Self> {
        let runtime = Handle::current();
        let office = Arc::new(Self {
            shelf: Arc::new(shelf),
            values: Desk::new(runtime.clone(), true, || true),
            runtime: runtime.clone(),
            places: Mutex::new(Places { by_id: BTreeMap::new(), closed: false }),
            stats: Mutex::default(),
            held: Mutex::new(Some(held)),
            written: Arc::new(Notify::new()),
            syncer: OnceLock::new(),
        });
        let task = sync_by_window(Arc::downgrade(&office), Arc::clone(&office.written), window);
        // Set once, here.
        let _ = office.syncer.set(runtime.spawn(task).abort_handle());
        office
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        // No code that can panic runs under it.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats(&self) -> MutexGuard<'_, HashMap<SessionId, SessionStat>> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn check_open(&self) -> Result<(), StoreError> {
        if self.places().closed { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Enters a claim, if nobody has one.
    pub(super) fn claim(
        self: &Arc<Self>,
        id: &SessionId,
        taken: impl FnOnce(SessionId) -> StoreError,
    ) -> Result<Claimed, StoreError> {
        let mut places = self.places();
        if places.closed {
            return Err(StoreError::Closed);
        }
        let place = places.by_id.entry(id.clone()).or_insert_with(|| Place {
            desk: Desk::new(self.runtime.clone(), Slot::Empty, || Slot::Lost),
            claim: None,
        });
        if place.claim.is_some() {
            return Err(taken(id.clone()));
        }
        let claim = Arc::<Claim>::default();
        place.claim = Some(Arc::clone(&claim));
        let desk = Arc::clone(&place.desk);
        Ok(Claimed { office: Arc::clone(self), id: id.clone(), claim, desk })
    }

    /// What is claimed and not stored, behind an id.
    pub(super) fn pending(&self, after: Option<&SessionId>) -> Vec<SessionStat> {
        use std::ops::Bound;
        let places = self.places();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = places.by_id.range::<SessionId, _>((start, Bound::Unbounded));
        behind.filter_map(|(_, place)| place.claim.as_ref()?.pending()).map(unstored).collect()
    }

    pub(super) fn pending_session(&self, id: &SessionId) -> Option<StoredSession> {
        let claim = self.places().by_id.get(id).and_then(|place| place.claim.clone())?;
        let (header, inherited_event_count, _) = claim.pending()?;
        Some(StoredSession { header, inherited_event_count, events: Vec::new(), tail: None })
    }

    pub(super) fn pending_stat(&self, id: &SessionId) -> Option<SessionStat> {
        let claim = self.places().by_id.get(id).and_then(|place| place.claim.clone())?;
        claim.pending().map(unstored)
    }

    /// What a writer knows of its session, after each change.
    pub(super) fn record(&self, stat: SessionStat) {
        self.stats().insert(stat.header.id.clone(), stat);
    }

    /// A write has taken place.
    pub(super) fn wrote(&self) {
        self.written.notify_one();
    }

    pub(super) fn forget(&self, id: &SessionId) {
        self.stats().remove(id);
    }

    /// What the catalog says of a stored session. Blocks.
    pub(super) fn stat(&self, id: &SessionId) -> Result<Option<SessionStat>, StoreError> {
        let known = self.stats().get(id).cloned();
        if known.is_some() && self.shelf.has(id)? {
            return Ok(known);
        }
        let Some(stat) = self.shelf.stat(id)? else { return Ok(None) };
        // A writer that came meanwhile knows better.
        Ok(Some(self.stats().entry(id.clone()).or_insert(stat).clone()))
    }

    /// Syncs what is written, on all desks side by side. The first failure is told; the others'
    /// sessions are synced all the same.
    pub(super) async fn sync(&self) -> Result<(), StoreError> {
        self.on_all(Slot::sync).await
    }

    async fn on_all(
        &self,
        work: fn(&mut Slot) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let desks: Vec<_> =
            self.places().by_id.values().map(|place| Arc::clone(&place.desk)).collect();
        let done = join_all(desks.iter().map(|desk| desk.submit(work))).await;
        drop(desks);
        self.places().by_id.retain(|_, place| {
            place.claim.is_some()
                || Arc::strong_count(&place.desk) > 1
                || !place.desk.is_idle(Slot::is_done)
        });
        done.into_iter().collect()
    }

    /// Syncs, and lets go of everything.
    pub(super) async fn close(&self) -> Result<(), StoreError> {
        self.places().closed = true;
        let written = self.values.submit(|open| {
            *open = false;
            Ok(())
        });
        let synced = self
            .on_all(|slot| {
                let synced = slot.sync();
                *slot = Slot::Shut;
                synced
            })
            .await;
        let written = written.await;
        if let Some(syncer) = self.syncer.get() {
            syncer.abort();
        }
        drop(self.held.lock().unwrap_or_else(PoisonError::into_inner).take());
        synced.and(written)
    }
}

fn unstored((header, _, revision): (Arc<SessionHeader>, u64, Revision)) -> SessionStat {
    SessionStat { header, event_count: 0, size_bytes: 0, revision }
}

/// Syncs a window after the first write that is not durable; later ones do not extend it.
async fn sync_by_window(office: Weak<Office>, written: Arc<Notify>, window: Duration) {
    loop {
        written.notified().await;
        tokio::time::sleep(window).await;
        let Some(office) = office.upgrade() else { return };
        if let Err(error) = office.sync().await {
            // Nobody waits for this one; the next flush tries again, and tells.
            tracing::warn!(store = %office.shelf.describe(), %error, "a sync by window failed");
        }
    }
}

/// A claim that is given back when it is dropped.
pub(super) struct Claimed {
    pub(super) office: Arc<Office>,
    pub(super) id: SessionId,
    pub(super) claim: Arc<Claim>,
    pub(super) desk: SessionDesk,
}

impl Claimed {
    /// Gives the claim back, if it is still this one.
    pub(super) fn release(&self) {
        let mut places = self.office.places();
        if let Some(place) = places.by_id.get_mut(&self.id)
            && place.claim.as_ref().is_some_and(|held| Arc::ptr_eq(held, &self.claim))
        {
            place.claim = None;
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.release();
    }
}
