//! One session of a client: its agent, its place for a prompt, and how far the client was told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol::{
    Client,
    v1::{
        ConnectionTo,
        schema::{self as acp, SessionNotification, SessionUpdate},
    },
};
use base64::{Engine, prelude::BASE64_STANDARD};
use playhouse_messages::{
    attachment::Attachment,
    event::{CancelCause, Seq},
};
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    attachment::AttachmentStore,
    cancel::CancelToken,
};
use tokio::sync::{Semaphore, watch};

use super::{
    slot::Slot,
    updates::{Told, Updates},
};

/// A client, and how much may wait to be written to it.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) client: ConnectionTo<Client>,
    window: Arc<Semaphore>,
    /// The client is given up: what it was not told is in the logs.
    lost: CancelToken,
}

/// The client does not read, or is gone.
#[derive(Debug)]
pub(super) struct ClientGone;

impl Line {
    pub(super) fn new(
        client: ConnectionTo<Client>,
        window: Arc<Semaphore>,
        lost: CancelToken,
    ) -> Self {
        Self { client, window, lost }
    }

    /// Tells the client, once few enough updates wait to be written.
    pub(super) async fn tell(
        &self,
        session: &acp::SessionId,
        update: SessionUpdate,
    ) -> Result<(), ClientGone> {
        let permit = self.lost.race(self.window.acquire()).await;
        // The transport gives it back when the update is written.
        permit.and_then(Result::ok).ok_or(ClientGone)?.forget();
        let told = SessionNotification::new(session.clone(), update);
        self.client.send_notification(told).map_err(|_| ClientGone)
    }
}

/// How far a session's client was told.
#[derive(Debug, Clone)]
pub(super) struct Progress(watch::Sender<Reached>);

#[derive(Debug, Clone, Copy, Default)]
struct Reached {
    seq: Seq,
    /// Nothing more will be told.
    is_over: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self(watch::Sender::default())
    }

    /// Waits until all events before `seq` were told; false if they never will be.
    pub(super) async fn reaches(&self, seq: Seq) -> bool {
        let mut reached = self.0.subscribe();
        let reached = reached.wait_for(|reached| reached.seq >= seq || reached.is_over).await;
        reached.is_ok_and(|reached| reached.seq >= seq)
    }

    fn reached(&self, seq: Seq) {
        self.0.send_modify(|reached| reached.seq = seq);
    }
}

/// Ends the wait of whoever waits, however the telling ends.
struct OverOnDrop<'a>(&'a Progress);

impl Drop for OverOnDrop<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|reached| reached.is_over = true);
    }
}

/// A session of a client. Only this very agent is meant, not another of its id.
pub(super) struct Seat {
    pub(super) agent: Agent,
    pub(super) progress: Progress,
    slot: Mutex<Slot>,
}

impl Seat {
    pub(super) fn new(agent: Agent, progress: Progress) -> Self {
        Self { agent, progress, slot: Mutex::default() }
    }

    pub(super) fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_live(&self) -> bool {
        *self.agent.cell().disposal().borrow() == Disposal::Live
    }

    /// As a client asks: the prompt, and the agent if it has it.
    pub(super) fn cancel(&self) {
        if self.slot().cancel() {
            self.agent.cancel(CancelCause::User);
        }
    }
}

/// Tells a client what happens in a session, from its first event on, until the agent is gone or the
/// client is.
pub(super) fn follow(
    agent: &Agent,
    line: Line,
    progress: Progress,
    replay_until: Seq,
    store: Arc<dyn AttachmentStore>,
) -> impl Future<Output = ()> + Send + 'static {
    // Subscribed before the task runs, so that nothing of the agent's life is missed.
    let session = agent.session().clone();
    let (mut events, mut frames) = (session.events(0), session.frames());
    let mut disposal = agent.cell().disposal();
    let id = acp::SessionId::new(session.id().as_str());
    async move {
        let _over = OverOnDrop(&progress);
        let mut updates = Updates::replaying_until(replay_until);
        loop {
            let (told, seq) = tokio::select! {
                // Chunks are told before the event that settles them.
                biased;
                Some(frame) = frames.next() => (updates.frame(&frame), None),
                event = events.next() => (updates.event(&event), Some(event.seq)),
                _ = disposal.wait_for(|state| *state == Disposal::Disposed) => {
                    // The last events came before the disposal was done.
                    match events.try_next() {
                        Some(event) => (updates.event(&event), Some(event.seq)),
                        None => return,
                    }
                }
            };
            for told in told {
                let update = match told {
                    Told::Update(update) => *update,
                    Told::Image(who, record) => match image(&*store, &record).await {
                        Some(image) => who.update(who.says(image)),
                        None => continue,
                    },
                };
                if let Err(ClientGone) = line.tell(&id, update).await {
                    return;
                }
            }
            if let Some(seq) = seq {
                progress.reached(seq + 1);
            }
        }
    }
}

/// An image with its bytes. One that is lost is left out, and said in the log.
async fn image(
    store: &dyn AttachmentStore,
    record: &serde_json::Value,
) -> Option<acp::ContentBlock> {
    let attachment = Attachment::read(record)?;
    let bytes = match store.get(&attachment.attachment_id).await {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::warn!(image = %attachment.attachment_id, %error, "an image was not told");
            None
        }
    }?;
    let data = BASE64_STANDARD.encode(bytes);
    Some(acp::ContentBlock::Image(acp::ImageContent::new(data, attachment.media_type)))
}
