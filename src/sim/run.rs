//! From a seed to a verdict.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Once},
    time::Duration,
};

use fastrand::Rng;
use playhouse_messages::event::EventBody;
use playhouse_plugin_api::{delay::delay_by, store::StoredSession};
use playhouse_stores::MemoryStore;

use super::{
    Plan,
    disk::Disk,
    life,
    plan::{Ending, Odds},
    witness::Witness,
};

/// What a seed came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The seed.
    pub seed: u64,
    /// Of all stored logs after each life, in order: two runs of a seed have the same.
    pub hash: u32,
    /// Turns that began.
    pub turns: u64,
    /// Events that were stored.
    pub events: u64,
    /// Lives of the harness.
    pub lives: u64,
    /// Virtual time, in milliseconds.
    pub millis: u64,
    /// How often something was done or went wrong, by name.
    pub tally: BTreeMap<&'static str, u64>,
}

impl Summary {
    /// Whether another run of the seed came to the same.
    ///
    /// # Errors
    ///
    /// Both hashes, if it did not.
    pub fn same_as(&self, other: &Self) -> Result<(), Failed> {
        if self == other {
            return Ok(());
        }
        let (seed, plan) = (self.seed, Plan::of(self.seed).to_string());
        let what = format!("two runs differ: {self:?}, {other:?}");
        Err(Failed { seed, what, plan, lines: Vec::new() })
    }
}

/// A seed whose world was not as it must be.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// What is wrong, first of all.
    pub what: String,
    /// What was planned.
    pub plan: String,
    /// The last that was seen.
    pub lines: Vec<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, what, plan, lines } = self;
        writeln!(f, "seed {seed}: {what}\n\nplan:\n{plan}\nlast:")?;
        lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl std::error::Error for Failed {}

/// Lives through the plan of a seed. `trace` is given every line of what happened, with the virtual
/// time in milliseconds.
///
/// # Errors
///
/// The first thing that must not be.
///
/// # Panics
///
/// Within a tokio runtime: it makes its own.
pub fn run(seed: u64, trace: &mut dyn FnMut(&str)) -> Result<Summary, Failed> {
    let witness = Witness::new(Plan::of(seed), true);
    let summary = play(seed, &witness);
    for line in witness.seen().trace.take().unwrap_or_default() {
        trace(&line);
    }
    summary
}

/// As [`run`], without a trace.
///
/// # Errors
///
/// As [`run`].
pub fn check(seed: u64) -> Result<Summary, Failed> {
    play(seed, &Witness::new(Plan::of(seed), false))
}

fn play(seed: u64, witness: &Arc<Witness>) -> Result<Summary, Failed> {
    quiet_panics();
    PANICS.take();
    let played = catch_unwind(AssertUnwindSafe(|| lives(seed, witness)));
    delay_by(None);
    let fault = witness.seen().fault.clone();
    let panicked = PANICS.take().into_iter().next();
    match (fault.or(panicked), played) {
        (None, Ok(summary)) => Ok(summary),
        (fault, _) => Err(Failed {
            seed,
            what: fault.unwrap_or_else(|| "a panic".to_owned()),
            plan: witness.plan.to_string(),
            lines: witness.lines(),
        }),
    }
}

fn lives(seed: u64, witness: &Arc<Witness>) -> Summary {
    let mut rng = Rng::with_seed(seed ^ 0x0dd5);
    let mut store = MemoryStore::new();
    let mut hasher = crc32fast::Hasher::new();
    let mut stored = Vec::new();
    for ending in &witness.plan.lives {
        let Odds { messages, .. } = witness.plan.odds;
        let mut delays = rng.fork();
        delay_by(Some(Box::new(move || {
            let wait = delays.u32(0..1_000) < messages;
            wait.then(|| Duration::from_millis(delays.u64(0..=5)))
        })));
        let disk = Disk::new(store, witness.plan.odds.clone(), rng.fork());
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let Ok(runtime) = runtime else {
            witness.fail("no runtime");
            break;
        };
        runtime.block_on(async {
            life::live(witness, &disk, ending).await;
            witness.end();
        });
        store = match ending {
            Ending::Crash { power, .. } => disk.after_crash(*power),
            Ending::Shutdown { .. } | Ending::Rest => disk.after_crash(false),
        };
        stored = Disk::new(store.reopen(), Odds::default(), Rng::with_seed(0)).sessions();
        digest(&mut hasher, &stored);
        drop(runtime);
        if witness.seen().fault.is_some() {
            break;
        }
    }
    hasher.update(&witness.now_ms().to_le_bytes());
    let turns = stored
        .iter()
        .flat_map(|session| session.log().unwrap_or_default().iter().cloned().collect::<Vec<_>>());
    let turns = turns.filter(|event| matches!(event.body, EventBody::TurnStart(_))).count() as u64;
    Summary {
        seed,
        hash: hasher.finalize(),
        turns,
        events: stored.iter().map(|session| session.events.len() as u64).sum(),
        lives: witness.plan.lives.len() as u64,
        millis: u64::try_from(witness.now_ms() - 1_000_000).unwrap_or(0),
        tally: witness.seen().tally.clone(),
    }
}

fn digest(hasher: &mut crc32fast::Hasher, stored: &[StoredSession]) {
    for session in stored {
        hasher.update(session.header.id.as_str().as_bytes());
        for event in &session.events {
            hasher.update(event);
        }
    }
}

thread_local! {
    /// Panics that nobody planned.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Planned panics say nothing; all others of a simulation are failures, wherever they are caught.
fn quiet_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let payload = panic.payload();
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or(payload.downcast_ref::<String>().map(String::as_str));
            if text.is_some_and(|text| text.starts_with("simulated: ")) {
                return;
            }
            PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            others(panic);
        }));
    });
}
