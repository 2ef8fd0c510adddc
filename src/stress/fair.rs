//! One tree of many busy agents beside a lone one: how much longer the lone one's turns take.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use playhouse_budgets::{FairRequests, Permits};
use playhouse_messages::chunk::Failure;
use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
use playhouse_plugin_api::{
    agent::Agent,
    creation::{AgentHandle, NewAgent},
    options::AgentOptions,
};
use tokio::{task::JoinSet, time::Instant};

use super::report::{Fault, percentile};
use crate::{CancelToken, Harness};

/// What is asked of both.
const PROMPT: &str = "go";

/// How long the tree may take until as many requests run as may.
const WARM_UP: Duration = Duration::from_secs(60);

/// What a lone agent is put beside.
#[derive(Debug, Clone, PartialEq)]
pub struct FairLoad {
    /// How many busy agents the tree has; more than `requests`.
    pub agents: usize,
    /// How many requests may run at once.
    pub requests: usize,
    /// How long the model takes to its first token.
    pub first_token: Duration,
    /// How many turns of the lone agent are measured, alone and beside the tree.
    pub turns: usize,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct FairReport {
    /// The median of the lone agent's turns while nobody else works.
    pub alone: Duration,
    /// The median beside the tree.
    pub beside: Duration,
    /// The longest beside the tree.
    pub longest: Duration,
    /// How many turns the tree had meanwhile.
    pub tree_turns: u64,
    /// How many requests ran, and how many waited, when the lone agent began.
    pub held: usize,
    /// See `held`.
    pub waiting: usize,
    /// Permits that are held after all is over.
    pub held_after: usize,
    /// What went wrong.
    pub faults: Vec<Fault>,
}

impl FairReport {
    /// How much longer a turn takes beside the tree.
    pub fn ratio(&self) -> f64 {
        self.beside.as_secs_f64() / self.alone.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Measures a lone agent alone and beside a tree. `stop` ends it early, with a report.
///
/// # Errors
///
/// If the run could not begin. Whatever goes wrong later is a fault of the report.
pub async fn run_fair(
    load: &FairLoad,
    stop: &CancelToken,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<FairReport, Failure> {
    let fair = FairRequests::new(load.requests);
    let permits = fair.permits().clone();
    let started = crate::minimal().plugin(fair).start().await;
    let harness = started.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let measured = measure(load, &harness, &permits, stop, progress).await;
    let down = harness.shutdown().await;
    let mut report = measured?;
    report.held_after = permits.held();
    if permits.held() + permits.waiting() > 0 {
        report.faults.push(Fault::general(format!("permits are left: {permits:?}")));
    }
    if let Err(failure) = down {
        report.faults.push(Fault::general(format!("the shutdown: {failure}")));
    }
    Ok(report)
}

async fn measure(
    load: &FairLoad,
    harness: &Harness,
    permits: &Permits,
    stop: &CancelToken,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<FairReport, Failure> {
    let first_token = u64::try_from(load.first_token.as_millis()).unwrap_or(u64::MAX);
    let model =
        ScriptedAdapter::new(Script::new().reply(Reply::text("Done.").paced(first_token, 0)));
    let _registration = harness.world().models.register(["scripted"], Arc::new(model))?;
    let options = || AgentOptions::new().model("scripted", "any");
    let lone = harness.create(NewAgent::new(options())).await?;
    let root = harness.create(NewAgent::new(options())).await?;
    let mut report = FairReport::default();

    progress("the lone agent alone");
    let alone = turns(&lone, load.turns, stop, &mut report.faults).await;
    report.alone = percentile(&alone, 50);

    progress("making the tree");
    let mut tree: Vec<AgentHandle> = Vec::with_capacity(load.agents);
    for _ in 0..load.agents {
        if stop.is_cancelled() {
            return Ok(report);
        }
        let new = NewAgent::new(options()).delegated_by(root.agent());
        tree.push(harness.create(new.owned_by(root.scope().clone())).await?);
    }
    let (over, done) = (CancelToken::new(), Arc::new(AtomicU64::new(0)));
    let mut busy = JoinSet::new();
    for agent in &tree {
        busy.spawn(keep_busy(agent.agent().clone(), over.clone(), done.clone()));
    }
    let saturated = async {
        while permits.waiting() < load.requests.min(load.agents - load.requests) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(WARM_UP, stop.race(saturated)).await.is_err() {
        report.faults.push(Fault::general(format!("the tree never filled the cap: {permits:?}")));
    }
    (report.held, report.waiting) = (permits.held(), permits.waiting());

    progress("the lone agent beside the tree");
    let before = done.load(Ordering::Relaxed);
    let beside = turns(&lone, load.turns, stop, &mut report.faults).await;
    report.tree_turns = done.load(Ordering::Relaxed) - before;
    report.beside = percentile(&beside, 50);
    report.longest = beside.last().copied().unwrap_or_default();

    progress("the tree ends its turns");
    over.cancel(crate::CancelCause::User);
    while let Some(ended) = busy.join_next().await {
        report.faults.extend(ended.unwrap_or_else(|fault| Some(Fault::general(fault.to_string()))));
    }
    Ok(report)
}

/// Turns of one agent after the other, and how long each took, the shortest first.
async fn turns(
    agent: &Agent,
    count: usize,
    stop: &CancelToken,
    faults: &mut Vec<Fault>,
) -> Vec<Duration> {
    let mut took = Vec::with_capacity(count);
    while took.len() < count && !stop.is_cancelled() {
        let began = Instant::now();
        faults.extend(turn(agent).await);
        took.push(began.elapsed());
    }
    took.sort();
    took
}

/// Has turns until it is over.
async fn keep_busy(agent: Agent, over: CancelToken, done: Arc<AtomicU64>) -> Option<Fault> {
    while !over.is_cancelled() {
        if let Some(fault) = turn(&agent).await {
            return Some(fault);
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    None
}

async fn turn(agent: &Agent) -> Option<Fault> {
    match agent.prompt(PROMPT).await {
        Ok(outcome) if outcome.is_completed() => None,
        Ok(outcome) => Some(Fault::of(agent.id(), format!("a turn ended {:?}", outcome.reason))),
        Err(error) => Some(Fault::of(agent.id(), format!("a turn failed: {error}"))),
    }
}
