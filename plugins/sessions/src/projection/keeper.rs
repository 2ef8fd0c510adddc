//! When a live session's projections are written to the cache: a machine without time or store.

use playhouse_messages::event::Seq;

/// Decides when to write. The log leads the cache: a checkpoint waits until all that it holds is
/// durable, and only one waits at a time.
#[derive(Debug)]
pub(super) struct Keeper {
    every: u64,
    /// Events since the last checkpoint.
    dirty: u64,
    /// A checkpoint is owed.
    due: bool,
    /// A checkpoint of so many events waits for them to be durable.
    waiting: Option<Seq>,
}

impl Keeper {
    /// `dirty` events are there that the cache may not have; `every` so many events make a checkpoint
    /// due before the turn's end.
    pub(super) fn new(dirty: u64, every: u64) -> Self {
        Self { every, dirty, due: false, waiting: None }
    }

    pub(super) fn event(&mut self, ends_turn: bool) {
        self.dirty += 1;
        self.due |= ends_turn || self.dirty >= self.every;
    }

    /// Time has passed since the first event that no checkpoint has.
    pub(super) fn overdue(&mut self) {
        self.due = self.dirty > 0;
    }

    /// Whether there is anything that no checkpoint has.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty > 0
    }

    /// Whether time alone may make a checkpoint due.
    pub(super) fn ticks(&self) -> bool {
        self.is_dirty() && !self.due && self.waiting.is_none()
    }

    /// Whether to take a checkpoint now; then [`Keeper::took`] must follow.
    pub(super) fn wants(&self) -> bool {
        self.due && self.waiting.is_none()
    }

    /// A checkpoint of a log of `len` events was taken.
    pub(super) fn took(&mut self, len: Seq) {
        (self.dirty, self.due, self.waiting) = (0, false, Some(len));
    }

    /// What must be durable for the waiting checkpoint to be written.
    pub(super) fn waits_for(&self) -> Option<Seq> {
        self.waiting
    }

    /// The waiting checkpoint was written, or was not: then the next turn's end writes a newer one.
    pub(super) fn wrote(&mut self, written: bool) {
        self.waiting = None;
        self.dirty += u64::from(!written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turns_end_or_many_events_or_time_make_a_checkpoint_due() {
        let mut keeper = Keeper::new(0, 3);
        keeper.event(false);
        keeper.event(false);
        assert!(!keeper.wants());
        keeper.event(false);
        assert!(keeper.wants());
        let mut keeper = Keeper::new(0, 3);
        keeper.overdue();
        assert!(!keeper.wants(), "there is nothing new");
        keeper.event(true);
        assert!(keeper.wants());
        let mut keeper = Keeper::new(5, 100);
        assert!(!keeper.wants());
        assert!(keeper.ticks());
        keeper.overdue();
        assert!(keeper.wants() && !keeper.ticks(), "what was there before counts");
    }

    #[test]
    fn one_checkpoint_waits_at_a_time_and_a_failed_one_leaves_the_session_dirty() {
        let mut keeper = Keeper::new(0, 10);
        keeper.event(true);
        keeper.took(1);
        assert_eq!((keeper.waits_for(), keeper.is_dirty()), (Some(1), false));
        keeper.event(true);
        assert!(!keeper.wants());
        keeper.wrote(false);
        assert!(keeper.wants() && keeper.is_dirty());
        keeper.took(2);
        keeper.wrote(true);
        assert!(!keeper.is_dirty() && keeper.waits_for().is_none());
    }
}
