//! What a faulty store does to an operation: decided here, done by the store.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fastrand::Rng;
use playhouse_plugin_api::store::StoreError;

/// An operation of a store or of a session's writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOp {
    /// [`Store::create`](playhouse_plugin_api::store::Store::create).
    Create,
    /// [`Store::open_write`](playhouse_plugin_api::store::Store::open_write).
    OpenWrite,
    /// [`StoreReader::read`](playhouse_plugin_api::store::StoreReader::read).
    Read,
    /// `list` and `stat` of a [`StoreReader`](playhouse_plugin_api::store::StoreReader).
    List,
    /// [`Store::delete`](playhouse_plugin_api::store::Store::delete).
    Delete,
    /// Values outside any session: put, read, listed and removed.
    Value,
    /// [`SessionWriter::append`](playhouse_plugin_api::store::SessionWriter::append).
    Append,
    /// [`SessionWriter::tail`](playhouse_plugin_api::store::SessionWriter::tail).
    Tail,
    /// A flush of a session or of the store.
    Flush,
    /// A close of a session or of the store: the claim or the store is released all the same.
    Close,
}

/// How often each fault strikes by chance, in a thousand operations. Only appends, tails and flushes
/// are struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOdds {
    /// Nothing is done.
    pub refused: u32,
    /// It is done, and fails all the same.
    pub lost: u32,
    /// It is done, and answers late.
    pub slow: u32,
    /// The longest that a slow one takes.
    pub slowest: Duration,
    /// The disk is full from an append on, for up to [`StoreOdds::FULL_MAX`] appends and tails.
    pub full: u32,
}

impl StoreOdds {
    /// The most operations that a disk refuses before somebody frees it.
    pub const FULL_MAX: u32 = 20;
}

impl Default for StoreOdds {
    fn default() -> Self {
        Self { refused: 10, lost: 10, slow: 50, slowest: Duration::from_millis(50), full: 1 }
    }
}

/// What happens to an operation.
#[derive(Debug, Clone)]
pub(super) enum Mishap {
    /// It is not done.
    Refused(StoreError),
    /// It is done, and the answer is an error.
    Lost(StoreError),
    /// It is done, and the answer takes its time.
    Slow(Duration),
}

#[derive(Clone, Default)]
pub(super) struct Faults(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    planned: HashMap<StoreOp, (usize, Mishap)>,
    bytes_left: Option<u64>,
    chance: Option<(Rng, StoreOdds)>,
    /// Operations that a disk which is full by chance still refuses.
    full_for: u32,
    struck: HashMap<StoreOp, usize>,
    tally: BTreeMap<&'static str, u64>,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn plan(&self, op: StoreOp, times: usize, mishap: Mishap) {
        self.lock().planned.insert(op, (times, mishap));
    }

    pub(super) fn fill(&self, bytes_left: u64) {
        self.lock().bytes_left = Some(bytes_left);
    }

    pub(super) fn chaos(&self, seed: u64, odds: StoreOdds) {
        self.lock().chance = Some((Rng::with_seed(seed), odds));
    }

    pub(super) fn heal(&self) {
        let state = &mut *self.lock();
        state.planned.clear();
        (state.bytes_left, state.chance, state.full_for) = (None, None, 0);
    }

    pub(super) fn struck(&self, op: StoreOp) -> usize {
        self.lock().struck.get(&op).copied().unwrap_or_default()
    }

    pub(super) fn tally(&self) -> BTreeMap<&'static str, u64> {
        self.lock().tally.clone()
    }

    /// What happens to this operation, which would write so many bytes.
    pub(super) fn draw(&self, op: StoreOp, bytes: usize) -> Option<Mishap> {
        let state = &mut *self.lock();
        let mishap =
            state.planned(op).or_else(|| state.full(op, bytes)).or_else(|| state.chance(op))?;
        let kind = match &mishap {
            Mishap::Refused(StoreError::Full { .. }) => "full",
            Mishap::Refused(_) => match op {
                StoreOp::Append => "append refused",
                StoreOp::Flush => "flush refused",
                StoreOp::Tail => "tail refused",
                _ => "other refused",
            },
            Mishap::Lost(_) => match op {
                StoreOp::Append => "append done and failed",
                StoreOp::Flush => "flush done and failed",
                StoreOp::Tail => "tail done and failed",
                _ => "other done and failed",
            },
            Mishap::Slow(_) => "slow",
        };
        *state.tally.entry(kind).or_default() += 1;
        if !matches!(mishap, Mishap::Slow(_)) {
            *state.struck.entry(op).or_default() += 1;
        }
        Some(mishap)
    }
}

impl State {
    fn planned(&mut self, op: StoreOp) -> Option<Mishap> {
        let (left, mishap) = self.planned.get_mut(&op)?;
        *left = left.checked_sub(1)?;
        Some(mishap.clone())
    }

    fn full(&mut self, op: StoreOp, bytes: usize) -> Option<Mishap> {
        if !matches!(op, StoreOp::Append | StoreOp::Tail) {
            return None;
        }
        if let Some(rest) = self.full_for.checked_sub(1) {
            self.full_for = rest;
            return Some(disk_full());
        }
        let left = self.bytes_left.as_mut()?;
        match left.checked_sub(bytes as u64) {
            Some(rest) => *left = rest,
            None => return Some(disk_full()),
        }
        None
    }

    fn chance(&mut self, op: StoreOp) -> Option<Mishap> {
        let (rng, odds) = self.chance.as_mut()?;
        if !matches!(op, StoreOp::Append | StoreOp::Tail | StoreOp::Flush) {
            return None;
        }
        let error = || StoreError::Io { what: format!("{op:?}"), cause: "injected".to_owned() };
        let mut roll = rng.u32(0..1_000);
        let mut falls = |odds: u32| {
            let hit = roll < odds;
            roll = if hit { u32::MAX } else { roll - odds };
            hit
        };
        if falls(odds.refused) {
            return Some(Mishap::Refused(error()));
        }
        if falls(odds.lost) {
            return Some(Mishap::Lost(error()));
        }
        if falls(odds.slow) {
            let most = u64::try_from(odds.slowest.as_micros()).unwrap_or(u64::MAX);
            return Some(Mishap::Slow(Duration::from_micros(rng.u64(0..=most))));
        }
        if op == StoreOp::Append && falls(odds.full) {
            self.full_for = rng.u32(0..StoreOdds::FULL_MAX);
            return Some(disk_full());
        }
        None
    }
}

fn disk_full() -> Mishap {
    Mishap::Refused(StoreError::Full { path: "a disk that is full on demand".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(faults: &Faults, op: StoreOp, bytes: usize, times: usize) -> Vec<&'static str> {
        let draw = |_| match faults.draw(op, bytes) {
            None => "works",
            Some(Mishap::Refused(StoreError::Full { .. })) => "full",
            Some(Mishap::Refused(_)) => "refused",
            Some(Mishap::Lost(_)) => "lost",
            Some(Mishap::Slow(_)) => "slow",
        };
        (0..times).map(draw).collect()
    }

    #[test]
    fn faults_strike_as_often_as_they_were_told_to_and_their_own_kind_only() {
        let faults = Faults::default();
        faults.plan(StoreOp::Flush, 2, Mishap::Lost(StoreError::Closed));
        faults.plan(StoreOp::Append, 1, Mishap::Slow(Duration::ZERO));
        assert_eq!(kinds(&faults, StoreOp::Flush, 0, 3), ["lost", "lost", "works"]);
        assert_eq!(kinds(&faults, StoreOp::Append, 9, 2), ["slow", "works"]);
        assert_eq!((faults.struck(StoreOp::Flush), faults.struck(StoreOp::Append)), (2, 0));
        assert_eq!(faults.tally(), BTreeMap::from([("flush done and failed", 2), ("slow", 1)]));
    }

    #[test]
    fn a_full_disk_takes_what_still_fits_and_works_again_once_it_is_freed() {
        let faults = Faults::default();
        faults.fill(10);
        assert_eq!(kinds(&faults, StoreOp::Append, 6, 2), ["works", "full"]);
        assert_eq!(kinds(&faults, StoreOp::Tail, 4, 1), ["works"]);
        assert_eq!(kinds(&faults, StoreOp::Tail, 1, 1), ["full"]);
        assert_eq!(kinds(&faults, StoreOp::Flush, 0, 1), ["works"]);
        faults.fill(1);
        assert_eq!(kinds(&faults, StoreOp::Append, 1, 2), ["works", "full"]);
        faults.heal();
        assert_eq!(kinds(&faults, StoreOp::Append, 99, 1), ["works"]);
    }

    #[test]
    fn a_seed_draws_the_same_and_every_kind_until_the_store_is_healed() {
        let drawn = |seed| {
            let faults = Faults::default();
            let odds =
                StoreOdds { refused: 100, lost: 100, slow: 100, full: 50, ..Default::default() };
            faults.chaos(seed, odds);
            let drawn = kinds(&faults, StoreOp::Append, 1, 500);
            assert_eq!(kinds(&faults, StoreOp::Read, 0, 100), ["works"; 100]);
            faults.heal();
            assert_eq!(kinds(&faults, StoreOp::Append, 1, 100), ["works"; 100]);
            drawn
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        for kind in ["works", "refused", "lost", "slow", "full"] {
            assert!(drawn(1).contains(&kind), "{kind}");
        }
    }
}
