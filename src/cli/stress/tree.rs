//! `playhouse stress --tree`: what an agent of a tree costs, and the end of trees.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::{LINE_EVERY, Stress, lines_of_faults};
use crate::{
    cli::{
        exit::{CliError, Exit},
        output::{Format, Out, note},
        signals,
    },
    stress::{Cancelled, Shape, TreeLoad, TreeProgress, TreeReport, run_tree},
};

const FLEET: [&str; 7] = ["agents", "turns", "chaos", "duration", "tools", "chunks", "children"];

/// The options of trees.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Trees")]
pub(super) struct TreeArgs {
    /// Grows a tree: a root with W children, each with W, and so on. 10x10x10x10 has 11,111 agents.
    #[arg(long, value_name = "WxWxW", conflicts_with_all = FLEET)]
    tree: Option<Shape>,
    /// After the tree was grown once, cancels so many others, each at a random moment of its growth.
    #[arg(long, value_name = "N", requires = "tree", default_value_t = 0)]
    cancel_at: u16,
}

impl TreeArgs {
    pub(super) fn is_asked_for(&self) -> bool {
        self.tree.is_some()
    }
}

/// A directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(seed: u64) -> Self {
        let name = format!("playhouse-tree-{}-{seed}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The store may not have been made.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) async fn run(args: Stress) -> Result<Exit, CliError> {
    let Some(shape) = args.tree.tree.clone() else {
        return Err(CliError::Usage("name a tree with --tree".to_owned()));
    };
    let cancels = usize::from(args.tree.cancel_at);
    let load = TreeLoad { shape, seed: args.seed(), cancels };
    let scratch = args.store.is_none().then(|| Scratch::new(load.seed));
    let store = scratch.as_ref().map(|scratch| scratch.0.as_path()).or(args.store.as_deref());
    let place = args.place(store.unwrap_or(Path::new("memory")))?;
    let stop = signals::listen()?;
    let mut out = Out::new();
    if args.format == Format::Jsonl {
        let tree = load.shape.to_string();
        out.line(&json!({"kind": "start", "seed": load.seed, "tree": tree}).to_string())?;
        out.flush()?;
    }
    let mut told = Told::new(&load);
    let ran = run_tree(&load, place, &stop, &mut |progress| told.tell(progress)).await;
    told.bar.finish_and_clear();
    let report = ran.map_err(CliError::Library)?;
    match args.format {
        Format::Text => table(&mut out, &load, &report)?,
        Format::Jsonl => lines(&mut out, &load, &report)?,
    }
    out.flush()?;
    Ok(if report.faults.is_empty() { Exit::Completed } else { Exit::FaultFound })
}

/// Progress on standard error, as that of a fleet.
struct Told {
    bar: ProgressBar,
    plain: bool,
    last: Instant,
    agents: u64,
}

impl Told {
    fn new(load: &TreeLoad) -> Self {
        let plain = !std::io::stderr().is_terminal();
        if plain {
            note(&format!("seed {}", load.seed));
        }
        let bar = if plain { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        Self { bar, plain, last: Instant::now(), agents: load.shape.agents() }
    }

    fn tell(&mut self, progress: &TreeProgress) {
        let TreeProgress { elapsed, live, arrived, cancel } = progress;
        let which = match cancel {
            0 => "growing".to_owned(),
            number => format!("cancel {number}"),
        };
        let (elapsed, agents) = (elapsed.as_secs_f64(), self.agents);
        let line =
            format!("{which}: {elapsed:.1} s, {live} live, {arrived} of {agents} at their tool");
        if !self.plain {
            self.bar.set_message(line);
            self.bar.tick();
        } else if self.last.elapsed() >= LINE_EVERY {
            self.last = Instant::now();
            note(&line);
        }
    }
}

/// Of one agent, where it is known.
fn each<T>(all: Option<T>, agents: u64, each: impl Fn(T) -> f64) -> Option<f64> {
    all.map(|all| each(all) / agents as f64)
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}

fn table(out: &mut Out, load: &TreeLoad, report: &TreeReport) -> Result<(), CliError> {
    let TreeReport { agents, grown, cancelled, sessions, faults } = report;
    let unknown = || "unknown".to_owned();
    let cpu = each(grown.cpu, *agents, |cpu| cpu.as_secs_f64() * 1e6);
    let memory = each(grown.memory, *agents, |bytes| bytes as f64 / 1024.0);
    let rows = [
        ("seed", load.seed.to_string()),
        ("tree", load.shape.to_string()),
        ("agents", agents.to_string()),
        ("alive at once", grown.live_at_once.to_string()),
        ("turns", grown.turns.to_string()),
        ("events", grown.events.to_string()),
        ("wall time", format!("{:.2} s", grown.wall.as_secs_f64())),
        ("disposal of the root", millis(grown.disposal)),
        ("CPU an agent", cpu.map_or_else(unknown, |cpu| format!("{cpu:.0} us"))),
        ("peak memory an agent", memory.map_or_else(unknown, |kib| format!("{kib:.1} KiB"))),
        ("live agents after", grown.left.agents.to_string()),
        ("tasks after", grown.left.tasks.to_string()),
        ("slots held after", grown.left.slots.to_string()),
        ("stored sessions judged", sessions.to_string()),
        ("faults found", faults.len().to_string()),
    ];
    for (name, value) in rows {
        out.line(&format!("{name:<28} {value:>12}"))?;
    }
    if !cancelled.is_empty() {
        out.line(&format!(
            "{:>10} {:>8} {:>10} {:>10} {:>8} {:>10} {:>7}",
            "cancel at", "reached", "told", "at rest", "events", "bare", "ratio"
        ))?;
    }
    for one in cancelled {
        let Cancelled { after, reached, told, took, events, bare, .. } = one;
        let [after, told, took, bare] = [after, told, took, bare].map(|time| millis(*time));
        let ratio = one.ratio();
        out.line(&format!(
            "{after:>10} {reached:>8} {told:>10} {took:>10} {events:>8} {bare:>10} {ratio:>7.1}"
        ))?;
    }
    faults.iter().try_for_each(|fault| out.line(&format!("FAULT {fault}")))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A line a fault, one a cancelled tree, then one for all the rest.
fn lines(out: &mut Out, load: &TreeLoad, report: &TreeReport) -> Result<(), CliError> {
    lines_of_faults(out, &report.faults)?;
    for one in &report.cancelled {
        let line = json!({
            "kind": "cancelled",
            "afterUs": micros(one.after),
            "reached": one.reached,
            "toldUs": micros(one.told),
            "tookUs": micros(one.took),
            "events": one.events,
            "bytes": one.bytes,
            "bareUs": micros(one.bare),
            "ratio": one.ratio(),
        });
        out.line(&line.to_string())?;
    }
    let TreeReport { agents, grown, sessions, faults, .. } = report;
    let per_agent = |value: Option<f64>| value.map_or(Value::Null, |value| json!(value.round()));
    let line = json!({
        "kind": "report",
        "seed": load.seed,
        "tree": load.shape.to_string(),
        "agents": agents,
        "aliveAtOnce": grown.live_at_once,
        "turns": grown.turns,
        "events": grown.events,
        "wallUs": micros(grown.wall),
        "disposalUs": micros(grown.disposal),
        "cpuUsAnAgent": per_agent(each(grown.cpu, *agents, |cpu| cpu.as_secs_f64() * 1e6)),
        "peakBytesAnAgent": per_agent(each(grown.memory, *agents, |bytes| bytes as f64)),
        "agentsLeft": grown.left.agents,
        "tasksLeft": grown.left.tasks,
        "slotsLeft": grown.left.slots,
        "sessions": sessions,
        "faults": faults.len(),
    });
    out.line(&line.to_string())
}
