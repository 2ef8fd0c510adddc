//! Jobs on their way to the thread that commits, in the order of the calls.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{EventBatch, StoreError};
use tokio::sync::oneshot;

use super::claims::Claim;

/// The most jobs that one transaction takes.
const COMMIT_JOBS: usize = 256;

/// One thing to do.
pub(crate) enum Job {
    Append {
        claim: Arc<Claim>,
        batch: EventBatch,
    },
    Tail {
        claim: Arc<Claim>,
        attempt: u64,
        part: Bytes,
    },
    /// Store the header of a session that has no events yet.
    Materialize {
        claim: Arc<Claim>,
    },
    Put {
        key: String,
        value: Bytes,
    },
    Remove {
        key: String,
    },
    Delete {
        id: SessionId,
    },
    /// Nothing, in its turn: all jobs before it are durable when it is done.
    Barrier,
    /// The last job.
    Close,
    #[cfg(test)]
    Panic,
}

impl Job {
    fn size(&self) -> usize {
        match self {
            Self::Append { batch, .. } => batch.len_bytes(),
            Self::Tail { part, .. } => part.len(),
            Self::Put { key, value } => key.len() + value.len(),
            _ => 0,
        }
    }

    pub(crate) fn writes(&self) -> bool {
        !matches!(self, Self::Barrier | Self::Close)
    }

    /// The session that it is about.
    pub(crate) fn session(&self) -> Option<&SessionId> {
        match self {
            Self::Append { claim, .. } | Self::Tail { claim, .. } | Self::Materialize { claim } => {
                Some(&claim.id)
            }
            Self::Delete { id } => Some(id),
            _ => None,
        }
    }
}

pub(crate) type Outcome = Result<(), StoreError>;

/// A job and who waits for it.
pub(crate) struct Waiting {
    pub(crate) job: Job,
    reply: oneshot::Sender<Outcome>,
}

impl Waiting {
    pub(crate) fn answer(self, outcome: Outcome) {
        // Whoever gave up waiting does not want to know.
        let _ = self.reply.send(outcome);
    }
}

/// Holds nothing but jobs of calls that wait; the thread takes so many bytes at a time.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Waiting>,
    /// No more jobs come.
    ended: bool,
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job in, now. The future resolves when it is done; dropping it changes nothing.
    pub(crate) fn submit(&self, job: Job) -> BoxFuture<'static, Outcome> {
        let mut state = self.lock();
        if state.ended {
            return ready(Err(StoreError::Closed)).boxed();
        }
        state.ended = matches!(job, Job::Close);
        let (reply, answer) = oneshot::channel();
        state.jobs.push_back(Waiting { job, reply });
        self.changed.notify_one();
        async move { answer.await.unwrap_or(Err(StoreError::Closed)) }.boxed()
    }

    /// No more jobs.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Nobody does jobs any more: those that wait, and all to come, end.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.jobs.clear();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Waits for jobs and takes those of the next transaction; `None` after the last one.
    pub(crate) fn take(&self, bytes_max: usize) -> Option<Vec<Waiting>> {
        let mut state = self.lock();
        while state.jobs.is_empty() {
            if state.ended {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(next) = state.jobs.front() {
            bytes += next.job.size();
            if !taken.is_empty() && (taken.len() >= COMMIT_JOBS || bytes > bytes_max) {
                break;
            }
            taken.extend(state.jobs.pop_front());
        }
        Some(taken)
    }
}
