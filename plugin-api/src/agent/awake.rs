//! What keeps an agent awake.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::time::Instant;

use super::AgentCell;
use crate::scope::Scope;

/// What of an agent decides whether it may hibernate.
pub(super) struct Wakefulness {
    reasons: Mutex<BTreeMap<u64, Cow<'static, str>>>,
    next: AtomicU64,
    /// When it came to rest last.
    rested: Mutex<Instant>,
    /// How far its scope had got when it was made, and how many tasks ran there.
    furnished: AtomicU64,
    tasks: AtomicUsize,
    asleep: AtomicBool,
}

impl Wakefulness {
    pub(super) fn new() -> Self {
        Self {
            reasons: Mutex::default(),
            next: AtomicU64::new(0),
            rested: Mutex::new(Instant::now()),
            furnished: AtomicU64::new(u64::MAX),
            tasks: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
        }
    }

    fn reasons(&self) -> MutexGuard<'_, BTreeMap<u64, Cow<'static, str>>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rests(&self) {
        *self.rested.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// Keeps an agent awake until it is dropped. Holds the agent's cell, and nothing of its actors.
#[must_use = "the agent may hibernate as soon as this is dropped"]
pub struct StayAwake {
    cell: Arc<AgentCell>,
    number: u64,
}

impl StayAwake {
    pub(super) fn new(cell: Arc<AgentCell>, reason: Cow<'static, str>) -> Self {
        let number = cell.wakefulness.next.fetch_add(1, Ordering::Relaxed);
        cell.wakefulness.reasons().insert(number, reason);
        Self { cell, number }
    }
}

impl Drop for StayAwake {
    fn drop(&mut self) {
        self.cell.wakefulness.reasons().remove(&self.number);
    }
}

impl fmt::Debug for StayAwake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StayAwake({} #{})", self.cell.session.id(), self.number)
    }
}

/// For the supervisor, which sends agents to sleep.
impl AgentCell {
    /// For what it is held awake, oldest first.
    pub fn held_awake(&self) -> Vec<String> {
        self.wakefulness.reasons().values().map(|reason| reason.clone().into_owned()).collect()
    }

    /// When it came to rest last, or was made.
    pub fn rested_at(&self) -> Instant {
        *self.wakefulness.rested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its creation is over: what its scope holds now is there again after a hibernation.
    pub fn furnish(&self) {
        self.wakefulness.furnished.store(self.scope.mark(), Ordering::Release);
        self.wakefulness.tasks.store(self.scope.tasks(), Ordering::Release);
    }

    /// What stands in its scope that no creation would put there: registrations, and tasks.
    pub fn tied(&self) -> (usize, usize) {
        let scope: &Scope = &self.scope;
        let tasks = self.wakefulness.tasks.load(Ordering::Acquire);
        let mark = self.wakefulness.furnished.load(Ordering::Acquire);
        (scope.registered_since(mark), scope.tasks().saturating_sub(tasks))
    }

    /// From now on handles say that it hibernates.
    pub fn falls_asleep(&self) {
        self.wakefulness.asleep.store(true, Ordering::Release);
    }

    /// Whether it hibernates, or is about to.
    pub fn is_asleep(&self) -> bool {
        self.wakefulness.asleep.load(Ordering::Acquire)
    }
}
