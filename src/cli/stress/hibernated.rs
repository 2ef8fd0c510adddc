//! `playhouse stress --hibernated`.

use std::{io::IsTerminal, time::Duration};

use indicatif::ProgressBar;
use serde_json::json;

use crate::{
    CancelToken,
    cli::{
        exit::{CliError, Exit},
        output::{Format, Out, note},
    },
    stress::{HibernatedLoad, HibernatedReport, Place, hibernated},
};

/// Agents between two lines of progress where nobody looks at a terminal.
const LINE_EVERY: usize = 10_000;

/// Agents that hibernate, in the place of a fleet.
#[derive(Debug, clap::Args)]
#[group(id = "hibernated-flags")]
#[command(next_help_heading = "Hibernation")]
pub(super) struct Hibernated {
    /// Puts N agents to sleep instead, each with a turn of history, wakes some at random, and checks
    /// their answers and their history; tells what memory each takes (Linux), and how soon one
    /// answers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["agents", "turns", "chaos", "duration", "tools", "chunks", "children",
        "tree", "fair"])]
    pub(super) hibernated: Option<u32>,
    /// With --hibernated: how many of them live at the same time, at most.
    #[arg(long, value_name = "N", default_value_t = 256, requires = "hibernated",
        value_parser = clap::value_parser!(u32).range(1..))]
    live: u32,
    /// With --hibernated: how many are woken.
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "hibernated")]
    wakes: u32,
}

impl Hibernated {
    pub(super) async fn run(
        &self,
        agents: u32,
        place: Place,
        seed: u64,
        format: Format,
        stop: &CancelToken,
    ) -> Result<Exit, CliError> {
        let load = HibernatedLoad {
            agents: agents as usize,
            live: self.live as usize,
            wakes: self.wakes as usize,
            seed,
        };
        let plain = !std::io::stderr().is_terminal();
        let bar = if plain { ProgressBar::hidden() } else { ProgressBar::new(agents.into()) };
        let mut tell = |asleep: usize| {
            bar.set_position(asleep as u64);
            if plain && asleep.is_multiple_of(LINE_EVERY) {
                note(&format!("{asleep} agents hibernate"));
            }
        };
        let ran = hibernated(&load, place, stop, &mut tell).await;
        bar.finish_and_clear();
        let report = ran.map_err(CliError::Library)?;
        if report.memory_before.is_none() {
            note("memory cannot be measured here: only Linux tells it");
        }
        let mut out = Out::new();
        match format {
            Format::Text => table(&mut out, &load, &report)?,
            Format::Jsonl => out.line(&line(&load, &report).to_string())?,
        }
        out.flush()?;
        Ok(if report.faults.is_empty() { Exit::Completed } else { Exit::FaultFound })
    }
}

fn table(out: &mut Out, load: &HibernatedLoad, report: &HibernatedReport) -> Result<(), CliError> {
    let millis = |duration: Duration| format!("{:.1} ms", duration.as_secs_f64() * 1e3);
    let memory = |bytes: Option<u64>| match bytes {
        Some(bytes) => format!("{} KiB", bytes / 1024),
        None => "unknown".to_owned(),
    };
    let each = report.bytes_an_agent();
    let rows = [
        ("seed", load.seed.to_string()),
        ("agents that hibernate", report.agents.to_string()),
        ("made in", format!("{:.1} s", report.making.as_secs_f64())),
        ("made a second", format!("{:.0}", rate(report))),
        ("memory before", memory(report.memory_before)),
        ("memory when all slept", memory(report.memory_after)),
        ("bytes an agent", each.map_or("unknown".to_owned(), |bytes| format!("{bytes:.0}"))),
        ("woken", report.wakes.to_string()),
        ("wake and answer, p50", millis(report.wake_p50)),
        ("wake and answer, p99", millis(report.wake_p99)),
        ("faults found", report.faults.len().to_string()),
    ];
    for (name, value) in rows {
        out.line(&format!("{name:<28} {value:>12}"))?;
    }
    report.faults.iter().try_for_each(|fault| out.line(&format!("FAULT {fault}")))
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn rate(report: &HibernatedReport) -> f64 {
    report.agents as f64 / report.making.as_secs_f64().max(1e-9)
}

fn line(load: &HibernatedLoad, report: &HibernatedReport) -> serde_json::Value {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    json!({
        "kind": "hibernated",
        "seed": load.seed,
        "agents": report.agents,
        "makingMs": u64::try_from(report.making.as_millis()).unwrap_or(u64::MAX),
        "memoryBefore": report.memory_before,
        "memoryAfter": report.memory_after,
        "bytesAnAgent": report.bytes_an_agent(),
        "wakes": report.wakes,
        "wakeP50Us": micros(report.wake_p50),
        "wakeP99Us": micros(report.wake_p99),
        "faults": report.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
