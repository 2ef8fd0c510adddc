//! The tray: jobs in the order in which they were given, until they are answered.
//!
//! It bounds the bytes that are with the committer, and gives everything that is unanswered to the
//! next committer, in order, when one has died. So a job may be done twice, and none is lost or
//! overtaken.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_plugin_api::store::StoreError;
use ractor::ActorRef;
use tokio::sync::{oneshot, watch};

use super::committer::CommitterMessage;
use super::job::{Item, Job, Outcome};

/// Who takes jobs.
#[derive(Clone)]
pub(crate) enum Post {
    /// Nobody now; somebody will.
    Vacant,
    /// This committer.
    Filled(ActorRef<CommitterMessage>),
    /// Nobody any more, and why.
    Abolished(StoreError),
}

pub(crate) struct Tray {
    state: Mutex<State>,
    /// Changed only under the lock.
    post: watch::Sender<Post>,
    room: usize,
}

struct State {
    /// By ticket, which is the order.
    jobs: BTreeMap<u64, Waiting>,
    next_ticket: u64,
    /// The first ticket that the committer does not have.
    unsent: u64,
    /// Bytes that may still go to the committer.
    free: usize,
}

struct Waiting {
    job: Job,
    reply: oneshot::Sender<Outcome>,
    sent: bool,
}

impl Tray {
    /// A tray that lets about `room` bytes be with the committer at once.
    pub(crate) fn new(room: usize) -> Self {
        let room = room.max(1);
        let state = State { jobs: BTreeMap::new(), next_ticket: 0, unsent: 0, free: room };
        Self { state: Mutex::new(state), post: watch::Sender::new(Post::Vacant), room }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who takes jobs, for tests that wait for a change.
    #[cfg(test)]
    pub(crate) fn post(&self) -> watch::Receiver<Post> {
        self.post.subscribe()
    }

    /// Puts a job in, now. The future resolves when it is done; dropping it changes nothing.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> BoxFuture<'static, Outcome> {
        let (reply, answer) = oneshot::channel();
        let mut state = self.lock();
        if let Post::Abolished(error) = &*self.post.borrow() {
            let error = error.clone();
            return async move { Err(error) }.boxed();
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.jobs.insert(ticket, Waiting { job, reply, sent: false });
        self.pump(&mut state);
        drop(state);
        async move { answer.await.unwrap_or(Err(StoreError::Closed)) }.boxed()
    }

    /// A job's end. One that was done twice has its second end ignored.
    pub(crate) fn answer(self: &Arc<Self>, ticket: u64, outcome: Outcome) {
        let mut state = self.lock();
        if let Some(waiting) = state.jobs.remove(&ticket) {
            if waiting.sent {
                state.free += self.share(&waiting.job);
            }
            // Whoever gave up waiting does not want to know.
            let _ = waiting.reply.send(outcome);
            self.pump(&mut state);
        }
    }

    /// The committer is gone.
    pub(crate) fn vacate(&self) {
        let _state = self.lock();
        if !matches!(&*self.post.borrow(), Post::Abolished(_)) {
            self.post.send_replace(Post::Vacant);
        }
    }

    /// A new committer takes over, and gets all that is unanswered.
    pub(crate) fn fill(self: &Arc<Self>, committer: ActorRef<CommitterMessage>) {
        let mut state = self.lock();
        if matches!(&*self.post.borrow(), Post::Abolished(_)) {
            return;
        }
        self.post.send_replace(Post::Filled(committer));
        for waiting in state.jobs.values_mut() {
            waiting.sent = false;
        }
        state.free = self.room;
        state.unsent = 0;
        self.pump(&mut state);
    }

    /// No more jobs: all that are unanswered, and all to come, end with `error`.
    pub(crate) fn abolish(&self, error: StoreError) {
        let mut state = self.lock();
        self.post.send_replace(Post::Abolished(error.clone()));
        for (_, waiting) in std::mem::take(&mut state.jobs) {
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    pub(crate) fn abolished(&self) -> Option<StoreError> {
        match &*self.post.borrow() {
            Post::Abolished(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// What a job takes of the room; one that is larger than the room takes all of it.
    fn share(&self, job: &Job) -> usize {
        job.size().min(self.room)
    }

    /// Gives the committer what there is room for.
    fn pump(self: &Arc<Self>, state: &mut State) {
        let Post::Filled(committer) = &*self.post.borrow() else { return };
        let State { jobs, unsent, free, .. } = state;
        for (&ticket, waiting) in jobs.range_mut(*unsent..) {
            let share = self.share(&waiting.job);
            if share > *free {
                return;
            }
            let item =
                Item { job: waiting.job.clone(), answer_to: Some((Arc::clone(self), ticket)) };
            if committer.cast(CommitterMessage::Submit(item)).is_err() {
                // It is dead; its successor gets everything.
                return;
            }
            *free -= share;
            waiting.sent = true;
            *unsent = ticket + 1;
        }
    }
}
