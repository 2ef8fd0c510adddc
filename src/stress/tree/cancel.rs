//! A tree that is cancelled while it grows or reports, and what the least would have cost.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use playhouse_messages::{
    chunk::Failure, event::SharedEvent, header::SessionHeader, id::SessionId, machine::Status,
};
use playhouse_plugin_api::{
    agent::Agent,
    store::{EventBatch, SessionWriter, Store},
};
use tokio::{sync::broadcast, task::JoinSet, time::Instant};

use super::{Cancelled, TreeProgress, forest::Forest, model::prompt, shape::Node};
use crate::{
    CancelCause,
    stress::{Place, report::Fault, run::store_failure},
    testing::checks,
};

/// Grows a tree, cancels it after so long, and judges what is left of it.
pub(super) async fn cancel(
    forest: &Forest,
    place: &Place,
    number: usize,
    after: Duration,
    progress: &mut (dyn FnMut(&TreeProgress) + Send),
) -> (Option<Cancelled>, Vec<Fault>) {
    let mut faults = Vec::new();
    let tree = match forest.plant().await {
        Ok(tree) => tree,
        Err(failure) => {
            return (None, vec![Fault::general(format!("the root is not made: {failure}"))]);
        }
    };
    if let Err(fault) = tree.root.followup(prompt(Node::ROOT)).await {
        return (None, vec![Fault::of(tree.root.id(), fault.to_string())]);
    }
    let moment = tokio::time::sleep_until(tree.began + after);
    forest.watch(&tree, number + 1, progress, moment).await;
    let lens: HashMap<SessionId, u64> = forest
        .born()
        .iter()
        .map(|agent| (agent.id().clone(), agent.session().log().len()))
        .collect();
    let began = Instant::now();
    let cancelling = tree.root.cancel_tree(CancelCause::User);
    let told = began.elapsed();
    let cancelled = cancelling.await;
    let took = began.elapsed();
    let now_live = forest.harness.agents();
    for id in &cancelled.unfinished {
        faults.push(Fault::of(id, "it did not stop in time"));
    }
    for agent in now_live.iter().filter(|agent| agent.status() != Status::Idle) {
        faults.push(Fault::of(agent.id(), "it runs after the cancel of its tree has returned"));
    }
    let born = std::mem::take(&mut *forest.born());
    let mut appended = Vec::new();
    for agent in &born {
        let log = agent.session().log();
        if !checks::balanced(&log) {
            faults.push(Fault::of(agent.id(), "its log is not valid and closed"));
        }
        let from = lens.get(agent.id()).copied().unwrap_or(0);
        appended.push(log.range(from..log.len()).cloned().collect::<Vec<_>>());
    }
    faults.extend(unstored(forest, &born).await);
    let events = appended.iter().map(|events| events.len() as u64).sum();
    let bytes = appended.iter().flatten().map(|event| event.json_len()).sum();
    drop(born);
    let (_, _, left) = forest.fell(tree).await;
    faults.extend(left);
    let reached = cancelled.reached;
    let bare = match bare(place, number, reached, appended).await {
        Ok(bare) => bare,
        Err(failure) => {
            faults.push(Fault::general(format!("the bare broadcast: {failure}")));
            return (None, faults);
        }
    };
    (Some(Cancelled { after, reached, told, took, events, bytes, bare }), faults)
}

/// With strict durability an agent that is idle or gone has all of its log in the store.
async fn unstored(forest: &Forest, born: &[Agent]) -> Vec<Fault> {
    let Some(store) = &forest.harness.world().store else { return Vec::new() };
    let mut faults = Vec::new();
    for agent in born {
        let events = usize::try_from(agent.session().log().len()).unwrap_or(usize::MAX);
        let kept = match store.read(agent.id()).await {
            Ok(stored) => checks::kept(agent.session(), Some(&stored), events),
            Err(error) => Err(error.to_string()),
        };
        faults.extend(kept.err().map(|fault| Fault::of(agent.id(), fault)));
    }
    faults
}

/// How long it takes to tell so many tasks by a broadcast, and them to append and sync the same
/// events through the same kind of store.
async fn bare(
    place: &Place,
    number: usize,
    tasks: usize,
    appended: Vec<Vec<SharedEvent>>,
) -> Result<Duration, Failure> {
    let beside = beside(place, number);
    let store: Arc<dyn Store> = beside.clone().open().await.map_err(store_failure)?.store;
    let (tell, _) = broadcast::channel(1);
    let done = Arc::new(AtomicU64::new(0));
    let mut waiting = JoinSet::new();
    let mut appended = appended.into_iter();
    for task in 0..tasks {
        let header = Arc::new(SessionHeader::new(SessionId::from(format!("bare-{task}")), 0));
        let writer = store.create(&header, 0).await.map_err(store_failure)?;
        let events = renumbered(appended.next().unwrap_or_default());
        let (mut told, done) = (tell.subscribe(), done.clone());
        waiting.spawn(async move {
            // The sender outlives the wait.
            let _ = told.recv().await;
            let stored = keep(&*writer, events).await;
            done.fetch_add(1, Ordering::Relaxed);
            stored.map(|()| writer)
        });
    }
    tokio::task::yield_now().await;
    let began = Instant::now();
    let _ = tell.send(());
    let mut writers = Vec::new();
    while let Some(ended) = waiting.join_next().await {
        writers.push(ended.map_err(|fault| Failure::new("PANIC", fault.to_string()))??);
    }
    let took = began.elapsed();
    drop(writers);
    store.close().await.map_err(store_failure)?;
    if let Place::Dir { dir, .. } = beside {
        // A directory that stays costs space and nothing else.
        let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(dir)).await;
    }
    Ok(took)
}

async fn keep(writer: &dyn SessionWriter, events: Vec<SharedEvent>) -> Result<(), Failure> {
    if !events.is_empty() {
        writer.append(EventBatch::encode(&events)).await.map_err(store_failure)?;
        writer.flush().await.map_err(store_failure)?;
    }
    Ok(())
}

/// The same events, as the first of a log.
fn renumbered(events: Vec<SharedEvent>) -> Vec<SharedEvent> {
    let numbered = (0..).zip(events);
    numbered
        .map(|(seq, event)| {
            let mut event = (*event).clone();
            event.seq = seq;
            Arc::new(event)
        })
        .collect()
}

/// A place of the same kind, for one run.
fn beside(place: &Place, number: usize) -> Place {
    match place {
        Place::Memory => Place::Memory,
        Place::Dir { dir, config } => {
            let mut name = dir.file_name().unwrap_or_default().to_owned();
            name.push(format!(".bare-{number}"));
            let dir: PathBuf = dir.with_file_name(name);
            Place::Dir { dir, config: config.clone() }
        }
    }
}
