//! A tree of agents: each delegates to its children in parallel, and every report reaches the root.
//!
//! Each agent has one turn: it calls a tool, an inner one also the `subagent` tool once for each
//! child, and its answer is how many agents its part of the tree has and the sum of what their tools
//! gave. So the root's answer shows that every agent worked and every report arrived. The tools wait
//! for each other until all have been called: there is a moment in which the whole tree is alive.

mod cancel;
mod forest;
mod meter;
mod model;
mod report;
mod shape;

use futures::StreamExt;
use playhouse_messages::{chunk::Failure, invariants::Invariants};
use playhouse_plugin_api::store::{StoreError, StoreReader, all_sessions};

use self::{forest::Forest, meter::Meter};
pub use self::{
    report::{Cancelled, Grown, Left, TreeProgress, TreeReport},
    shape::Shape,
};
use super::{Place, report::Fault, run::store_failure};
use crate::CancelToken;

/// What a tree is put through.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeLoad {
    /// The widths of its levels.
    pub shape: Shape,
    /// Decides what the tools give, and when the tree is cancelled.
    pub seed: u64,
    /// After it was grown once, so many trees are cancelled, each at a moment of its own.
    pub cancels: usize,
}

/// Grows a tree, and then those that are cancelled, and judges. `stop` ends it early, with a report.
///
/// # Errors
///
/// If the run could not begin: the store does not open, the harness does not start. Whatever goes
/// wrong later is a fault of the report.
pub async fn run_tree(
    load: &TreeLoad,
    place: Place,
    stop: &CancelToken,
    progress: &mut (dyn FnMut(&TreeProgress) + Send),
) -> Result<TreeReport, Failure> {
    let opened = place.clone().open().await.map_err(store_failure)?;
    let forest = Forest::start(load, opened.store.clone()).await?;
    let mut report = TreeReport { agents: load.shape.agents(), ..TreeReport::default() };
    let grown = forest.grow(stop, progress).await;
    let moments = grown.wall;
    report.faults.extend(grown.faults.iter().cloned());
    report.grown = grown;
    let mut rng = fastrand::Rng::with_seed(load.seed ^ 0xca9c);
    for number in 0..load.cancels {
        if stop.is_cancelled() {
            break;
        }
        let after = moments.mul_f64(rng.f64());
        let (cancelled, faults) = cancel::cancel(&forest, &place, number, after, progress).await;
        report.faults.extend(faults);
        report.cancelled.extend(cancelled);
    }
    if let Err(failure) = forest.harness.shutdown().await {
        report.faults.push(Fault::general(format!("the shutdown: {failure}")));
    }
    match opened.again().await {
        Ok(reader) => report.faults.extend(stored(&*reader, &mut report.sessions).await),
        Err(error) => {
            report.faults.push(Fault::general(format!("the store does not open again: {error}")));
        }
    }
    if let Place::Dir { dir, .. } = &place {
        let dir = dir.clone();
        let verify = move || playhouse_stores::verify(&dir, |_| ());
        match tokio::task::spawn_blocking(verify).await {
            Ok(Ok(found)) if found.is_whole() => {}
            Ok(Ok(found)) => report.faults.push(Fault::general(format!("the store: {found}"))),
            Ok(Err(error)) => report.faults.push(Fault::general(format!("verify: {error}"))),
            Err(fault) => report.faults.push(Fault::general(format!("verify: {fault}"))),
        }
    }
    Ok(report)
}

/// Every stored log is valid, and every turn in it has an end.
async fn stored(reader: &dyn StoreReader, sessions: &mut u64) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut all = all_sessions(reader);
    while let Some(listed) = all.next().await {
        let id = match listed {
            Ok(stat) => stat.header.id.clone(),
            Err(error) => {
                faults.push(Fault::general(format!("the store does not list: {error}")));
                break;
            }
        };
        *sessions += 1;
        let judged: Result<bool, StoreError> = match reader.read(&id).await {
            Ok(stored) => stored
                .log()
                .map(|log| Invariants::of(&log).is_ok_and(|invariants| invariants.is_balanced())),
            Err(error) => Err(error),
        };
        match judged {
            Ok(true) => {}
            Ok(false) => faults.push(Fault::of(&id, "its stored log is not valid and closed")),
            Err(error) => faults.push(Fault::of(&id, format!("it cannot be read: {error}"))),
        }
    }
    faults
}
