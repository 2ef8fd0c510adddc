//! Why and when a script is interrupted.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use playhouse_messages::chunk::Failure;

use crate::error::code;

/// Asked by the interpreter at short intervals. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Watchdog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    begun: Instant,
    slice: Duration,
    /// Nanoseconds from the beginning.
    deadline: AtomicU64,
    barks: AtomicBool,
    verdict: Mutex<Option<Failure>>,
}

impl Watchdog {
    /// Lets a script compute for `slice` without a pause.
    pub(super) fn new(slice: Duration) -> Self {
        Self(Arc::new(Inner {
            begun: Instant::now(),
            slice,
            deadline: AtomicU64::new(u64::MAX),
            barks: AtomicBool::new(false),
            verdict: Mutex::new(None),
        }))
    }

    /// The script goes on after it has waited.
    pub(super) fn begin_slice(&self) {
        self.0.deadline.store(self.at(self.0.begun.elapsed() + self.0.slice), Ordering::Release);
    }

    /// The script waits, or has ended.
    pub(super) fn end_slice(&self) {
        self.0.deadline.store(u64::MAX, Ordering::Release);
    }

    /// Resolves with the reason once the script has computed for twice its time: some loops of the
    /// interpreter's own ask nobody whether they may go on.
    pub(super) async fn unheard(self) -> Failure {
        loop {
            tokio::time::sleep(self.0.slice).await;
            let deadline = self.0.deadline.load(Ordering::Acquire);
            let end = deadline.saturating_add(self.at(self.0.slice));
            if self.at(self.0.begun.elapsed()) > end
                && let Some(failure) = self.verdict()
            {
                return failure;
            }
        }
    }

    /// Ends the script for this reason; the first counts.
    pub(super) fn condemn(&self, failure: Failure) {
        self.verdict_cell().get_or_insert(failure);
        self.0.barks.store(true, Ordering::Release);
    }

    /// Whether the script must end now.
    pub(super) fn barks(&self) -> bool {
        if self.0.barks.load(Ordering::Acquire) {
            return true;
        }
        let late = self.at(self.0.begun.elapsed()) > self.0.deadline.load(Ordering::Acquire);
        if late {
            let text = format!(
                "the script computed for more than {} ms without awaiting an agent; split the work",
                self.0.slice.as_millis()
            );
            self.condemn(Failure::new(code::SCRIPT_TIMEOUT, text));
        }
        late
    }

    /// Why the script must end, if it must.
    pub(super) fn verdict(&self) -> Option<Failure> {
        match self.barks() {
            true => self.verdict_cell().clone(),
            false => None,
        }
    }

    fn at(&self, since: Duration) -> u64 {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn verdict_cell(&self) -> MutexGuard<'_, Option<Failure>> {
        self.0.verdict.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts_and_a_slice_that_is_over_is_one() {
        let dog = Watchdog::new(Duration::ZERO);
        assert_eq!(dog.verdict(), None, "nothing runs yet");
        dog.begin_slice();
        while !dog.barks() {}
        dog.condemn(Failure::new("OTHER", "x"));
        assert_eq!(dog.verdict().unwrap().code, "SCRIPT_TIMEOUT");
    }
}
