//! The projections of a harness: folded as sessions grow, and cached in its store.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    event::{EventBody, Seq},
};
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    plugin::{Plugin, PluginContext},
    session::{Marks, Session},
    store::Store,
    watch,
};
use tokio::time::{Instant, sleep_until};

use super::{cache, checkpoint::Checkpoint, keeper::Keeper, registry::Projections};
use crate::{stats::SessionStats, title::TitleProjection};

/// The service under which a harness offers its [`Projections`].
pub const PROJECTIONS_SERVICE: &str = "playhouse.projections";

/// The plugin: offers [`Projections`] with the built-in ones, title and statistics.
///
/// In a harness with a store it keeps the states of each session in the store's values, at each
/// turn's end and when the agent is gone, and in between after so many events or so much time.
/// States are written once the events that they hold are durable, so the log is never behind the
/// cache. A write that fails is made up for by the next one; agents notice nothing of it.
#[derive(Debug, Clone)]
pub struct SessionProjections {
    every_events: u64,
    every: Duration,
}

impl SessionProjections {
    /// With states cached at least every 256 events and every 30 seconds.
    pub fn new() -> Self {
        Self { every_events: 256, every: Duration::from_secs(30) }
    }

    /// Caches states also within a turn, after so many events; at least 1.
    #[must_use]
    pub fn every_events(mut self, events: u64) -> Self {
        self.every_events = events.max(1);
        self
    }

    /// Caches states also within a turn, so long after the first event that the cache does not have.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval;
        self
    }
}

impl Default for SessionProjections {
    fn default() -> Self {
        Self::new()
    }
}

impl Plugin for SessionProjections {
    fn name(&self) -> &str {
        "projections"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let settings = self.clone();
        async move {
            let world = ctx.world()?;
            let projections = Projections::new();
            projections.register(&ctx.scope, TitleProjection)?;
            projections.register(&ctx.scope, SessionStats)?;
            ctx.services.provide(&ctx.scope, PROJECTIONS_SERVICE, Arc::new(projections.clone()))?;
            let (scope, store) = (ctx.scope.clone(), world.store.clone());
            let follow = move |agent: Agent| {
                let task = Follower {
                    projections: projections.clone(),
                    store: store.clone(),
                    settings: settings.clone(),
                    session: agent.session().clone(),
                };
                scope.spawn(task.run(agent));
            };
            let start = follow.clone();
            let listener = world.hooks.created.add(&world.scope, move |created| {
                start(created.agent);
                std::future::ready(Ok(()))
            })?;
            ctx.tie(listener)?;
            world.agents.list().into_iter().for_each(follow);
            Ok(())
        }
        .boxed()
    }
}

/// Resolves once the log is durable up to `goal`; never without one.
async fn durable(marks: &mut watch::Receiver<Marks>, goal: Option<Seq>) {
    match goal {
        // The session owns the sender, so that it cannot go while the session is held.
        Some(goal) => drop(marks.wait_for(|marks| marks.durable >= goal).await),
        None => std::future::pending().await,
    }
}

/// Resolves once the agent is gone.
async fn gone(disposal: &mut watch::Receiver<Disposal>) {
    drop(disposal.wait_for(|state| *state == Disposal::Disposed).await);
}

struct Follower {
    projections: Projections,
    store: Option<Arc<dyn Store>>,
    settings: SessionProjections,
    session: Session,
}

impl Follower {
    async fn run(self, agent: Agent) {
        let Self { projections, settings, session, .. } = &self;
        let mut disposal = agent.cell().disposal();
        let start = session.log().len();
        let (mut events, mut marks) = (session.events(start), session.marks());
        let mut keeper = Keeper::new(start, settings.every_events);
        let mut waiting = None;
        let mut overdue = Instant::now() + settings.every;
        projections.catch_up(session);
        loop {
            let goal = keeper.waits_for();
            tokio::select! {
                // What is ready is taken in this order, so that a run can be repeated.
                biased;
                () = durable(&mut marks, goal) => {
                    keeper.wrote(self.save(waiting.take()).await);
                    overdue = Instant::now() + settings.every;
                }
                event = events.next() => {
                    if !keeper.is_dirty() {
                        overdue = Instant::now() + settings.every;
                    }
                    keeper.event(matches!(event.body, EventBody::TurnEnd(_)));
                    while let Some(event) = events.try_next() {
                        keeper.event(matches!(event.body, EventBody::TurnEnd(_)));
                    }
                    projections.catch_up(session);
                }
                () = sleep_until(overdue), if keeper.ticks() => keeper.overdue(),
                () = gone(&mut disposal) => break,
            }
            if keeper.wants() && self.store.is_some() {
                let (checkpoint, len) = self.checkpoint();
                waiting = Some(checkpoint);
                keeper.took(len);
            }
        }
        projections.catch_up(session);
        if keeper.is_dirty() || waiting.is_some() {
            let (checkpoint, len) = self.checkpoint();
            if marks.borrow().durable >= len {
                self.save(Some(checkpoint)).await;
            }
        }
        projections.drop_session(session);
    }

    /// The states now, and how many events they hold.
    fn checkpoint(&self) -> (Checkpoint, Seq) {
        let checkpoint = self.projections.checkpoint(&self.session);
        let len = checkpoint.rows.values().map(|row| row.seq + 1).max().unwrap_or(0);
        (checkpoint, len)
    }

    async fn save(&self, checkpoint: Option<Checkpoint>) -> bool {
        let (Some(store), Some(checkpoint)) = (&self.store, checkpoint) else { return true };
        match cache::save(&**store, self.session.header(), checkpoint).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(session = %self.session.id(), %error, "projections not cached");
                false
            }
        }
    }
}
