//! A desk: work on one thing, done one after the other, in the order of the calls.
//!
//! The work blocks, so it runs on tokio's threads for that; different desks run side by side. What was
//! submitted runs to its end, whoever gives up waiting. Each waiting call is one entry of the queue, so
//! callers that wait for their answers bound it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_plugin_api::store::StoreError;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

pub(super) struct Desk<S> {
    runtime: Handle,
    queue: Mutex<Queue<S>>,
    /// What is worked on. Only the desk's worker has it for longer than a look.
    state: Mutex<S>,
    /// What is left when work has panicked in the middle.
    lost: fn() -> S,
}

struct Queue<S> {
    jobs: VecDeque<Job<S>>,
    working: bool,
}

impl<S: Send + 'static> Desk<S> {
    pub(super) fn new(runtime: Handle, state: S, lost: fn() -> S) -> Arc<Self> {
        let queue = Queue { jobs: VecDeque::new(), working: false };
        Arc::new(Self { runtime, queue: Mutex::new(queue), state: Mutex::new(state), lost })
    }

    /// Queues work, now. The future resolves when it is done; dropping it changes nothing.
    pub(super) fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut S) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let (reply, answer) = oneshot::channel();
        let job: Job<S> = Box::new(move |state| {
            // Whoever gave up waiting does not want to know.
            let _ = reply.send(work(state));
        });
        let mut queue = lock(&self.queue);
        queue.jobs.push_back(job);
        if !queue.working {
            queue.working = true;
            let mut worker = Worker { desk: Arc::clone(self), done: false };
            self.runtime.spawn_blocking(move || worker.run());
        }
        drop(queue);
        async move {
            answer.await.unwrap_or_else(|_| {
                let cause = "it panicked, or the runtime has ended; open the session again";
                Err(StoreError::Io {
                    what: "work on a store's file".to_owned(),
                    cause: cause.to_owned(),
                })
            })
        }
        .boxed()
    }

    /// Whether there is nothing to do and nothing to keep, as `is_done` says.
    pub(super) fn is_idle(&self, is_done: impl FnOnce(&S) -> bool) -> bool {
        let queue = lock(&self.queue);
        !queue.working && is_done(&lock(&self.state))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Work that panics does so inside of `catch_unwind`, and its state is replaced.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one who works at a desk until nothing is left.
struct Worker<S: Send + 'static> {
    desk: Arc<Desk<S>>,
    done: bool,
}

impl<S: Send + 'static> Worker<S> {
    fn run(&mut self) {
        loop {
            let job = {
                let mut queue = lock(&self.desk.queue);
                let Some(job) = queue.jobs.pop_front() else {
                    (queue.working, self.done) = (false, true);
                    return;
                };
                job
            };
            let mut state = lock(&self.desk.state);
            if catch_unwind(AssertUnwindSafe(|| job(&mut state))).is_err() {
                *state = (self.desk.lost)();
            }
        }
    }
}

impl<S: Send + 'static> Drop for Worker<S> {
    fn drop(&mut self) {
        if !self.done {
            // The runtime ended before it began: nobody is to wait for what is left.
            let mut queue = lock(&self.desk.queue);
            queue.working = false;
            let left = std::mem::take(&mut queue.jobs);
            drop(queue);
            drop(left);
        }
    }
}
