//! Many agents that hibernate: what each costs in memory, and how soon one answers.
//!
//! Every agent is made from a blueprint, has a turn, and hibernates; so many live at once and no
//! more. Then some are woken by a prompt, and their history is held against what they were told.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use playhouse_messages::{chunk::Failure, event::EventBody, id::SessionId};
use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
use playhouse_plugin_api::blueprint::Blueprint;
use tokio::{task::JoinSet, time::Instant};

use super::{Fault, Place, fleet::PATIENCE, report::percentile};
use crate::{AgentOptions, CancelToken, Harness, NewAgent};

/// The blueprint of all of them.
const SLEEPER: &str = "sleeper";

/// What the model answers.
const ANSWER: &str = "I will remember that.";

/// How many agents are put to sleep, and how many are woken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HibernatedLoad {
    /// How many agents; at least 1.
    pub agents: usize,
    /// How many of them live at the same time, at most; at least 1.
    pub live: usize,
    /// How many are woken in the end, at random.
    pub wakes: usize,
    /// Decides which.
    pub seed: u64,
}

impl Default for HibernatedLoad {
    fn default() -> Self {
        Self { agents: 10_000, live: 256, wakes: 1_000, seed: 0 }
    }
}

/// What it came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HibernatedReport {
    /// How many agents hibernate.
    pub agents: usize,
    /// How long it took to make them, give each its turn, and put them to sleep.
    pub making: Duration,
    /// Bytes of memory that the process held before the first agent, once so many as live at a time
    /// had come and gone; `None` where it cannot be told.
    pub memory_before: Option<u64>,
    /// And when all were asleep.
    pub memory_after: Option<u64>,
    /// How many were woken.
    pub wakes: usize,
    /// Half of the prompts were answered within this, the waking included.
    pub wake_p50: Duration,
    /// And 99 of 100.
    pub wake_p99: Duration,
    /// What must not be.
    pub faults: Vec<Fault>,
}

impl HibernatedReport {
    /// By how many bytes the process has grown for each agent; below 0 if it has shrunk.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn bytes_an_agent(&self) -> Option<f64> {
        let grown = self.memory_after? as f64 - self.memory_before? as f64;
        Some(grown / self.agents.max(1) as f64)
    }
}

/// Bytes of memory that the process holds now. Linux alone tells.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Puts agents to sleep, wakes some, and judges. `stop` ends it early. `progress` is told now and
/// then how many are asleep.
///
/// # Errors
///
/// If the run could not begin. Whatever goes wrong later is a fault of the report.
pub async fn hibernated(
    load: &HibernatedLoad,
    place: Place,
    stop: &CancelToken,
    progress: &mut (dyn FnMut(usize) + Send),
) -> Result<HibernatedReport, Failure> {
    let opened =
        place.open().await.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let options = AgentOptions::new().model("scripted", "any");
    let builder = crate::base().shared_store(opened.store.clone());
    let started = builder.blueprint(SLEEPER, Blueprint::new(options)).start().await;
    let harness = started.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let model = ScriptedAdapter::new(Script::new().reply(Reply::text(ANSWER)));
    model.stage().record(false);
    // The registration lasts as long as the harness.
    let registered = harness.world().models.register(["scripted"], Arc::new(model));
    let _ = registered.map_err(|error| Failure::new(error.code(), error.to_string()))?;

    // As many as live at once come first, so that what they all share, code and all, is there.
    let mut report = HibernatedReport::default();
    put_to_sleep(load, "warm-up", load.live, &harness, stop, &mut report, &mut |_| ()).await;
    report = HibernatedReport {
        memory_before: resident_bytes(),
        faults: report.faults,
        ..HibernatedReport::default()
    };
    let began = Instant::now();
    put_to_sleep(load, SLEEPER, load.agents, &harness, stop, &mut report, progress).await;
    report.making = began.elapsed();
    report.memory_after = resident_bytes();
    let left = harness.world().agents.all();
    if !left.is_empty() {
        report.faults.push(Fault::general(format!("{} agents are still awake", left.len())));
    }
    wake_some(load, &harness, stop, &mut report).await;
    match tokio::time::timeout(PATIENCE, harness.shutdown()).await {
        Err(_) => report.faults.push(Fault::general("the shutdown does not end")),
        Ok(Err(failure)) => report.faults.push(Fault::general(format!("the shutdown: {failure}"))),
        Ok(Ok(())) => {}
    }
    Ok(report)
}

fn id(kind: &str, agent: usize) -> SessionId {
    format!("{kind}-{agent}").into()
}

fn note(agent: usize) -> String {
    format!("Remember the number {agent}.")
}

async fn put_to_sleep(
    load: &HibernatedLoad,
    kind: &'static str,
    agents: usize,
    harness: &Harness,
    stop: &CancelToken,
    report: &mut HibernatedReport,
    progress: &mut (dyn FnMut(usize) + Send),
) {
    let mut agents = 0..agents;
    let mut falling = JoinSet::new();
    loop {
        while falling.len() < load.live.max(1)
            && !stop.is_cancelled()
            && let Some(agent) = agents.next()
        {
            let harness = harness.clone();
            falling.spawn(async move { (agent, one_turn(&harness, kind, agent).await) });
        }
        match falling.join_next().await {
            None => return,
            Some(Ok((_, Ok(())))) => {
                report.agents += 1;
                progress(report.agents);
            }
            Some(Ok((agent, Err(failure)))) => {
                report.faults.push(Fault::of(&id(kind, agent), failure.to_string()));
            }
            Some(Err(fault)) => report.faults.push(Fault::general(fault.to_string())),
        }
    }
}

async fn one_turn(harness: &Harness, kind: &str, agent: usize) -> Result<(), Failure> {
    let made = harness.create(NewAgent::blueprint(SLEEPER).id(id(kind, agent))).await?;
    let outcome = made.prompt(note(agent)).await?;
    if outcome.text != ANSWER {
        let text = format!("the turn ended as {:?} with \"{}\"", outcome.reason, outcome.text);
        return Err(Failure::new("WRONG_ANSWER", text));
    }
    made.when_idle().await?;
    Ok(harness.hibernate(made.id()).await?)
}

async fn wake_some(
    load: &HibernatedLoad,
    harness: &Harness,
    stop: &CancelToken,
    report: &mut HibernatedReport,
) {
    let mut rng = Rng::with_seed(load.seed);
    let mut times = Vec::new();
    for _ in 0..load.wakes {
        if stop.is_cancelled() || report.agents == 0 {
            break;
        }
        let agent = rng.usize(0..load.agents);
        let (key, began) = (id(SLEEPER, agent), Instant::now());
        let answered = tokio::time::timeout(PATIENCE, harness.prompt(&key, "Which number?"));
        let fault = match answered.await {
            Err(_) => Some("it does not answer".to_owned()),
            Ok(Err(error)) => Some(error.to_string()),
            Ok(Ok(outcome)) if outcome.text != ANSWER => {
                Some(format!("its turn ended as {:?}", outcome.reason))
            }
            Ok(Ok(_)) => {
                times.push(began.elapsed());
                remembers(harness, agent).await.err()
            }
        };
        report.faults.extend(fault.map(|fault| Fault::of(&key, fault)));
        report.wakes += 1;
    }
    times.sort_unstable();
    (report.wake_p50, report.wake_p99) = (percentile(&times, 50), percentile(&times, 99));
}

/// Whether all that was said to an agent stands in its log, each once and in order; then it sleeps on.
async fn remembers(harness: &Harness, agent: usize) -> Result<(), String> {
    let Some(woken) = harness.agent(&id(SLEEPER, agent)) else {
        return Err("it is not live after its answer".to_owned());
    };
    let log = woken.session().log();
    let said = log.iter().filter_map(|event| match &event.body {
        EventBody::UserMessage(user) => Some(user.text()),
        EventBody::AssistantMessage(answer) => Some(answer.message.text()),
        _ => None,
    });
    let said: Vec<_> = said.collect();
    let first = [note(agent), ANSWER.to_owned()];
    let later = ["Which number?".to_owned(), ANSWER.to_owned()];
    let whole = said.len() >= 4
        && said[..2] == first
        && said[2..].chunks(2).all(|exchange| exchange == later);
    if !whole {
        return Err(format!("its history is not whole: {said:?}"));
    }
    woken.when_idle().await.map_err(|error| error.to_string())?;
    harness.hibernate(woken.id()).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_fall_asleep_and_those_that_wake_remember() {
        let load = HibernatedLoad { agents: 20, live: 4, wakes: 10, seed: 3 };
        let report = hibernated(&load, Place::Memory, &CancelToken::new(), &mut |_| ()).await;
        let report = report.unwrap();
        assert_eq!((report.agents, report.wakes, &report.faults[..]), (20, 10, &[][..]));
        assert_eq!(report.bytes_an_agent().is_some(), cfg!(target_os = "linux"));
    }
}
