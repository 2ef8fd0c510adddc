//! Time and ids, injected everywhere so that tests and simulations decide them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use playhouse_messages::id::{MessageId, SessionId};
use uuid::Uuid;

/// Wall-clock time.
pub trait Clock: Send + Sync + 'static {
    /// Epoch milliseconds.
    fn now_ms(&self) -> i64;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}

/// A clock that moves one millisecond at each reading, from a fixed start: for tests.
#[derive(Debug, Default)]
pub struct StepClock(AtomicU64);

impl StepClock {
    /// A clock whose first reading is `start` milliseconds.
    pub fn starting_at(start: u64) -> Self {
        Self(AtomicU64::new(start))
    }
}

impl Clock for StepClock {
    fn now_ms(&self) -> i64 {
        i64::try_from(self.0.fetch_add(1, Ordering::Relaxed)).unwrap_or(i64::MAX)
    }
}

/// Where ids come from.
pub trait Ids: Send + Sync + 'static {
    /// A fresh, unique text.
    fn fresh(&self) -> String;

    /// A fresh message id.
    fn message(&self) -> MessageId {
        self.fresh().into()
    }

    /// A fresh session id.
    fn session(&self) -> SessionId {
        self.fresh().into()
    }
}

/// UUID v7: unique, and ordered by time.
#[derive(Debug, Clone, Copy, Default)]
pub struct UuidIds;

impl Ids for UuidIds {
    fn fresh(&self) -> String {
        Uuid::now_v7().to_string()
    }
}

/// Counts: for tests.
#[derive(Debug, Default)]
pub struct CountingIds(AtomicU64);

impl Ids for CountingIds {
    fn fresh(&self) -> String {
        format!("id-{}", self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
