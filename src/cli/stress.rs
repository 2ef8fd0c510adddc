//! `playhouse stress`: a fleet under load, and what was lost.

mod fair;
mod hibernated;
mod tree;

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use playhouse_stores::{StoreConfig, StoreKind};
use serde_json::json;

use self::hibernated::Hibernated;
use super::{
    exit::{CliError, Exit},
    output::{Format, Out, note},
    signals,
};
use crate::stress::{self, Fault, Load, Place, Progress, Report};

/// Between two lines of progress where nobody looks at a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Puts a fleet of agents under load, kills their actors, and checks that nothing was lost or done
/// twice; exits with 1 if it was.
///
/// The agents use a scripted model: they stream, call tools, delegate, are steered and cancelled. With
/// `--chaos` actors of every kind are killed, the store fails, is slow and full, and streams are cut.
/// In the end every agent must be idle and answer, and every input that was acknowledged must stand
/// in the log, and in the store once it is opened again.
///
/// With `--tree` it grows a tree of agents instead, each with a turn, a tool call and a report, and
/// says what an agent costs; with `--cancel-at` it then cancels further trees at random moments.
///
/// With `--fair` it caps how many requests run at once, and measures the turns of a lone agent alone and
/// beside one tree of busy agents; only a leaked permit or a failed turn is a fault.
#[derive(Debug, clap::Args)]
pub struct Stress {
    /// How many agents.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    agents: u32,
    /// How many turns each is asked for [default: 10; with --duration: as many as there is time for].
    #[arg(long, value_name = "N")]
    turns: Option<u64>,
    /// Where sessions are kept: a directory, or `memory` [default: memory; with --tree: a directory
    /// that is removed after the run].
    #[arg(long, value_name = "DIR|memory")]
    store: Option<PathBuf>,
    /// The kind of store in the directory [default: journal].
    #[arg(long, value_name = "KIND")]
    store_kind: Option<StoreKind>,
    /// Decides what each agent is put through, what is killed and how the store fails; drawn if
    /// absent. The interleaving is the scheduler's.
    #[arg(long, env = "PLAYHOUSE_SEED", value_name = "S")]
    seed: Option<u64>,
    /// Kills per agent and second; above 0 the store fails and streams are cut, too.
    #[arg(long, value_name = "RATE", default_value_t = 0.0, value_parser = rate)]
    chaos: f64,
    /// Asks for no more turns after so many seconds.
    #[arg(long, value_name = "SECS")]
    duration: Option<u64>,
    /// How the result is written.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Tool calls of one answer.
    #[arg(long, value_name = "N", default_value_t = 2)]
    tools: u16,
    /// Chunks of one answer.
    #[arg(long, value_name = "N", default_value_t = 20)]
    chunks: u16,
    /// Children that an agent delegates to at once.
    #[arg(long, value_name = "N", default_value_t = 2)]
    children: u16,
    #[command(flatten)]
    tree: tree::TreeArgs,
    #[command(flatten)]
    fair: fair::FairArgs,
    #[command(flatten)]
    sleepers: Hibernated,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1000.0).contains(&rate) {
        Ok(rate)
    } else {
        Err("rates are from 0 to 1000".to_owned())
    }
}

impl Stress {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If the run could not begin, or standard output cannot be written to.
    pub async fn run(self) -> Result<Exit, CliError> {
        if self.tree.is_asked_for() {
            return tree::run(self).await;
        }
        if self.fair.is_asked_for() {
            return fair::run(self).await;
        }
        let place = self.place(self.store.as_deref().unwrap_or(Path::new("memory")))?;
        let stop = signals::listen()?;
        let load = self.load();
        if let Some(agents) = self.sleepers.hibernated {
            return self.sleepers.run(agents, place, load.seed, self.format, &stop).await;
        }
        let mut out = Out::new();
        if self.format == Format::Jsonl {
            out.line(&json!({"kind": "start", "seed": load.seed}).to_string())?;
            out.flush()?;
        }
        let mut told = Told::new(&load);
        let ran = stress::run(&load, place, &stop, &mut |progress| told.tell(progress)).await;
        told.bar.finish_and_clear();
        let report = ran.map_err(CliError::Library)?;
        match self.format {
            Format::Text => table(&mut out, &load, &report)?,
            Format::Jsonl => lines(&mut out, &load, &report)?,
        }
        out.flush()?;
        Ok(if report.faults.is_empty() { Exit::Completed } else { Exit::FaultFound })
    }

    fn load(&self) -> Load {
        let defaults = Load::default();
        let turns = match (self.turns, self.duration) {
            (Some(turns), _) => turns,
            (None, Some(_)) => u64::MAX,
            (None, None) => defaults.turns,
        };
        Load {
            agents: self.agents as usize,
            turns,
            duration: self.duration.map(Duration::from_secs),
            seed: self.seed(),
            chaos: self.chaos,
            tools: usize::from(self.tools),
            chunks: usize::from(self.chunks),
            children: usize::from(self.children),
            ..defaults
        }
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| fastrand::u64(0..1 << 32))
    }

    /// Whoever names a kind that keeps anything must not be told about memory.
    fn place(&self, store: &Path) -> Result<Place, CliError> {
        let in_memory = store == Path::new("memory");
        match self.store_kind {
            Some(kind) if in_memory && kind != StoreKind::Memory => Err(CliError::Usage(format!(
                "a {kind} store needs a directory; name one with --store"
            ))),
            Some(StoreKind::Memory) if !in_memory => Err(CliError::Usage(format!(
                "memory keeps nothing in {}; leave out --store or --store-kind",
                store.display()
            ))),
            _ if in_memory => Ok(Place::Memory),
            kind => Ok(Place::Dir {
                dir: store.to_owned(),
                config: kind.map_or_else(StoreConfig::default, StoreConfig::new),
            }),
        }
    }
}

/// Progress on standard error: one line that changes on a terminal, now and then a line elsewhere.
struct Told {
    bar: ProgressBar,
    plain: bool,
    last: Instant,
}

impl Told {
    fn new(load: &Load) -> Self {
        let plain = !std::io::stderr().is_terminal();
        if plain {
            note(&format!("seed {}", load.seed));
        }
        let bar = if plain { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        Self { bar, plain, last: Instant::now() }
    }

    fn tell(&mut self, progress: &Progress) {
        let Progress { elapsed, turns, kills, acknowledged, busy, faults } = progress;
        let line = format!(
            "{:.0} s, {busy} clients at work, {turns} turns, {acknowledged} inputs, {kills} kills, \
             {faults} faults",
            elapsed.as_secs_f64()
        );
        if !self.plain {
            self.bar.set_message(line);
            self.bar.tick();
        } else if self.last.elapsed() >= LINE_EVERY {
            self.last = Instant::now();
            note(&line);
        }
    }
}

fn rows(load: &Load, report: &Report) -> Vec<(String, String)> {
    let millis = |duration: Duration| format!("{:.1} ms", duration.as_secs_f64() * 1e3);
    let row = |name: &str, value: String| (name.to_owned(), value);
    let mut rows = vec![
        row("seed", load.seed.to_string()),
        row("elapsed", format!("{:.1} s", report.elapsed.as_secs_f64())),
        row("sessions", report.sessions.to_string()),
        row("turns", report.turns.to_string()),
        row("events", report.events.to_string()),
        row("acknowledged inputs", report.acknowledged.to_string()),
        row("tool bodies run", report.tool_runs.to_string()),
        row("turn time, p50", millis(report.turn_p50)),
        row("turn time, p99", millis(report.turn_p99)),
        row("actors killed", report.killed().to_string()),
    ];
    let each = |of: &str, counts: &std::collections::BTreeMap<&str, u64>| {
        counts.iter().map(|(kind, n)| (format!("  {of}{kind}"), n.to_string())).collect::<Vec<_>>()
    };
    rows.extend(each("", &report.kills));
    rows.push(row("actors restarted", report.restarts.to_string()));
    rows.push(row("store faults", report.store_faults.values().sum::<u64>().to_string()));
    rows.extend(each("", &report.store_faults));
    rows.extend([
        row("streams cut", report.streams_dropped.to_string()),
        row("audits of the store", report.audits.to_string()),
        row("agents given up", report.given_up.to_string()),
        row("faults found", report.faults.len().to_string()),
    ]);
    rows
}

fn table(out: &mut Out, load: &Load, report: &Report) -> Result<(), CliError> {
    for (name, value) in rows(load, report) {
        out.line(&format!("{name:<28} {value:>12}"))?;
    }
    report.faults.iter().try_for_each(|fault| out.line(&format!("FAULT {fault}")))
}

fn lines_of_faults(out: &mut Out, faults: &[Fault]) -> Result<(), CliError> {
    for fault in faults {
        let session = fault.session.as_ref().map(|id| id.as_str());
        let line =
            json!({"kind": "fault", "session": session, "seq": fault.seq, "what": fault.what});
        out.line(&line.to_string())?;
    }
    Ok(())
}

/// A line a fault, then one for all the rest.
fn lines(out: &mut Out, load: &Load, report: &Report) -> Result<(), CliError> {
    lines_of_faults(out, &report.faults)?;
    let line = json!({
        "kind": "report",
        "seed": load.seed,
        "elapsedMs": u64::try_from(report.elapsed.as_millis()).unwrap_or(u64::MAX),
        "sessions": report.sessions,
        "turns": report.turns,
        "events": report.events,
        "acknowledged": report.acknowledged,
        "toolRuns": report.tool_runs,
        "turnP50Us": u64::try_from(report.turn_p50.as_micros()).unwrap_or(u64::MAX),
        "turnP99Us": u64::try_from(report.turn_p99.as_micros()).unwrap_or(u64::MAX),
        "kills": report.kills,
        "killed": report.killed(),
        "restarts": report.restarts,
        "storeFaults": report.store_faults,
        "streamsDropped": report.streams_dropped,
        "audits": report.audits,
        "givenUp": report.given_up,
        "faults": report.faults.len(),
    });
    out.line(&line.to_string())
}
