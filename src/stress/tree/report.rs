//! What a run with trees came to.

use std::time::Duration;

use crate::stress::Fault;

/// How far a run has got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeProgress {
    /// Since the tree of the moment was begun.
    pub elapsed: Duration,
    /// Agents that live now.
    pub live: usize,
    /// Agents that have called their tool.
    pub arrived: u64,
    /// Which cancelled tree it is; 0 for the one that is grown to its end.
    pub cancel: usize,
}

/// A tree that was grown to its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grown {
    /// How long it took, until the root had reported.
    pub wall: Duration,
    /// How long its disposal took after that.
    pub disposal: Duration,
    /// Agents that lived at the same time, when the last had called its tool.
    pub live_at_once: usize,
    /// Turns in the logs.
    pub turns: u64,
    /// Events in the logs.
    pub events: u64,
    /// CPU time of the process, until nothing of the tree was left.
    pub cpu: Option<Duration>,
    /// The most memory that was resident, beyond what was before it.
    pub memory: Option<u64>,
    /// What was left of it: live agents and reserved ids, slots of children, tasks.
    pub left: Left,
    /// What must not be.
    pub(super) faults: Vec<Fault>,
}

/// What was left of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Left {
    /// Live agents and reserved ids.
    pub agents: usize,
    /// Tasks of the runtime beyond those before.
    pub tasks: usize,
    /// Slots of children that are taken.
    pub slots: usize,
}

/// A tree that was cancelled.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cancelled {
    /// When, after its root was prompted.
    pub after: Duration,
    /// Agents and creations that were reached.
    pub reached: usize,
    /// Until all their tokens had fired.
    pub told: Duration,
    /// Until the call returned: all of them idle or gone.
    pub took: Duration,
    /// Events that were appended meanwhile, and their bytes.
    pub events: u64,
    /// Bytes of those events.
    pub bytes: u64,
    /// A bare broadcast to as many tasks, and the same appends, synced.
    pub bare: Duration,
}

impl Cancelled {
    /// How often the bare time the cancel took.
    pub fn ratio(&self) -> f64 {
        self.took.as_secs_f64() / self.bare.as_secs_f64().max(1e-9)
    }
}

/// What a run came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TreeReport {
    /// Agents of one tree.
    pub agents: u64,
    /// The tree that was grown to its end.
    pub grown: Grown,
    /// Those that were cancelled.
    pub cancelled: Vec<Cancelled>,
    /// Stored sessions, each read and judged in the end.
    pub sessions: u64,
    /// What must not be.
    pub faults: Vec<Fault>,
}
