//! From a load to a verdict.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use playhouse_messages::{chunk::Failure, event::EventBody};
use playhouse_plugin_api::store::StoreError;
use tokio::{task::JoinSet, time::Instant};

use super::{
    Load, Place, Progress, Report, auditor, client,
    fleet::{Fleet, PATIENCE},
    judge, monkey,
    place::Opened,
    report::{Fault, percentile},
};
use crate::CancelToken;

/// Between two tellings of progress.
const TELL: Duration = Duration::from_millis(500);

/// How long tasks that end by themselves may take to: delayed restarts, claims that come late.
const LEFT_OVER: Duration = Duration::from_secs(15);

/// Puts a fleet through a load, and judges. `stop` ends it early, in order and with a report.
/// `progress` is told now and then how far it got.
///
/// # Errors
///
/// If the run could not begin: the store does not open, the harness does not start. Whatever goes
/// wrong later is a fault of the report.
pub async fn run(
    load: &Load,
    place: Place,
    stop: &CancelToken,
    progress: &mut (dyn FnMut(&Progress) + Send),
) -> Result<Report, Failure> {
    let began = Instant::now();
    let runtime = tokio::runtime::Handle::current().metrics();
    let tasks_before = runtime.num_alive_tasks();
    let opened = place.open().await.map_err(store_failure)?;
    let fleet = Fleet::start(load, &opened, stop.child()).await?;
    let played = play(&fleet, began, progress).await;
    let ended = tokio::time::timeout(PATIENCE, fleet.harness.shutdown()).await;
    let mut faults = match ended {
        Err(_) => vec![Fault::general("the shutdown does not end")],
        Ok(Err(failure)) => vec![Fault::general(format!("the shutdown: {failure}"))],
        Ok(Ok(())) => Vec::new(),
    };
    played?;
    let left = fleet.harness.world().agents.all();
    if !left.is_empty() {
        faults.push(Fault::general(format!("agents are left after the shutdown: {left:?}")));
    }
    if fleet.slots.taken() > 0 {
        let text = format!("{} slots of children are left taken", fleet.slots.taken());
        faults.push(Fault::general(text));
    }
    faults.extend(still(&runtime, tasks_before).await);
    let mut report = verdict(&fleet, &opened).await;
    report.faults.extend(faults);
    report.elapsed = began.elapsed();
    Ok(report)
}

pub(super) fn store_failure(error: StoreError) -> Failure {
    Failure::new(error.code(), error.to_string())
}

/// The load, and then the rest.
async fn play(
    fleet: &Arc<Fleet>,
    began: Instant,
    progress: &mut (dyn FnMut(&Progress) + Send),
) -> Result<(), Failure> {
    let agents = fleet.enlist().await?;
    fleet.let_loose();
    let mut rng = Rng::with_seed(fleet.load.seed ^ 0x5eed);
    let mut mischief = JoinSet::new();
    if fleet.load.chaos > 0.0 {
        mischief.spawn(monkey::rampage(fleet.clone(), rng.fork()));
    }
    mischief.spawn(auditor::audit(fleet.clone(), rng.fork()));
    let mut clients = JoinSet::new();
    for agent in &agents {
        clients.spawn(client::play(fleet.clone(), agent.agent().clone(), rng.fork()));
    }
    if let Some(duration) = fleet.load.duration {
        let over = fleet.over.clone();
        mischief.spawn(async move {
            if over.race(tokio::time::sleep(duration)).await.is_some() {
                over.cancel(crate::CancelCause::User);
            }
        });
    }
    all(fleet, &mut clients, began, progress).await;
    fleet.over.cancel(crate::CancelCause::User);
    all(fleet, &mut mischief, began, progress).await;
    fleet.store.heal();
    // Children are done when their parents are.
    for agent in agents {
        clients.spawn(client::settle(fleet.clone(), agent.agent().clone()));
    }
    all(fleet, &mut clients, began, progress).await;
    Ok(())
}

/// Waits for all of them; one that panics is a fault.
async fn all(
    fleet: &Fleet,
    tasks: &mut JoinSet<()>,
    began: Instant,
    progress: &mut (dyn FnMut(&Progress) + Send),
) {
    let mut ticks = tokio::time::interval(TELL);
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                None => return,
                Some(Ok(())) => {}
                Some(Err(fault)) => fleet.ledger.fault(Fault::general(format!("a client: {fault}"))),
            },
            _ = ticks.tick() => {
                let told = {
                    let entries = fleet.ledger.entries();
                    Progress {
                        elapsed: began.elapsed(),
                        turns: entries.turn_times.len() as u64,
                        kills: entries.kills.values().sum(),
                        acknowledged: entries.acknowledged(),
                        busy: tasks.len(),
                        faults: entries.faults.len(),
                    }
                };
                progress(&told);
            }
        }
    }
}

/// Nothing of the harness runs any more.
async fn still(runtime: &tokio::runtime::RuntimeMetrics, before: usize) -> Option<Fault> {
    let give_up = Instant::now() + LEFT_OVER;
    loop {
        let tasks = runtime.num_alive_tasks();
        if tasks <= before {
            return None;
        }
        if Instant::now() > give_up {
            let text = format!("{} tasks are left after the shutdown", tasks - before);
            return Some(Fault::general(text));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reads everything again, and holds it against the ledger.
async fn verdict(fleet: &Fleet, opened: &Opened) -> Report {
    let (agents, accounts) = {
        let mut entries = fleet.ledger.entries();
        (std::mem::take(&mut entries.agents), std::mem::take(&mut entries.accounts))
    };
    let mut report = Report { sessions: agents.len() as u64, ..Report::default() };
    let reader = opened.again().await;
    if let Err(error) = &reader {
        report.faults.push(Fault::general(format!("the store does not open again: {error}")));
    }
    for (id, agent) in &agents {
        let (log, account) = (agent.session().log(), accounts.get(id).cloned().unwrap_or_default());
        let turns = log.iter().filter(|event| matches!(event.body, EventBody::TurnStart(_)));
        report.turns += turns.count() as u64;
        report.events += log.len();
        report.acknowledged += account.acknowledged.len() as u64;
        report.tool_runs += account.runs.values().map(|runs| u64::from(*runs)).sum::<u64>();
        report.given_up += u64::from(judge::given_up(&log));
        report.faults.extend(judge::session(id, &log, &account));
        if let Ok(reader) = &reader {
            match reader.read(id).await {
                Ok(stored) => report.faults.extend(judge::stored(id, &log, Some(&stored))),
                Err(StoreError::NotFound { .. }) => {
                    report.faults.extend(judge::stored(id, &log, None));
                }
                Err(error) => {
                    report.faults.push(Fault::of(id, format!("it cannot be read: {error}")))
                }
            }
        }
    }
    for id in accounts.keys().filter(|id| !agents.contains_key(*id)) {
        report
            .faults
            .push(Fault::of(id, "inputs were acknowledged for a session that is not known"));
    }
    let mut entries = fleet.ledger.entries();
    entries.turn_times.sort_unstable();
    Report {
        kills: entries.kills.clone(),
        restarts: fleet.harness.restarts(),
        store_faults: fleet.store.tally(),
        streams_dropped: entries.streams_dropped,
        audits: entries.audits,
        turn_p50: percentile(&entries.turn_times, 50),
        turn_p99: percentile(&entries.turn_times, 99),
        faults: entries.faults.iter().cloned().chain(report.faults).collect(),
        ..report
    }
}
