//! The power goes at any instant, in any of three models of what a disk keeps: nothing that was
//! acknowledged as durable is lost, and no half batch is seen.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::model_disk::{Cut, Dice, Fault, ModelDisk, seed};
use super::*;

type Counts = BTreeMap<u64, u64>;

/// What the writer has told its caller, as of an instant of the disk's log.
#[derive(Clone)]
struct Told {
    at: usize,
    durable: usize,
}

/// The states that the journal went through: the counts after each batch, from none on.
struct History {
    states: Vec<Counts>,
    told: Vec<Told>,
}

/// The lives of writers between two power cuts: each ends as `kill -9` ends it, and the next finds
/// what the operating system holds, synced or not.
fn live(disk: &ModelDisk, before: &Counts, dice: &mut Dice, faulty: bool) -> History {
    let mut history =
        History { states: vec![before.clone()], told: vec![Told { at: 0, durable: 0 }] };
    for _ in 0..=dice.below(3) {
        live_once(disk, &mut history, dice, faulty);
    }
    history
}

fn live_once(disk: &ModelDisk, history: &mut History, dice: &mut Dice, faulty: bool) {
    let Ok(mut writer) = Writer::open(Arc::new(disk.clone()), &dir(), STORE, small(3000)) else {
        return;
    };
    if writer.resume(Depth::Footers).is_err() {
        return;
    }
    if writer.sync().is_ok() {
        // All that an earlier life wrote counts as durable now.
        let durable = history.states.len() - 1;
        history.told.push(Told { at: disk.at(), durable });
    }
    for _ in 0..dice.below(60) {
        if faulty && dice.chance(8) {
            let fault = match dice.below(4) {
                0 => Fault::ShortWrite(dice.below(900)),
                1 => Fault::FailWrite,
                2 => Fault::FailCreate,
                _ => Fault::FailSync,
            };
            disk.fault(fault);
        }
        let mut counts = history.states.last().unwrap().clone();
        let mut records = Vec::new();
        for _ in 0..=dice.below(4) {
            let number = 1 + dice.below(6) as u64;
            let count = 1 + dice.below(12) as u64;
            if !counts.contains_key(&number) {
                records.push(session(number, &format!("session {number}")));
            }
            let next = counts.entry(number).or_insert(0);
            records.push(events(number, *next, count));
            *next += count;
        }
        if writer.write(&records, Urgency::Ordinary).is_ok() {
            history.states.push(counts);
        }
        if dice.chance(40) && writer.sync().is_ok() {
            let durable = history.states.len() - 1;
            history.told.push(Told { at: disk.at(), durable });
        }
        if dice.chance(5) {
            let _ = writer.seal();
        }
    }
}

/// Counts of the events that can be read, after checking every byte of them.
fn check(disk: &ModelDisk, what: &str) -> Counts {
    let mut out = Counts::new();
    for depth in [Depth::Full, Depth::Footers] {
        let found = read_all(disk, depth);
        assert_eq!(found.damages, [], "{what}");
        let mut counts = Counts::new();
        for &number in found.map.sessions.keys() {
            let read = read_session(disk, &found, number).unwrap_or_else(|error| {
                panic!("{what}: session {number}: {error}");
            });
            assert_eq!(read, expected_events(number, read.len() as u64), "{what}");
            counts.insert(number, read.len() as u64);
        }
        assert!(out.is_empty() || out == counts, "{what}: depths differ");
        out = counts;
    }
    out
}

#[test]
fn nothing_durable_is_lost_and_no_half_batch_is_seen_when_the_power_goes() {
    let seed = seed(20_260_101);
    let mut cases = 0;
    for round in 0..60 {
        let mut dice = Dice(seed.wrapping_add(round));
        let mut start: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
        let mut before = Counts::new();
        for life in 0..3 {
            let disk = ModelDisk::from_files(&start);
            let history = live(&disk, &before, &mut dice, round % 2 == 1);
            let mut next = None;
            for cut in [Cut::None, Cut::Prefix, Cut::Subset, Cut::Subset] {
                for _ in 0..4 {
                    let at = dice.below(disk.at() + 1);
                    let files = disk.after_power_cut(&start, at, cut, &mut dice);
                    let what = format!("seed {seed} round {round} life {life} cut {cut:?} at {at}");
                    let crashed = ModelDisk::from_files(&files);
                    let counts = check(&crashed, &what);
                    let told = history.told.iter().rfind(|told| told.at <= at).unwrap();
                    let found = history.states.iter().skip(told.durable).find(|s| **s == counts);
                    assert!(
                        found.is_some(),
                        "{what}: {counts:?} is not a state from {:?} on",
                        history.states[told.durable]
                    );
                    cases += 1;
                    next = Some((files, counts));
                }
            }
            if let Some((files, counts)) = next {
                (start, before) = (files, counts);
            }
        }
    }
    println!("power loss: cases run {cases}, faults found 0");
}
