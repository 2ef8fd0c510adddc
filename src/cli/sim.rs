//! `playhouse sim`: worlds that live through what seeds say.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Instant,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    exit::{CliError, Exit},
    output::Out,
};
use crate::sim::{self, Failed, Summary};

/// Simulates whole harnesses and checks what must hold of them; exits with 6 if it does not.
///
/// Each seed is one world: agents, clients, models, tools, faults, crashes. The same seed gives the
/// same logs.
#[derive(Debug, clap::Args)]
pub struct Sim {
    /// The seeds to run, the last one excluded.
    #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = seeds)]
    seeds: Range<u64>,
    /// Runs this seed only.
    #[arg(long, value_name = "N", conflicts_with = "seeds", value_parser = clap::value_parser!(u64).range(..u64::MAX))]
    seed: Option<u64>,
    /// Prints all that happens, with the virtual time in milliseconds.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Runs each seed twice, and compares.
    #[arg(long)]
    twice: bool,
    /// Goes on after a failure, and prints each as a line.
    #[arg(long)]
    keep_going: bool,
    /// Prints a line a seed.
    #[arg(long, short)]
    verbose: bool,
    /// How many seeds to run at once [default: one a processor].
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|fault| fault.to_string());
    let (start, end) = text.split_once("..").ok_or("seeds look like 0..1000")?;
    let seeds = number(start)?..number(end)?;
    if seeds.is_empty() { Err("there is no seed in that range".to_owned()) } else { Ok(seeds) }
}

impl Sim {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If standard output cannot be written to.
    pub fn run(self) -> Result<Exit, CliError> {
        let mut out = Out::new();
        let seeds = self.seed.map_or(self.seeds.clone(), |seed| seed..seed + 1);
        let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
        let jobs = self.jobs.or_else(|| thread::available_parallelism().ok().map(usize::from));
        let jobs =
            jobs.unwrap_or(1).clamp(1, usize::try_from(seeds.end - seeds.start).unwrap_or(1));
        let bar = progress(seeds.end - seeds.start);
        let began = Instant::now();
        let mut runs = BTreeMap::new();
        thread::scope(|scope| -> Result<(), CliError> {
            let (told, heard) = std::sync::mpsc::channel();
            for _ in 0..jobs {
                let (told, this) = (told.clone(), &self);
                let (next, stop, seeds) = (&next, &stop, &seeds);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        // Nobody listens once a line could not be written.
                        if seed >= seeds.end || told.send(this.once(seed)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(told);
            for (lines, ran) in heard {
                bar.inc(1);
                let written = bar.suspend(|| -> Result<(), CliError> {
                    lines.iter().try_for_each(|line| out.line(line))?;
                    match &ran {
                        Ok(run) if self.verbose => out.line(&format!(
                            "seed {} hash {:08x} turns {} events {} lives {} virtual {} ms",
                            run.seed, run.hash, run.turns, run.events, run.lives, run.millis
                        )),
                        Ok(_) => Ok(()),
                        Err(failed) if self.keep_going => {
                            out.line(&format!("seed {}: {}", failed.seed, failed.what))
                        }
                        Err(failed) => out.line(&failed.to_string()),
                    }?;
                    // Whoever stops a long run has seen what there was.
                    if ran.is_err() || self.verbose { out.flush() } else { Ok(()) }
                });
                if written.is_err() || (ran.is_err() && !self.keep_going) {
                    stop.store(true, Ordering::Relaxed);
                }
                written?;
                match ran {
                    Ok(run) => drop(runs.insert(run.seed, Some(run))),
                    Err(failed) => drop(runs.insert(failed.seed, None)),
                }
            }
            Ok(())
        })?;
        bar.finish_and_clear();
        let failed: Vec<_> =
            runs.iter().filter(|(_, run)| run.is_none()).map(|run| *run.0).collect();
        summarize(&mut out, runs.into_values().flatten(), began)?;
        if failed.is_empty() {
            out.flush()?;
            return Ok(Exit::Completed);
        }
        for seed in failed {
            out.line(&format!("failed: playhouse sim --seed {seed} --trace"))?;
        }
        out.flush()?;
        Ok(Exit::Failed)
    }

    fn once(&self, seed: u64) -> (Vec<String>, Result<Summary, Box<Failed>>) {
        let mut lines = Vec::new();
        // What a simulation breaks is not worth a line each, unless somebody looks at one seed.
        let _quiet = (!self.trace).then(|| {
            tracing::subscriber::set_default(tracing::subscriber::NoSubscriber::default())
        });
        let first = if self.trace {
            sim::run(seed, &mut |line| lines.push(line.to_owned()))
        } else {
            sim::check(seed)
        };
        let ran = first.and_then(|first| {
            if self.twice {
                let second = sim::check(seed)?;
                first.same_as(&second)?;
            }
            Ok(first)
        });
        (lines, ran.map_err(Box::new))
    }
}

fn summarize(
    out: &mut Out,
    runs: impl Iterator<Item = Summary>,
    began: Instant,
) -> Result<(), CliError> {
    let (mut seeds, mut turns, mut events, mut lives) = (0u64, 0, 0, 0);
    let mut hash = crc32fast::Hasher::new();
    let mut tally = BTreeMap::<_, u64>::new();
    for run in runs {
        seeds += 1;
        turns += run.turns;
        events += run.events;
        lives += run.lives;
        hash.update(&run.hash.to_le_bytes());
        for (what, times) in run.tally {
            *tally.entry(what).or_default() += times;
        }
    }
    for (what, times) in tally {
        out.line(&format!("{times:>10}  {what}"))?;
    }
    out.line(&format!(
        "{seeds} seeds, {lives} lives, {turns} turns, {events} events, hash {:08x}, in {:.1} s",
        hash.finalize(),
        began.elapsed().as_secs_f64()
    ))
}

/// A bar on standard error, if that is a terminal.
fn progress(seeds: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(seeds), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {eta} left");
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
