//! Back-pressure: what all sessions of a harness have accepted and not made durable.
//!
//! It is memory, and what a power cut would cost, so it is bounded. Past the limit a session still
//! accepts, and whoever sent waits: until the session's own log is durable, or the whole is below the
//! limit again. Who waits also asks for the sync, of every session, since sessions whose policy never
//! syncs hold their share until somebody does.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use playhouse_messages::{event::Seq, protocol::WriterMessage};

use crate::{session::SessionCell, watch};

/// The limit unless told otherwise, in bytes: little of a machine of 24 GiB. One of 256 MiB does well
/// with 4 MiB.
pub const UNDURABLE_BYTES_DEFAULT: u64 = 64 << 20;

/// How many bytes all sessions of a harness hold that are accepted and not durable, against a limit.
#[derive(Debug)]
pub struct Undurable {
    bytes: AtomicU64,
    limit: u64,
    /// All bytes that were ever accepted, and at how many of them the sessions are asked next.
    accepted: AtomicU64,
    ask_at: AtomicU64,
    /// Counts how often the bytes fell below the limit.
    falls: watch::Sender<u64>,
    sessions: Mutex<Vec<Weak<SessionCell>>>,
}

impl Undurable {
    /// Nothing yet, against a limit in bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicU64::new(0),
            limit,
            accepted: AtomicU64::new(0),
            ask_at: AtomicU64::new(0),
            falls: watch::Sender::new(0),
            sessions: Mutex::default(),
        })
    }

    /// How many bytes of JSON are accepted and not durable.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether whoever adds to it should wait.
    pub fn is_over(&self) -> bool {
        self.bytes() > self.limit
    }

    /// Changes whenever the bytes fall below the limit.
    pub(crate) fn falls(&self) -> watch::Receiver<u64> {
        self.falls.subscribe()
    }

    /// Counts what this session holds among those that are asked for a sync.
    pub(crate) fn enrol(&self, session: &Arc<SessionCell>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        // Amortised: the dead are at most half.
        if sessions.len() == sessions.capacity() {
            sessions.retain(|session| session.strong_count() > 0);
        }
        sessions.push(Arc::downgrade(session));
    }

    /// Asks every session that holds something to sync; again only once more has come, since a store
    /// that is stuck is not helped by asking.
    pub(crate) fn relieve(&self) {
        let accepted = self.accepted.load(Ordering::Acquire);
        let again = accepted.saturating_add((self.limit / 8).max(1));
        let due = |at: u64| (at <= accepted).then_some(again);
        if self.ask_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, due).is_err() {
            return;
        }
        let sessions: Vec<_> = {
            let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.iter().filter_map(Weak::upgrade).collect()
        };
        for session in sessions.iter().filter(|session| session.undurable_bytes() > 0) {
            // Nobody awaits its end, which the marks tell.
            let (reply, _) = tokio::sync::oneshot::channel();
            let _ = session.writer.cast(WriterMessage::Flush { reply: reply.into() });
        }
    }

    fn add(&self, bytes: u64) {
        self.accepted.fetch_add(bytes, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    fn sub(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before > self.limit && before - bytes <= self.limit {
            self.falls.send_modify(|falls| *falls += 1);
        }
    }
}

/// One session's part of it. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    whole: Arc<Undurable>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// What each append added, by the length of the log behind it.
    runs: VecDeque<(Seq, u64)>,
    bytes: u64,
    /// Nobody will make any of it durable.
    ended: bool,
}

impl Share {
    pub(crate) fn new(whole: Arc<Undurable>) -> Self {
        Self { whole, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // The sum and its parts are changed together, by code that cannot panic.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn whole(&self) -> &Undurable {
        &self.whole
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.held().bytes
    }

    /// A log of `len` events now ends in `bytes` bytes more.
    pub(crate) fn add(&self, len: Seq, bytes: u64) {
        let mut held = self.held();
        if !held.ended && bytes > 0 {
            held.runs.push_back((len, bytes));
            held.bytes += bytes;
            self.whole.add(bytes);
        }
    }

    /// The first `durable` events are.
    pub(crate) fn release(&self, durable: Seq) {
        let mut held = self.held();
        let mut freed = 0;
        while let Some((_, bytes)) = held.runs.front().copied().filter(|(end, _)| *end <= durable) {
            held.runs.pop_front();
            freed += bytes;
        }
        held.bytes -= freed;
        drop(held);
        self.whole.sub(freed);
    }

    /// Gives all back, for good.
    pub(crate) fn end(&self) {
        self.held().ended = true;
        self.release(Seq::MAX);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_held_until_they_are_durable_and_never_after_the_end() {
        let whole = Undurable::new(100);
        let (one, two) = (Share::new(whole.clone()), Share::new(whole.clone()));
        let falls = whole.falls();
        one.add(3, 60);
        two.add(1, 50);
        one.add(5, 20);
        assert_eq!((whole.bytes(), one.bytes(), whole.is_over()), (130, 80, true));
        one.release(2);
        assert_eq!(whole.bytes(), 130, "half an append is none");
        one.release(4);
        assert_eq!((whole.bytes(), one.bytes(), whole.is_over()), (70, 20, false));
        assert_eq!(*falls.borrow(), 1);
        two.end();
        two.add(2, 1_000);
        assert_eq!((whole.bytes(), two.bytes()), (20, 0));
        drop(one);
        assert_eq!((whole.bytes(), *falls.borrow()), (0, 1));
    }
}
