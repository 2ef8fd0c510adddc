//! Reading agents along: one task an agent turns what happens to it into one ordered stream.

use std::{
    collections::HashSet,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use playhouse_messages::{
    chunk::Failure,
    event::{Seq, SharedEvent},
    frame::Frame,
    machine::Status,
};
use playhouse_plugin_api::{
    agent::{Agent, AgentFault, Disposal},
    points::{Created, CreatedFrom},
    scope::Registration,
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

/// The agents that are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that become live from now on.
    New,
    /// Those that are live too, from here on.
    Live,
}

/// The tasks that read along. Dropping them ends it.
pub(super) struct Followers {
    tasks: Arc<Mutex<Tasks>>,
    listener: Registration,
}

#[derive(Default)]
struct Tasks {
    running: JoinSet<()>,
    /// The agents that are followed, by where they are: one whose creation is just being told is live
    /// already.
    followed: HashSet<usize>,
}

impl Followers {
    /// Waits until every agent that was followed is gone, and all of it was handed on.
    pub(super) async fn finish(self) {
        self.listener.remove();
        let mut running = std::mem::take(&mut lock(&self.tasks).running);
        while running.join_next().await.is_some() {}
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        self.listener.remove();
    }
}

fn lock(tasks: &Mutex<Tasks>) -> MutexGuard<'_, Tasks> {
    // Nothing that can panic runs under it.
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Follows every agent that becomes live from now on, from its first event, and if asked for those
/// that are live.
///
/// # Errors
///
/// If the world is closed.
pub(super) fn follow(
    world: &Arc<World>,
    which: Which,
) -> Result<(mpsc::Receiver<Seen>, Followers), Failure> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let tasks = Arc::<Mutex<Tasks>>::default();
    let start = {
        // The tasks hold no way back to themselves.
        let tasks = Arc::downgrade(&tasks);
        move |agent: Agent, from, resumed| {
            let Some(shared) = tasks.upgrade() else { return };
            let mut this = lock(&shared);
            let at = Arc::as_ptr(agent.cell()) as usize;
            if this.followed.insert(at) {
                let (tasks, reading) = (tasks.clone(), read(agent, from, resumed, sender.clone()));
                this.running.spawn(async move {
                    // It holds the agent to its end, so that no other one can be at its place.
                    let _agent = reading.await;
                    if let Some(tasks) = tasks.upgrade() {
                        lock(&tasks).followed.remove(&at);
                    }
                });
            }
            while this.running.try_join_next().is_some() {}
        }
    };
    let created = start.clone();
    let listener = move |told: Created| {
        let resumed = told.source == CreatedFrom::Resume;
        // What was stored before can be read from the store.
        let from = if resumed { told.agent.session().log().len() } else { 0 };
        created(told.agent, from, resumed);
        std::future::ready(Ok(()))
    };
    let listener = world.hooks.created.add(&world.scope, listener);
    let listener = listener.map_err(|fault| Failure::new("SHUTTING_DOWN", fault.to_string()))?;
    if which == Which::Live {
        for agent in world.agents.list() {
            let from = agent.session().log().len();
            start(agent, from, true);
        }
    }
    Ok((receiver, Followers { tasks, listener }))
}

/// Reads one agent along to its end, and gives it back.
fn read(
    agent: Agent,
    from: Seq,
    resumed: bool,
    to: mpsc::Sender<Seen>,
) -> impl Future<Output = Agent> + Send {
    // Subscribed before the task runs, so that nothing of the agent's life is missed.
    let session = agent.session().clone();
    let mut events = session.events(from);
    let mut frames = session.frames();
    let mut marks = session.marks();
    let mut status = agent.watch_status();
    let mut errors = agent.errors();
    let mut disposal = agent.cell().disposal();
    let followed = agent.clone();
    let reading = async move {
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
    };
    async move {
        reading.await;
        followed
    }
}
