//! Tasks that an actor owns: they report by message, can be given up, and end with the actor.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use playhouse_messages::{chunk::Failure, protocol::ToolExecutorMessage};
use playhouse_plugin_api::hook::panic_failure;
use ractor::ActorRef;
use tokio::task::{AbortHandle, JoinSet};

const RUNNING: u8 = 0;
const REPORTED: u8 = 1;
const ABANDONED: u8 = 2;

/// What a task is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Appending `tool/call`.
    Log,
    /// Policy, approval, guards.
    Policy,
    /// The body in its wrappers.
    Body,
    /// Post-processing.
    Finish,
    /// Appending `tool/result`, or both events of a call that an abort kept from starting.
    Record,
}

impl Stage {
    /// Whether the stage runs code that may never end. The others end with the session.
    fn may_hang(self) -> bool {
        matches!(self, Self::Policy | Self::Body | Self::Finish)
    }
}

struct Task {
    stage: Stage,
    index: usize,
    fate: Arc<AtomicU8>,
    abort: AbortHandle,
}

/// The tasks of one executor. Dropping it aborts them all.
pub(super) struct Tasks<C> {
    executor: ActorRef<ToolExecutorMessage<C>>,
    set: JoinSet<()>,
    running: BTreeMap<u64, Task>,
    next: u64,
    /// The grace of tasks that start now, once the batch was given up.
    grace: Option<Duration>,
    abandoned: Arc<AtomicUsize>,
}

impl<C: Send + 'static> Tasks<C> {
    pub(super) fn new(
        executor: ActorRef<ToolExecutorMessage<C>>,
        abandoned: Arc<AtomicUsize>,
    ) -> Self {
        let (set, running) = (JoinSet::new(), BTreeMap::new());
        Self { executor, set, running, next: 0, grace: None, abandoned }
    }

    /// Runs a stage of a call. Its panic is reported as a failure.
    pub(super) fn start<F>(&mut self, stage: Stage, index: usize, work: F)
    where
        F: Future<Output = C> + Send + 'static,
        C: From<Failure>,
    {
        // Finished tasks leave the set here, or a long batch would keep all of them.
        while self.set.try_join_next().is_some() {}
        let id = self.next;
        self.next += 1;
        let fate = Arc::new(AtomicU8::new(RUNNING));
        let trace = Trace { fate: fate.clone(), abandoned: self.abandoned.clone() };
        let executor = self.executor.clone();
        let abort = self.set.spawn(async move {
            // Declared before the work, so dropped after it.
            let trace = trace;
            let outcome = AssertUnwindSafe(work)
                .catch_unwind()
                .await
                .unwrap_or_else(|panic| panic_failure(&*panic).into());
            if move_on(&trace.fate, REPORTED) {
                // A dead executor needs no report.
                let _ = executor.cast(ToolExecutorMessage::Completed { task: id, outcome });
            }
        });
        self.running.insert(id, Task { stage, index, fate, abort });
        if let Some(grace) = self.grace.filter(|_| stage.may_hang()) {
            self.time(id, grace);
        }
    }

    /// Sends `message` once `signal` resolves.
    pub(super) fn watch(
        &mut self,
        signal: impl Future<Output = ()> + Send + 'static,
        message: ToolExecutorMessage<C>,
    ) {
        let executor = self.executor.clone();
        self.set.spawn(async move {
            signal.await;
            let _ = executor.cast(message);
        });
    }

    /// Gives every stage that may hang, running or still to start, this much time. Later calls
    /// change nothing.
    pub(super) fn limit(&mut self, grace: Duration) {
        if self.grace.replace(grace).is_some() {
            return;
        }
        let running = self.running.iter().filter(|(_, task)| task.stage.may_hang());
        let ids: Vec<_> = running.map(|(id, _)| *id).collect();
        for id in ids {
            self.time(id, grace);
        }
    }

    fn time(&mut self, id: u64, grace: Duration) {
        self.watch(tokio::time::sleep(grace), ToolExecutorMessage::Overdue { task: id });
    }

    /// Takes note of a report; `None` if it is stale.
    pub(super) fn reported(&mut self, id: u64) -> Option<(Stage, usize)> {
        self.running.remove(&id).map(|task| (task.stage, task.index))
    }

    /// Drops a task that has not reported; `None` if it has, or is stale.
    pub(super) fn abandon(&mut self, id: u64) -> Option<(Stage, usize)> {
        let task = self.running.get(&id)?;
        if !give_up(task, &self.abandoned) {
            return None;
        }
        self.reported(id)
    }
}

/// Counts the task as abandoned before it is told, so that its own count can only follow.
fn give_up(task: &Task, abandoned: &AtomicUsize) -> bool {
    abandoned.fetch_add(1, Ordering::AcqRel);
    let given_up = move_on(&task.fate, ABANDONED);
    if given_up {
        task.abort.abort();
    } else {
        abandoned.fetch_sub(1, Ordering::AcqRel);
    }
    given_up
}

impl<C> Drop for Tasks<C> {
    fn drop(&mut self) {
        for task in self.running.values() {
            give_up(task, &self.abandoned);
        }
    }
}

/// Leaves `RUNNING`, if nobody did before.
fn move_on(fate: &AtomicU8, to: u8) -> bool {
    fate.compare_exchange(RUNNING, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Lives as long as a task's future, which an abort cannot end while it blocks its thread.
struct Trace {
    fate: Arc<AtomicU8>,
    abandoned: Arc<AtomicUsize>,
}

impl Drop for Trace {
    fn drop(&mut self) {
        if self.fate.load(Ordering::Acquire) == ABANDONED {
            self.abandoned.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
