//! `playhouse stress --fair`: a lone agent beside a tree of busy ones.

use std::time::Duration;

use serde_json::json;

use super::{Stress, lines_of_faults};
use crate::{
    cli::{
        exit::{CliError, Exit},
        output::{Format, Out, note},
        signals,
    },
    stress::{FairLoad, FairReport, run_fair},
};

const OTHERS: [&str; 11] = [
    "agents",
    "turns",
    "chaos",
    "duration",
    "tools",
    "chunks",
    "children",
    "tree",
    "store",
    "store_kind",
    "seed",
];

/// The options of the fair share of requests.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Fair share of requests")]
pub(super) struct FairArgs {
    /// Measures the turns of a lone agent, first alone and then beside one tree of so many busy agents.
    #[arg(
        long, value_name = "N", conflicts_with_all = OTHERS,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    fair: Option<u32>,
    /// How many requests may run at once; fewer than the tree has agents.
    #[arg(
        long, value_name = "N", requires = "fair", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    requests: u32,
    /// How long the model takes to its first token.
    #[arg(
        long, value_name = "TIME", requires = "fair", default_value = "200ms",
        value_parser = humantime::parse_duration
    )]
    first_token: Duration,
    /// How many turns of the lone agent are measured each time.
    #[arg(
        long, value_name = "N", requires = "fair", default_value_t = 15,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    lone_turns: u16,
}

impl FairArgs {
    pub(super) fn is_asked_for(&self) -> bool {
        self.fair.is_some()
    }

    fn load(&self) -> Result<FairLoad, CliError> {
        let (agents, requests) = (self.fair.unwrap_or(1), self.requests);
        if agents <= requests {
            let text = format!(
                "--fair {agents} --requests {requests}: nobody would wait; give the tree more agents \
                 than requests may run"
            );
            return Err(CliError::Usage(text));
        }
        Ok(FairLoad {
            agents: agents as usize,
            requests: requests as usize,
            first_token: self.first_token,
            turns: usize::from(self.lone_turns),
        })
    }
}

pub(super) async fn run(args: Stress) -> Result<Exit, CliError> {
    let load = args.fair.load()?;
    let stop = signals::listen()?;
    let ran = run_fair(&load, &stop, &mut |stage| note(stage)).await;
    let report = ran.map_err(CliError::Library)?;
    let mut out = Out::new();
    match args.format {
        Format::Text => table(&mut out, &load, &report)?,
        Format::Jsonl => lines(&mut out, &load, &report)?,
    }
    out.flush()?;
    Ok(if report.faults.is_empty() { Exit::Completed } else { Exit::FaultFound })
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn table(out: &mut Out, load: &FairLoad, report: &FairReport) -> Result<(), CliError> {
    let rows = [
        ("busy agents of the tree", load.agents.to_string()),
        ("requests at once", load.requests.to_string()),
        ("first token after", millis(load.first_token)),
        ("requests running, waiting", format!("{}, {}", report.held, report.waiting)),
        ("turns of the tree meanwhile", report.tree_turns.to_string()),
        ("median turn alone", millis(report.alone)),
        ("median turn beside the tree", millis(report.beside)),
        ("longest turn beside the tree", millis(report.longest)),
        ("ratio of the medians", format!("{:.2}", report.ratio())),
        ("permits held after", report.held_after.to_string()),
        ("faults found", report.faults.len().to_string()),
    ];
    for (name, value) in rows {
        out.line(&format!("{name:<30} {value:>12}"))?;
    }
    report.faults.iter().try_for_each(|fault| out.line(&format!("FAULT {fault}")))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn lines(out: &mut Out, load: &FairLoad, report: &FairReport) -> Result<(), CliError> {
    lines_of_faults(out, &report.faults)?;
    let line = json!({
        "kind": "report",
        "agents": load.agents,
        "requests": load.requests,
        "firstTokenUs": micros(load.first_token),
        "held": report.held,
        "waiting": report.waiting,
        "treeTurns": report.tree_turns,
        "aloneUs": micros(report.alone),
        "besideUs": micros(report.beside),
        "longestUs": micros(report.longest),
        "ratio": report.ratio(),
        "heldAfter": report.held_after,
        "faults": report.faults.len(),
    });
    out.line(&line.to_string())
}
