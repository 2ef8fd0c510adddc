//! `playhouse crash-test`: kills a process that writes to a store, again and again, and looks each
//! time whether the store has kept what it promised.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fastrand::Rng;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use playhouse_stores::{FaultOp, FaultPoint, StoreKind};
use serde_json::json;

use super::{
    exit::{CliError, EXIT_CODES, Exit},
    output::{Format, Out, tame},
};
use crate::crash_test::{Broken, Promises, Survived, check, work};

/// How long a writer may take to reach the line or the point at which it is to die.
const PATIENCE: Duration = Duration::from_secs(60);
/// A store's lives, before a new one is begun.
const LIVES: u64 = 10;

/// Kills processes that write to a store with -9, and looks for all that was promised; exits with 6
/// if anything is missing.
///
/// They die at random moments and at named points of the store's work. After each death the store is
/// opened, and everything that was told as written or durable is compared, byte by byte.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct CrashTest {
    /// How often to kill the default store's writer; those of the other kinds a quarter as often.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    cycles: u64,
    /// Tests this kind of store only, with all the cycles.
    #[arg(long, value_name = "KIND", value_parser = kind)]
    store_kind: Option<StoreKind>,
    /// The seed of all chance [default: the time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Where the stores are made and, if a promise was broken, kept [default: a temporary directory].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How results are shown.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Is the process that is killed: writes to the store in this directory.
    #[arg(long, hide = true, requires_all = ["store_kind", "seed"])]
    write: Option<PathBuf>,
    /// Where that process dies by itself.
    #[arg(long, hide = true)]
    point: Option<FaultPoint>,
}

fn kind(name: &str) -> Result<StoreKind, String> {
    match name
        .parse()
        .map_err(|fault: playhouse_plugin_api::store::StoreError| fault.to_string())?
    {
        StoreKind::Memory => Err("memory does not survive its process".to_owned()),
        kind => Ok(kind),
    }
}

/// The sum of a kind's cycles.
#[derive(Default)]
struct Sum {
    cycles: u64,
    /// Kills by what they met.
    kills: BTreeMap<String, u64>,
    /// Events that were promised and looked for.
    promised: u64,
    broken: Vec<(u64, Broken)>,
}

impl Sum {
    fn count(&self, is: fn(&Broken) -> bool) -> usize {
        self.broken.iter().filter(|(_, broken)| is(broken)).count()
    }
}

impl CrashTest {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If the stores cannot be made or the writers not be started.
    pub async fn run(self) -> Result<Exit, CliError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = self.seed.unwrap_or(u64::from(now.subsec_nanos()) ^ now.as_secs());
        if let (Some(dir), Some(kind)) = (&self.write, self.store_kind) {
            work(kind, dir, seed, self.point).await?;
            return Ok(Exit::Completed);
        }
        let kinds: Vec<_> = match self.store_kind {
            Some(kind) => vec![(kind, self.cycles)],
            None => StoreKind::ALL
                .iter()
                .filter(|kind| **kind != StoreKind::Memory)
                .map(|kind| match kind {
                    StoreKind::Journal => (*kind, self.cycles),
                    kind => (*kind, self.cycles.div_ceil(4)),
                })
                .collect(),
        };
        let base = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let base = base.join(format!("playhouse-crash-test-{seed}-{}", std::process::id()));
        let bar = progress(kinds.iter().map(|(_, cycles)| cycles).sum());
        let mut out = Out::new();
        let mut whole = true;
        for (kind, cycles) in kinds {
            let dir = base.join(kind.name());
            let sum = test(kind, cycles, seed, &dir, &bar).await?;
            bar.suspend(|| report(&mut out, self.format, kind, seed, &sum))?;
            whole &= sum.broken.is_empty();
        }
        bar.finish_and_clear();
        if whole {
            remove(&base)?;
            return Ok(Exit::Completed);
        }
        super::output::note(&format!("the damaged stores are kept in {}", base.display()));
        Ok(Exit::Failed)
    }
}

fn remove(dir: &Path) -> Result<(), CliError> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CliError::io(format!("removing {}", dir.display()), error))
        }
        _ => Ok(()),
    }
}

/// How a writer is to die.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// While it opens the store, after so many milliseconds.
    Early(u64),
    /// After it has told so many promises.
    Told(u64),
    /// At a point of the store's work; or, if it does not come by, after so many promises.
    At(FaultPoint),
}

impl Death {
    fn roll(kind: StoreKind, rng: &mut Rng) -> Self {
        // SQLite does its own writing.
        let has_points = matches!(kind, StoreKind::Journal | StoreKind::Jsonl);
        match rng.u32(0..10) {
            0 => Self::Early(rng.u64(0..40)),
            1..=5 if has_points => {
                let (op, moment) = FaultPoint::ALL[rng.usize(..FaultPoint::ALL.len())];
                // Some come by often, others once in a life.
                let often = matches!(op, FaultOp::Write | FaultOp::Sync);
                Self::At(FaultPoint { op, moment, nth: rng.u64(1..=if often { 60 } else { 4 }) })
            }
            _ => Self::Told(rng.u64(0..1500)),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Early(_) => "while it opened".to_owned(),
            Self::Told(_) => "at random".to_owned(),
            Self::At(point) => {
                let point = point.to_string();
                format!("at {}", point.split(':').next().unwrap_or(&point))
            }
        }
    }
}

/// Kills a store's writer `cycles` times.
async fn test(
    kind: StoreKind,
    cycles: u64,
    seed: u64,
    dir: &Path,
    bar: &ProgressBar,
) -> Result<Sum, CliError> {
    let mut rng = Rng::with_seed(seed ^ (kind as u64) << 32);
    let mut sum = Sum::default();
    let mut promises = Promises::default();
    for cycle in 0..cycles {
        if cycle % LIVES == 0 {
            // A store that broke a promise ends the test, so this one is whole.
            remove(dir)?;
            std::fs::create_dir_all(dir)
                .map_err(|error| CliError::io(format!("creating {}", dir.display()), error))?;
            promises = Promises::default();
        }
        // The first life of a store leaves something to lose.
        let death = match cycle % LIVES {
            0 => Death::Told(rng.u64(100..1500)),
            _ => Death::roll(kind, &mut rng),
        };
        let mut writer = Writer::spawn(kind, dir, seed.wrapping_add(cycle), death)?;
        let met = tokio::task::block_in_place(|| writer.die(death, &mut promises))?;
        *sum.kills.entry(if met { death.name() } else { "at random".to_owned() }).or_default() += 1;
        sum.promised += promises.events();
        sum.cycles += 1;
        bar.inc(1);
        let found = check(kind, dir, &mut promises, Survived::Written).await;
        if !found.broken.is_empty() {
            sum.broken.extend(found.broken.into_iter().map(|broken| (cycle, broken)));
            break;
        }
    }
    Ok(sum)
}

/// A process that writes, and what it tells.
struct Writer {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Writer {
    fn spawn(kind: StoreKind, dir: &Path, life: u64, death: Death) -> Result<Self, CliError> {
        let fault = |error| CliError::io("starting a writer", error);
        let mut command = Command::new(std::env::current_exe().map_err(fault)?);
        command.args(["crash-test", "--store-kind", kind.name(), "--seed", &life.to_string()]);
        command.arg("--write").arg(dir);
        if let Death::At(point) = death {
            command.args(["--point", &point.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(fault)?;
        let (told, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // Ends with the child. It has no bound, since the child is killed after some thousands.
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if told.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { child, lines })
    }

    /// Lets it live as long as it may, and collects all that it has told. Returns whether it died as
    /// it was to die.
    fn die(&mut self, death: Death, promises: &mut Promises) -> Result<bool, CliError> {
        let (wait, told_max) = match death {
            Death::Early(millis) => (Duration::from_millis(millis), u64::MAX),
            Death::Told(lines) => (PATIENCE, lines),
            Death::At(_) => (PATIENCE, 1_500),
        };
        let deadline = Instant::now() + wait;
        let mut told = 0;
        let mut ended = false;
        while told < told_max {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    told += 1;
                    take(&line, promises);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => break,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    ended = true;
                    break;
                }
            }
        }
        let fault = |error| CliError::io("killing a writer", error);
        self.child.kill().map_err(fault)?;
        let status = self.child.wait().map_err(fault)?;
        // What it had told before the kill arrived counts too.
        self.lines.iter().for_each(|line| take(&line, promises));
        let met = match death {
            Death::At(_) => ended,
            _ => !ended,
        };
        if ended && (status.code().is_some() || !met) {
            let text = format!("a writer ended by itself ({status}); its last words are above");
            return Err(CliError::Failed(playhouse_messages::chunk::Failure::new("WRITER", text)));
        }
        Ok(met)
    }
}

/// The last line may be half.
fn take(line: &str, promises: &mut Promises) {
    if let Ok(promise) = line.parse() {
        promises.add(promise);
    }
}

fn report(
    out: &mut Out,
    format: Format,
    kind: StoreKind,
    seed: u64,
    sum: &Sum,
) -> Result<(), CliError> {
    let lost = sum.count(|broken| matches!(broken, Broken::Lost(_)));
    let wrong = sum.count(|broken| matches!(broken, Broken::Wrong(_)));
    let unopened = sum.count(|broken| matches!(broken, Broken::Open(_)));
    match format {
        Format::Text => {
            out.line(&format!(
                "{kind}: {} kills, {} promised events looked for; {lost} lost, {wrong} wrong or \
                 gaps, {unopened} failed opens (seed {seed})",
                sum.cycles, sum.promised
            ))?;
            for (death, times) in &sum.kills {
                out.line(&format!("{times:>8}  {death}"))?;
            }
            for (cycle, broken) in &sum.broken {
                out.line(&format!("  cycle {cycle}: {}", tame(&broken.to_string())))?;
            }
        }
        Format::Jsonl => {
            let broken: Vec<_> = sum
                .broken
                .iter()
                .map(|(cycle, broken)| json!({"cycle": cycle, "text": broken.to_string()}))
                .collect();
            let line = json!({
                "store": kind.name(), "seed": seed, "kills": sum.cycles, "by": sum.kills,
                "promised": sum.promised, "lost": lost, "wrong": wrong,
                "failedOpens": unopened, "broken": broken,
            });
            out.line(&line.to_string())?;
        }
    }
    out.flush()
}

/// A bar on standard error, if that is a terminal.
fn progress(cycles: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(cycles), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{bar:40} {pos}/{len} kills, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
