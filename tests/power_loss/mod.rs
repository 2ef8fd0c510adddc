//! The power goes, replayed: a recorder notes every write and sync of a process that writes to a
//! store; directories are made as a cut could have left them, and each is opened.

mod replay;

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use fastrand::Rng;
use playhouse::{
    crash_test::{Promises, Survived, check},
    stores::StoreKind,
};
use replay::{Cut, Disk, History};

/// At how many moments of a run the power goes, in each of three ways.
fn points() -> usize {
    std::env::var("PLAYHOUSE_POWER_POINTS").map_or(12, |points| points.parse().unwrap())
}

fn seed() -> u64 {
    let seed = std::env::var("PLAYHOUSE_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("PLAYHOUSE_SEED={seed}");
    seed
}

/// The recorder, built once by the compiler that links Rust programs too.
fn recorder() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("recorder-{}.so", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power_loss/recorder.c");
        let mut cc = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
        cc.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&built).arg(source).arg("-lpthread");
        assert!(cc.status().unwrap().success(), "the recorder does not build");
        built
    })
}

fn writer(kind: StoreKind, dir: &Path, life: u64) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_playhouse"));
    command.args(["crash-test", "--store-kind", kind.name(), "--seed", &life.to_string()]);
    command.arg("--write").arg(dir).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Lets a writer tell so many promises, and kills it. Returns all that it has told.
fn run(mut command: Command, told: usize) -> Vec<String> {
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines: Vec<_> = output.by_ref().take(told).map(Result::unwrap).collect();
    assert_eq!(lines.len(), told, "the writer lives until it is killed");
    child.kill().unwrap();
    child.wait().unwrap();
    lines.extend(output.map_while(Result::ok));
    lines
}

fn add(promises: &mut Promises, lines: &[String]) {
    lines.iter().filter_map(|line| line.parse().ok()).for_each(|promise| promises.add(promise));
}

/// What may happen to the files of the index, which is a cache.
fn spoil_index(dir: &Path, rng: &mut Rng) {
    let index = dir.join("index");
    if !index.is_dir() {
        return;
    }
    match rng.u8(0..4) {
        0 => std::fs::remove_dir_all(index).unwrap(),
        1 => std::fs::write(index.join("conf"), [0; 64]).unwrap(),
        2 => {
            let db = std::fs::read(index.join("db")).unwrap_or_default();
            std::fs::write(index.join("db"), &db[..db.len() / 2]).unwrap();
        }
        _ => {
            let db = std::fs::read(index.join("db")).unwrap_or_default();
            std::fs::write(index.join("db"), vec![0; db.len()]).unwrap();
        }
    }
}

/// One run of a writer, cut at `points` moments. Returns how many directories were opened, and in how
/// many a promise was broken: none, unless the disk lies.
async fn cut(
    kind: StoreKind,
    rng: &mut Rng,
    points: usize,
    old: bool,
    lies: bool,
) -> (usize, usize) {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("store");
    std::fs::create_dir(&dir).unwrap();
    let mut promises = Promises::default();
    if old {
        // A life before, whose death left things half done; all of it has reached the disk since.
        let told = run(writer(kind, &dir, rng.u64(..1 << 40)), rng.usize(1..600));
        add(&mut promises, &told);
    }
    let mut disk = Disk::of(&dir);
    disk.lies = lies;
    let log = base.path().join("log");
    let mut command = writer(kind, &dir, rng.u64(..1 << 40));
    command.env("LD_PRELOAD", recorder()).env("RECORD_DIR", &dir).env("RECORD_LOG", &log);
    run(command, 1200);
    let history = History::parse(&std::fs::read(&log).unwrap());
    assert!(history.syncs() > 10, "only {} syncs were recorded", history.syncs());
    // Readers could not roll it back.
    assert!(!history.creates("-journal"), "a rollback journal was made");
    let mut moments: Vec<_> = (0..points).map(|_| rng.usize(..history.len())).collect();
    moments.sort_unstable();
    let (mut states, mut broken, mut replayed) = (0, 0, 0);
    for moment in moments {
        while replayed <= moment {
            disk.replay(&history, replayed);
            replayed += 1;
        }
        add(&mut promises, &disk.told());
        for cut in [Cut::Nothing, Cut::Prefix, Cut::Subset] {
            let left = base.path().join("left");
            std::fs::create_dir(&left).unwrap();
            disk.cut(&left, cut, rng);
            if rng.u8(0..5) == 0 {
                spoil_index(&left, rng);
            }
            let found = check(kind, &left, &mut promises.clone(), Survived::Durable).await;
            broken += usize::from(!found.broken.is_empty());
            if !found.broken.is_empty() && !lies {
                let kept = base.keep();
                panic!("{kind}, {cut:?} at {moment}: {:?}; kept in {kept:?}", found.broken);
            }
            std::fs::remove_dir_all(&left).unwrap();
            states += 1;
        }
    }
    (states, broken)
}

async fn power_cuts(kind: StoreKind) {
    let mut rng = Rng::with_seed(seed());
    let points = points();
    let (mut done, mut states, mut runs) = (0, 0, 0);
    while done < points {
        let now = (points - done).min(20);
        states += cut(kind, &mut rng, now, runs % 2 == 1, false).await.0;
        done += now;
        runs += 1;
    }
    println!("power cuts, {kind}: {done} moments of {runs} runs, {states} states, faults found 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_lies_about_its_syncs_is_found_out() {
    let mut rng = Rng::with_seed(seed());
    let (states, broken) = cut(StoreKind::Journal, &mut rng, 6, false, true).await;
    assert!(broken > states / 2, "{broken} of {states}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_durable_is_lost_by_the_journal_nor_by_its_index() {
    power_cuts(StoreKind::Journal).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_durable_is_lost_by_jsonl_files() {
    power_cuts(StoreKind::Jsonl).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_durable_is_lost_by_sqlite() {
    power_cuts(StoreKind::Sqlite).await;
}
