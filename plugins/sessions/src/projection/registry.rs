//! Which projections there are, and their states over live sessions.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use playhouse_messages::{event::Seq, id::SessionId};
use playhouse_plugin_api::{
    scope::{Registration, Scope},
    session::{Session, SessionCell},
};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::broadcast;

use super::{
    cell::{Cell, UnitRef},
    checkpoint::Checkpoint,
    error::ProjectionError,
    unit::{Projection, Unit},
};

/// Changes that a slow subscriber may have before it misses the oldest.
const CHANGES: usize = 1024;

/// The projections of a harness, or of a program that only reads. Clones are the same.
///
/// States are folded when somebody asks: a read sees every event that was accepted before it, and no
/// event is folded twice. Where [`SessionProjections`](super::SessionProjections) is hosted, live
/// sessions are folded as they grow. A session's states are behind one lock, which is held while its
/// projections fold; a projection must not ask for projections itself.
#[derive(Clone)]
pub struct Projections(Arc<Inner>);

struct Inner {
    units: Mutex<Units>,
    sessions: Mutex<HashMap<SessionId, Arc<Folded>>>,
    changes: broadcast::Sender<Change>,
}

#[derive(Default)]
struct Units {
    next: u64,
    list: Vec<Registered>,
}

struct Registered {
    of: UnitRef,
    references: usize,
}

/// What is folded of a session.
struct Folded {
    session: Weak<SessionCell>,
    cells: Mutex<Vec<Cell>>,
}

/// What all projections show of a session at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The last event that is in it; `None` for an empty log.
    pub as_of_seq: Option<Seq>,
    /// The views by key, of the projections that have one and have not failed.
    pub values: BTreeMap<String, Value>,
}

/// A projection of a live session has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Whose.
    pub session: SessionId,
    /// The projection.
    pub key: String,
    /// Its whole view now.
    pub view: Value,
    /// The event that changed it.
    pub cause_seq: Seq,
}

/// What a subscriber is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// A change.
    Change(Change),
    /// It was too slow for so many changes. Views are whole values, so a snapshot makes up for them.
    Missed(u64),
}

/// A subscription to changes. It never makes anybody wait.
#[derive(Debug)]
pub struct Changes(broadcast::Receiver<Change>);

impl Changes {
    /// The next thing to tell; `None` once the projections are gone. Safe to drop and call again.
    pub async fn next(&mut self) -> Option<Told> {
        match self.0.recv().await {
            Ok(change) => Some(Told::Change(change)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Told::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl Projections {
    /// None yet.
    pub fn new() -> Self {
        let changes = broadcast::Sender::new(CHANGES);
        Self(Arc::new(Inner { units: Mutex::default(), sessions: Mutex::default(), changes }))
    }

    /// Registers a projection until `scope` closes. The same key and version again shares the one
    /// that is there, which goes with its last registration.
    ///
    /// # Errors
    ///
    /// [`ProjectionError::VersionConflict`]; [`ProjectionError::Closed`].
    pub fn register(
        &self,
        scope: &Scope,
        projection: impl Projection,
    ) -> Result<Registration, ProjectionError> {
        let unit: Arc<dyn Unit> = Arc::new(projection);
        let (key, offered) = (unit.name().to_owned(), unit.state_version());
        let mut units = self.units();
        let there = units.list.iter().position(|found| found.of.unit.name() == key);
        let registered = there.map(|at| units.list[at].of.unit.state_version());
        if let Some(registered) = registered.filter(|registered| *registered != offered) {
            return Err(ProjectionError::VersionConflict { key, registered, offered });
        }
        let instance = there.map_or(units.next, |at| units.list[at].of.instance);
        let projections = self.clone();
        // Under the lock: a scope that closes meanwhile waits, and then finds what to remove.
        let registration = scope.on_close(move || projections.release(instance))?;
        match there {
            Some(at) => units.list[at].references += 1,
            None => {
                units.next += 1;
                units.list.push(Registered { of: UnitRef { instance, unit }, references: 1 });
            }
        }
        Ok(registration)
    }

    fn release(&self, instance: u64) {
        let mut units = self.units();
        let Some(at) = units.list.iter().position(|found| found.of.instance == instance) else {
            return;
        };
        units.list[at].references -= 1;
        let gone = (units.list[at].references == 0).then(|| units.list.remove(at));
        drop(units);
        if gone.is_some() {
            for folded in self.sessions().values() {
                folded.cells().retain(|cell| cell.of.instance != instance);
            }
        }
    }

    /// A projection's state over a live session.
    ///
    /// # Errors
    ///
    /// [`ProjectionError::Unknown`], [`ProjectionError::WrongType`], [`ProjectionError::Failed`].
    pub fn state_of<S: Clone + 'static>(
        &self,
        session: &Session,
        key: &str,
    ) -> Result<S, ProjectionError> {
        self.folded(session, |cells, _| match cells.iter().find(|c| c.of.unit.name() == key) {
            Some(cell) => cell.state(),
            None => Err(ProjectionError::Unknown { key: key.to_owned() }),
        })
    }

    /// What all projections show of a live session.
    pub fn snapshot(&self, session: &Session) -> Snapshot {
        self.folded(session, shown)
    }

    /// The states of a live session, for a cache.
    pub fn checkpoint(&self, session: &Session) -> Checkpoint {
        self.folded(session, |cells, _| saved(cells))
    }

    /// What the rows of a checkpoint show, without any event: those of registered projections whose
    /// version and shape are right. The snapshot is as old as its oldest row.
    pub fn view_checkpoint(&self, checkpoint: &Checkpoint) -> Option<Snapshot> {
        let cells = checkpoint.cells(&self.all());
        let as_of_seq = Some(cells.iter().map(|(_, seq)| *seq).min()?);
        let cells: Vec<_> = cells.into_iter().map(|(cell, _)| cell).collect();
        Some(Snapshot { as_of_seq, values: shown(&cells, 0).values })
    }

    /// Folds what a live session has gained, and tells subscribers of it.
    pub fn catch_up(&self, session: &Session) {
        self.folded(session, |_, _| ());
    }

    /// Reads along what changes. Sessions are folded as
    /// [`SessionProjections`](super::SessionProjections) sees them grow, or as somebody reads them;
    /// what a projection finds when it starts on a session is no change.
    pub fn changes(&self) -> Changes {
        Changes(self.0.changes.subscribe())
    }

    /// Every registered unit.
    pub(super) fn all(&self) -> Vec<UnitRef> {
        self.units().list.iter().map(|registered| registered.of.clone()).collect()
    }

    /// Uses the session's cells, all at the end of its log, which is told.
    fn folded<T>(&self, session: &Session, use_them: impl FnOnce(&[Cell], Seq) -> T) -> T {
        let folded = self.of(session);
        let mut cells = folded.cells();
        // Under the lock, so that nobody has folded further than this.
        let (log, units) = (session.log(), self.all());
        cells.retain(|cell| units.iter().any(|of| of.instance == cell.of.instance));
        let from = cells.first().map_or(log.len(), Cell::next);
        for event in log.range(from..log.len()) {
            for cell in cells.iter_mut() {
                if cell.apply(event) && self.0.changes.receiver_count() > 0 {
                    self.tell(session.id(), cell, event.seq);
                }
            }
        }
        for of in units {
            if !cells.iter().any(|cell| cell.of.instance == of.instance) {
                let mut cell = Cell::new(of);
                for event in log.iter() {
                    cell.apply(event);
                }
                cells.push(cell);
            }
        }
        use_them(&cells, log.len())
    }

    fn tell(&self, session: &SessionId, cell: &Cell, cause_seq: Seq) {
        let Some(view) = cell.view() else { return };
        let key = cell.of.unit.name().to_owned();
        // Nobody has to listen.
        let _ = self.0.changes.send(Change { session: session.clone(), key, view, cause_seq });
    }

    fn of(&self, session: &Session) -> Arc<Folded> {
        let mut sessions = self.sessions();
        if let Some(found) = sessions.get(session.id())
            && std::ptr::eq(found.session.as_ptr(), Arc::as_ptr(session.cell()))
        {
            return found.clone();
        }
        if sessions.len() == sessions.capacity() {
            sessions.retain(|_, folded| folded.session.strong_count() > 0);
        }
        let folded =
            Arc::new(Folded { session: Arc::downgrade(session.cell()), cells: Mutex::default() });
        sessions.insert(session.id().clone(), folded.clone());
        folded
    }

    /// Drops what is folded of a session that is gone.
    pub(super) fn drop_session(&self, session: &Session) {
        let mut sessions = self.sessions();
        let same = sessions
            .get(session.id())
            .is_some_and(|found| std::ptr::eq(found.session.as_ptr(), Arc::as_ptr(session.cell())));
        if same {
            sessions.remove(session.id());
        }
    }

    fn units(&self) -> MutexGuard<'_, Units> {
        self.0.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Folded>>> {
        self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Folded {
    fn cells(&self) -> MutexGuard<'_, Vec<Cell>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What cells at the end of a log of `end` events show.
pub(super) fn shown(cells: &[Cell], end: Seq) -> Snapshot {
    let shown = |cell: &Cell| Some((cell.of.unit.name().to_owned(), cell.view()?));
    Snapshot { as_of_seq: end.checked_sub(1), values: cells.iter().filter_map(shown).collect() }
}

pub(super) fn saved(cells: &[Cell]) -> Checkpoint {
    let row = |cell: &Cell| Some((cell.of.unit.name().to_owned(), cell.row()?));
    Checkpoint { rows: cells.iter().filter_map(row).collect() }
}

impl Default for Projections {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Projections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self.units();
        f.debug_set().entries(units.list.iter().map(|found| found.of.unit.name())).finish()
    }
}
