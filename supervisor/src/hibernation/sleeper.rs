//! Who sends idle agents to sleep: one task for all of them, over a queue ordered by time.

use std::{
    collections::BTreeMap,
    future::ready,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use playhouse_messages::{id::SessionId, machine::Status};
use playhouse_plugin_api::scope::ScopeClosed;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{HibernateError, HibernationPolicy};
use crate::agents::maker::Maker;

/// When to look at whom. An agent has at most one entry, and none once it is gone.
#[derive(Default)]
struct Queue {
    table: Mutex<Table>,
    changed: Notify,
}

#[derive(Default)]
struct Table {
    next: u64,
    due: BTreeMap<(Instant, u64), SessionId>,
    entries: BTreeMap<SessionId, (Instant, u64)>,
}

impl Queue {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, id: &SessionId, at: Instant) {
        let mut table = self.table();
        table.remove(id);
        let key = (at, table.next);
        table.next += 1;
        table.due.insert(key, id.clone());
        table.entries.insert(id.clone(), key);
        let first = table.due.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(table);
        if first {
            self.changed.notify_one();
        }
    }

    fn next(&self) -> Option<Instant> {
        self.table().due.first_key_value().map(|((at, _), _)| *at)
    }

    fn take_due(&self, now: Instant) -> Option<SessionId> {
        let mut table = self.table();
        let entry = table.due.first_entry().filter(|entry| entry.key().0 <= now)?;
        let id = entry.remove();
        table.entries.remove(&id);
        Some(id)
    }
}

impl Table {
    fn remove(&mut self, id: &SessionId) {
        if let Some(key) = self.entries.remove(id) {
            self.due.remove(&key);
        }
    }
}

/// Begins to send agents to sleep, until the maker ends.
pub(crate) fn begin(maker: &Maker, policy: HibernationPolicy) -> Result<(), ScopeClosed> {
    let (queue, world) = (Arc::new(Queue::default()), &maker.world);
    let enter = queue.clone();
    world.hooks.created.add(&world.scope, move |created| {
        if created.agent.blueprint().is_some() {
            enter.set(created.agent.id(), Instant::now() + policy.idle_after);
        }
        ready(Ok(()))
    })?;
    let leave = queue.clone();
    world.hooks.disposed.add(&world.scope, move |agent| leave.table().remove(agent.id()))?;
    maker.means.tasks.spawn(watch(maker.clone(), policy, queue));
    Ok(())
}

async fn watch(maker: Maker, policy: HibernationPolicy, queue: Arc<Queue>) {
    let mut falling = JoinSet::new();
    loop {
        let next = queue.next();
        let due = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // Those that fall are the maker's tasks, which a shutdown awaits.
            () = maker.means.ended.cancelled() => return,
            Some(_) = falling.join_next() => {}
            () = queue.changed.notified() => {}
            () = due, if falling.len() < policy.at_once.max(1) => {}
        }
        while falling.len() < policy.at_once.max(1)
            && let Some(id) = queue.take_due(Instant::now())
        {
            let Some(agent) = maker.world.agents.get(&id) else { continue };
            let now = Instant::now();
            let due = agent.cell().rested_at() + policy.idle_after;
            match agent.status() {
                Status::Idle if due <= now => {
                    let (maker, queue) = (maker.clone(), queue.clone());
                    falling.spawn(async move {
                        let Err(error) = maker.hibernate(&agent).await else { return };
                        match error {
                            HibernateError::Failed { .. } => {
                                tracing::warn!(agent = %id, %error, "an idle agent");
                            }
                            _ => tracing::debug!(agent = %id, %error, "an idle agent stays awake"),
                        }
                        if maker.world.agents.get(&id).is_some() {
                            queue.set(&id, Instant::now() + policy.idle_after);
                        }
                    });
                }
                Status::Idle => queue.set(&id, due),
                Status::Running => queue.set(&id, now + policy.idle_after),
            }
        }
    }
}
