//! Reading agents along: one task an agent turns what happens to it into one ordered stream.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use playhouse_messages::{
    chunk::Failure,
    event::{Seq, SharedEvent},
    frame::Frame,
    machine::Status,
};
use playhouse_plugin_api::{
    agent::{Agent, AgentFault, Disposal},
    points::CreatedFrom,
    world::World,
};
use tokio::{sync::mpsc, task::JoinSet};

/// How many things may wait for whoever reads along. Readers keep cursors, so a full queue makes
/// them wait and nobody else: events are read later, and chunks come in fewer, larger frames.
const QUEUE: usize = 256;

/// Something happened to an agent.
pub(super) struct Seen {
    pub(super) agent: Agent,
    pub(super) what: What,
}

/// What happened.
pub(super) enum What {
    /// It became live; events from `from` on are told.
    Joined { from: Seq, resumed: bool },
    /// An event was accepted.
    Event(SharedEvent),
    /// Its answer streams.
    Frame(Frame),
    /// Its log is durable up to here, exclusive.
    Durable(Seq),
    /// It runs, or it does not.
    Status(Status),
    /// Something failed.
    Fault(AgentFault),
    /// Nothing of it is left but its log.
    Gone,
}

/// The tasks that read along.
#[derive(Clone)]
pub(super) struct Followers(Arc<Mutex<JoinSet<()>>>);

impl Followers {
    /// Waits until every agent that was followed is gone, and all of it was handed on.
    pub(super) async fn finish(&self) {
        let mut tasks = {
            let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *tasks)
        };
        while tasks.join_next().await.is_some() {}
    }
}

/// Follows every agent that becomes live from now on, from its first event.
///
/// # Errors
///
/// If the world is closed.
pub(super) fn follow_all(world: &Arc<World>) -> Result<(mpsc::Receiver<Seen>, Followers), Failure> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let followers = Followers(Arc::default());
    let tasks = followers.clone();
    let listener = move |created: playhouse_plugin_api::points::Created| {
        let resumed = created.source == CreatedFrom::Resume;
        // What was stored before can be read from the store.
        let from = if resumed { created.agent.session().log().len() } else { 0 };
        let follower = follow(created.agent, from, resumed, sender.clone());
        let mut tasks = tasks.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.spawn(follower);
        while tasks.try_join_next().is_some() {}
        std::future::ready(Ok(()))
    };
    let registered = world.hooks.created.add(&world.scope, listener);
    registered.map_err(|fault| Failure::new("SHUTTING_DOWN", fault.to_string()))?;
    Ok((receiver, followers))
}

fn follow(
    agent: Agent,
    from: Seq,
    resumed: bool,
    to: mpsc::Sender<Seen>,
) -> impl Future<Output = ()> + Send {
    // Subscribed before the task runs, so that nothing of the agent's life is missed.
    let session = agent.session().clone();
    let mut events = session.events(from);
    let mut frames = session.frames();
    let mut marks = session.marks();
    let mut status = agent.watch_status();
    let mut errors = agent.errors();
    let mut disposal = agent.cell().disposal();
    async move {
        let tell = |what| {
            let sending = to.send(Seen { agent: agent.clone(), what });
            async { sending.await.is_ok() }
        };
        if !tell(What::Joined { from, resumed }).await {
            return;
        }
        let mut durable = 0;
        loop {
            let what = tokio::select! {
                // Chunks are shown before the event that settles them.
                biased;
                Some(frame) = frames.next() => What::Frame(frame),
                event = events.next() => What::Event(event),
                Ok(()) = marks.changed() => {
                    let mark = marks.borrow_and_update().durable;
                    if mark == durable {
                        continue;
                    }
                    durable = mark;
                    What::Durable(mark)
                }
                Ok(()) = status.changed() => What::Status(*status.borrow_and_update()),
                Ok(fault) = errors.recv() => What::Fault(fault),
                _ = disposal.wait_for(|state| *state == Disposal::Disposed) => break,
            };
            if !tell(what).await {
                return;
            }
        }
        // Its last events came before its disposal was done.
        while let Some(event) = events.try_next() {
            if !tell(What::Event(event)).await {
                return;
            }
        }
        let mark = marks.borrow().durable;
        if mark != durable && !tell(What::Durable(mark)).await {
            return;
        }
        tell(What::Gone).await;
    }
}
