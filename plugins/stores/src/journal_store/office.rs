//! The office: how a job reaches the committer of the moment, and its answer comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_plugin_api::store::StoreError;
use ractor::{ActorId, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::committer::CommitterMessage;
use super::core::Core;
use super::job::{Item, Job, Outcome};
use super::keeper::{KeeperMessage, Post};

/// What a store and its session writers share. When the last of them is dropped, the actors end.
pub(crate) struct Office {
    pub(crate) core: Arc<Core>,
    pub(crate) post: Arc<watch::Sender<Post>>,
    pub(crate) keeper: ActorRef<KeeperMessage>,
    /// One permit a byte that is accepted and not written.
    room: Arc<Semaphore>,
    room_bytes: usize,
    /// Jobs that wait for room. While there are any, none may overtake them.
    waiting: AtomicUsize,
}

/// A job on its way.
struct Sent {
    to: ActorId,
    answer: oneshot::Receiver<Outcome>,
}

impl Office {
    pub(crate) fn new(
        core: Arc<Core>,
        post: Arc<watch::Sender<Post>>,
        keeper: ActorRef<KeeperMessage>,
        room_bytes: usize,
    ) -> Self {
        let room_bytes = room_bytes.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self {
            core,
            post,
            keeper,
            room: Arc::new(Semaphore::new(room_bytes)),
            room_bytes,
            waiting: AtomicUsize::new(0),
        }
    }

    fn permits(&self, job: &Job) -> u32 {
        // A job that is larger than all the room takes all of it. Fits by `new`'s clamp.
        u32::try_from(job.size().min(self.room_bytes)).unwrap_or(u32::MAX)
    }

    /// Queues the job now if there is room, so that jobs keep the order of the calls; else when the
    /// future is polled and room is made. The future resolves when the job is done. If the committer
    /// dies first, the job is sent to the next one: every job may be done twice.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> BoxFuture<'static, Outcome> {
        let first = self.try_send(&job);
        let office = Arc::clone(self);
        async move {
            let mut sent = match first {
                Some(sent) => sent,
                None => {
                    let waiting = Waiting::new(&office);
                    let sent = office.send(&job, None).await;
                    drop(waiting);
                    sent?
                }
            };
            loop {
                match sent.answer.await {
                    Ok(outcome) => return outcome,
                    Err(_) => sent = office.send(&job, Some(sent.to)).await?,
                }
            }
        }
        .boxed()
    }

    fn try_send(&self, job: &Job) -> Option<Sent> {
        if self.waiting.load(Ordering::Acquire) > 0 {
            return None;
        }
        let room = Arc::clone(&self.room);
        let permit = room.try_acquire_many_owned(self.permits(job)).ok()?;
        let Post::Filled(committer) = self.post.borrow().clone() else { return None };
        cast(&committer, job, permit)
    }

    /// Waits for room and for a committer other than `dead`.
    async fn send(&self, job: &Job, dead: Option<ActorId>) -> Result<Sent, StoreError> {
        let mut post = self.post.subscribe();
        let mut dead = dead;
        loop {
            let committer = {
                let found = post.wait_for(|post| match post {
                    Post::Vacant => false,
                    Post::Filled(committer) => Some(committer.get_id()) != dead,
                    Post::Abolished(_) => true,
                });
                match &*found.await.map_err(|_| StoreError::Closed)? {
                    Post::Filled(committer) => committer.clone(),
                    Post::Abolished(error) => return Err(error.clone()),
                    Post::Vacant => continue,
                }
            };
            let room = Arc::clone(&self.room);
            let permit =
                room.acquire_many_owned(self.permits(job)).await.map_err(|_| StoreError::Closed)?;
            match cast(&committer, job, permit) {
                Some(sent) => return Ok(sent),
                None => dead = Some(committer.get_id()),
            }
        }
    }

    /// Says that the store takes no jobs any more.
    pub(crate) fn abolish(&self, error: StoreError) {
        self.post.send_replace(Post::Abolished(error));
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.abolish(StoreError::Closed);
        // Its committer ends with it, and the desk when that is gone.
        self.keeper.stop(None);
    }
}

fn cast(
    committer: &ActorRef<CommitterMessage>,
    job: &Job,
    permit: OwnedSemaphorePermit,
) -> Option<Sent> {
    let (reply, answer) = oneshot::channel();
    let item = Item { job: job.clone(), reply, permit: Some(permit) };
    committer.cast(CommitterMessage::Submit(item)).ok()?;
    Some(Sent { to: committer.get_id(), answer })
}

/// Counts a job that waits, for as long as it does.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(office: &'a Office) -> Self {
        office.waiting.fetch_add(1, Ordering::AcqRel);
        Self(&office.waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
