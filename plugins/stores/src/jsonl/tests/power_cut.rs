//! The power goes at any instant, in any of three models of what a disk keeps: nothing that was
//! acknowledged as durable is lost, and nothing that was never there is seen.

use super::*;

/// What a writer was told of a session, as of an instant of the disk's log.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    at: usize,
    /// Whether the session was there, with so many durable events.
    events: Option<u64>,
    /// The last durable part of a tail: its attempt, and how many parts that had.
    tail: Option<(u64, usize)>,
}

const SESSIONS: usize = 3;

struct History {
    /// By session, in the order of time.
    told: Vec<Vec<Told>>,
    /// Versions of the value that were acknowledged.
    values: Vec<(usize, u64)>,
}

/// A session of the run. `tail` is the attempt and its parts so far.
struct Run {
    writer: Option<Arc<dyn SessionWriter>>,
    next: u64,
    tail: (u64, usize),
}

fn fault(disk: &ModelDisk, dice: &mut Dice) {
    let fault = match dice.below(6) {
        0 => Fault::ShortWrite(dice.below(600)),
        1 => Fault::FailWrite,
        2 => Fault::FailCreate,
        3 => Fault::FailLink,
        4 => Fault::FailSetLen,
        _ => Fault::FailSync,
    };
    disk.fault(fault);
}

/// The lives of writers between two power cuts: each ends as `kill -9` ends it, and the next finds
/// what the operating system holds, synced or not.
async fn live(disk: &ModelDisk, first: &[Told], dice: &mut Dice, faulty: bool) -> History {
    let mut history =
        History { told: first.iter().map(|told| vec![*told]).collect(), values: vec![(0, 0)] };
    for _ in 0..=dice.below(2) {
        live_once(disk, &mut history, dice, faulty).await;
    }
    history
}

async fn live_once(disk: &ModelDisk, history: &mut History, dice: &mut Dice, faulty: bool) {
    let store = on_model(disk).await;
    let id = |n: usize| SessionId::from(format!("s{n}"));
    let mut runs = Vec::new();
    for n in 0..SESSIONS {
        let opened = store.open_write(&id(n)).await;
        runs.push(match opened {
            Ok((writer, session)) => {
                let tail = session.tail.map_or((0, 0), |tail| (tail.attempt, tail.parts.len()));
                Run { writer: Some(writer), next: session.events.len() as u64, tail }
            }
            Err(StoreError::NotFound { .. }) => Run { writer: None, next: 0, tail: (0, 0) },
            Err(error) => panic!("{error}"),
        });
    }
    for _ in 0..dice.below(40) {
        if faulty && dice.chance(15) {
            fault(disk, dice);
        }
        let n = dice.below(SESSIONS);
        let run = &mut runs[n];
        let Some(writer) = run.writer.clone() else {
            let created = store.create(&header(id(n).as_str()), 0).await;
            run.writer = Some(created.unwrap());
            continue;
        };
        match dice.below(10) {
            0..4 => {
                let count = 1 + dice.below(8) as u64;
                if writer.append(batch(run.next, count)).await.is_ok() {
                    run.next += count;
                }
            }
            4..6 => {
                let attempt = if dice.chance(30) { run.tail.0 + 1 } else { run.tail.0 };
                let index = if attempt == run.tail.0 { run.tail.1 } else { 0 };
                let part = Bytes::from(format!("{attempt}/{index}"));
                if writer.tail(attempt, part).await.is_ok() {
                    run.tail = (attempt, index + 1);
                }
            }
            6..9 => {
                if writer.flush().await.is_ok() {
                    let tail = (run.tail.1 > 0).then_some(run.tail);
                    let told = Told { at: disk.at(), events: Some(run.next), tail };
                    history.told[n].push(told);
                }
            }
            _ if dice.chance(40) => {
                let version = history.values[history.values.len() - 1].1 + 1;
                let value = Bytes::from(version.to_string());
                if store.put_value("k", value).await.is_ok() {
                    history.values.push((disk.at(), version));
                }
            }
            _ => {
                // Deleted: from before that on nothing is promised, and after it it is gone.
                drop(writer);
                let _ = run.writer.take().unwrap().close().await;
                history.told[n].push(Told { at: disk.at(), events: None, tail: None });
                match store.delete(&id(n)).await {
                    Ok(()) | Err(StoreError::NotFound { .. }) => {
                        (run.next, run.tail) = (0, (0, 0));
                    }
                    Err(_) => run.writer = Some(store.open_write(&id(n)).await.unwrap().0),
                }
            }
        }
    }
    // Faults that have not come to pass are not the next one's.
    disk.state().faults.clear();
}

fn check(disk: &ModelDisk, history: &History, at: usize, what: &str) -> Vec<Told> {
    let shelf = shelf(disk);
    let mut found = Vec::new();
    for (n, told) in history.told.iter().enumerate() {
        let told = told.iter().rfind(|told| told.at <= at).unwrap();
        let id = SessionId::from(format!("s{n}"));
        let loaded = shelf.load(&id).unwrap_or_else(|error| panic!("{what}: {error}"));
        let Some(loaded) = loaded else {
            assert!(told.events.is_none(), "{what}: {id} is lost, {told:?}");
            found.push(Told::default());
            continue;
        };
        let session = loaded.into_session();
        let count = session.events.len() as u64;
        assert!(count >= told.events.unwrap_or(0), "{what}: {id} has {count} events, {told:?}");
        assert_eq!(session.events, texts(0, count), "{what}: {id}");
        let tail = session.tail.map(|tail| {
            for (index, part) in tail.parts.iter().enumerate() {
                assert_eq!(*part, format!("{}/{index}", tail.attempt), "{what}: {id}");
            }
            (tail.attempt, tail.parts.len())
        });
        assert!(tail >= told.tail, "{what}: {id} has the tail {tail:?}, {told:?}");
        found.push(Told { at: 0, events: Some(count), tail });
    }
    let value = shelf.value("k").unwrap_or_else(|error| panic!("{what}: {error}"));
    let version = value.map_or(0, |value| std::str::from_utf8(&value).unwrap().parse().unwrap());
    let promised = history.values.iter().rfind(|(told, _)| *told <= at).unwrap().1;
    assert!(version >= promised, "{what}: value {version} instead of {promised}");
    found
}

#[tokio::test]
async fn nothing_durable_is_lost_and_no_gap_is_seen_when_the_power_goes() {
    let seed = seed(20_260_102);
    let mut cases = 0;
    for round in 0..40 {
        let mut dice = Dice(seed.wrapping_add(round));
        let mut start = Files::new();
        let mut first = vec![Told::default(); SESSIONS];
        for life in 0..3 {
            let disk = ModelDisk::from_files(&start);
            let history = live(&disk, &first, &mut dice, round % 2 == 1).await;
            let mut next = None;
            for cut in [Cut::None, Cut::Prefix, Cut::Subset, Cut::Subset] {
                for _ in 0..6 {
                    let at = dice.below(disk.at() + 1);
                    let files = disk.after_power_cut(&start, at, cut, &mut dice);
                    let what = format!("seed {seed} round {round} life {life} {cut:?} at {at}");
                    if !files.contains_key(Path::new("/store/format")) {
                        continue;
                    }
                    let found = check(&ModelDisk::from_files(&files), &history, at, &what);
                    cases += 1;
                    next = Some((files, found));
                }
            }
            if let Some((mut files, found)) = next {
                // Its versions begin anew with each life.
                files.remove(Path::new("/store/values/k.value"));
                (start, first) = (files, found);
            }
        }
    }
    assert!(cases > 1000, "{cases}");
    println!("power cuts of jsonl: cases run {cases}, faults found 0");
}
