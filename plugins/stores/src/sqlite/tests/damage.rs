//! Every byte of a small store is damaged, and it is cut at every length: nothing wrong is served,
//! and nothing that was acknowledged is missing without a word but what a torn end of the log held.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use playhouse_plugin_api::store::StoredTail;

use super::*;
use crate::sqlite::reader::{connect_to_read, look};

/// What a store holds, as far as it can be read.
#[derive(Debug, Clone, Default, PartialEq)]
struct State {
    sessions: BTreeMap<String, (Vec<Bytes>, Option<StoredTail>)>,
    value: Option<Bytes>,
}

/// A store's files, and its states after each commit.
struct Sample {
    database: Vec<u8>,
    log: Vec<u8>,
    states: Vec<State>,
}

const IDS: [&str; 3] = ["a", "b", "c"];
const DATABASE: &str = "sessions.sqlite";
const LOG: &str = "sessions.sqlite-wal";

fn events(id: &str, first_seq: u64, count: u64) -> Vec<Bytes> {
    let text = |seq| format!(r#"{{"type":"x","seq":{seq},"of":"{id}{seq}"}}"#);
    (first_seq..first_seq + count).map(|seq| Bytes::from(text(seq))).collect()
}

/// In memory if the system has such a place: nothing here is about syncs.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

async fn sample(crashed: bool) -> Sample {
    let dir = scratch();
    let mut states = vec![State::default()];
    let config = SqliteConfig { page_bytes: 512, ..SqliteConfig::default() };
    let store = SqliteStore::open(dir.path(), config.clone()).await.unwrap();
    let step = async |store: &SqliteStore,
                      id: &'static str,
                      count: u64,
                      tail: bool,
                      states: &mut Vec<State>| {
        let mut state = states.last().unwrap().clone();
        let (writer, held) = match store.open_write(&id.into()).await {
            Ok((writer, session)) => (writer, session.events.len() as u64),
            Err(_) => (store.create(&header(id), 0).await.unwrap(), 0),
        };
        let batch = playhouse_plugin_api::store::EventBatch {
            first_seq: held,
            events: events(id, held, count),
        };
        writer.append(batch.clone()).await.unwrap();
        state.sessions.entry(id.to_owned()).or_default().0.extend(batch.events);
        states.push(state.clone());
        if tail {
            let part = Bytes::from_static(b"part");
            writer.tail(7, part.clone()).await.unwrap();
            state.sessions.get_mut(id).unwrap().1 =
                Some(StoredTail { attempt: 7, parts: vec![part] });
            states.push(state);
        }
        writer.close().await.unwrap();
    };
    step(&store, "a", 12, false, &mut states).await;
    step(&store, "gone", 20, false, &mut states).await;
    store.delete(&"gone".into()).await.unwrap();
    states.last_mut().unwrap().sessions.remove("gone");
    store.put_value("k", Bytes::from_static(b"value")).await.unwrap();
    states.last_mut().unwrap().value = Some(Bytes::from_static(b"value"));
    store.close().await.unwrap();
    let store = SqliteStore::open(dir.path(), config).await.unwrap();
    if crashed {
        states = vec![states.pop().unwrap()];
    }
    step(&store, "b", 3, true, &mut states).await;
    step(&store, "c", 2, false, &mut states).await;
    let read = |name| std::fs::read(dir.path().join(name)).unwrap_or_default();
    let sample = if crashed {
        Sample { database: read(DATABASE), log: read(LOG), states }
    } else {
        store.close().await.unwrap();
        Sample { database: read(DATABASE), log: Vec::new(), states }
    };
    drop(store);
    let bytes = sample.database.len() + sample.log.len();
    assert!(bytes <= 16 << 10, "{bytes} bytes");
    sample
}

fn put(dir: &Path, database: &[u8], log: &[u8]) {
    std::fs::write(dir.join(DATABASE), database).unwrap();
    for name in [LOG, "sessions.sqlite-shm", "sessions.sqlite-journal"] {
        let _ = std::fs::remove_file(dir.join(name));
    }
    if !log.is_empty() {
        std::fs::write(dir.join(LOG), log).unwrap();
    }
}

/// What can be read, and what is refused.
fn observe(dir: &Path) -> (State, Vec<String>) {
    let mut state = State::default();
    let mut refusals = Vec::new();
    if let Err(fault) = read_all(dir, &mut state, &mut refusals) {
        refusals.push(fault.of_store(dir).to_string());
    }
    (state, refusals)
}

fn read_all(dir: &Path, state: &mut State, refusals: &mut Vec<String>) -> Result<(), Fault> {
    let connection = connect_to_read(dir, Duration::ZERO)?;
    let snapshot = connection.unchecked_transaction()?;
    let (store, damages) = look(dir, &snapshot, Duration::ZERO)?;
    refusals.extend(damages);
    let view = View { connection: &snapshot, seal: store.seal() };
    for id in IDS {
        let row = view.row(&id.into());
        match row.and_then(|row| row.map(|row| view.session(&row)).transpose()) {
            Ok(None) => {}
            Ok(Some(session)) => {
                assert_eq!(session.header, header(id));
                state.sessions.insert(id.to_owned(), (session.events, session.tail));
            }
            Err(fault) => refusals.push(fault.of_session(dir, &id.into()).to_string()),
        }
    }
    match view.value("k") {
        Ok(value) => state.value = value,
        Err(fault) => refusals.push(fault.of_store(dir).to_string()),
    }
    if refusals.is_empty() {
        let ids: Vec<_> = view.page("", 100).rows.into_iter().map(|row| row.id).collect();
        assert_eq!(ids, state.sessions.keys().cloned().collect::<Vec<_>>(), "the list");
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Counts {
    cases: usize,
    prefix: usize,
    refused: usize,
    unharmed: usize,
    wrong: Vec<String>,
    panics: Vec<String>,
}

impl Counts {
    fn report(&self, what: &str) {
        println!(
            "{what} {}: prefix {}, refused {}, unharmed {}; wrong {}, panics {}",
            self.cases,
            self.prefix,
            self.refused,
            self.unharmed,
            self.wrong.len(),
            self.panics.len()
        );
        assert!(self.wrong.is_empty(), "{:?}", &self.wrong[..self.wrong.len().min(5)]);
        assert!(self.panics.is_empty(), "{:?}", &self.panics[..self.panics.len().min(5)]);
    }

    fn and(mut self, other: Self) -> Self {
        self.cases += other.cases;
        self.prefix += other.prefix;
        self.refused += other.refused;
        self.unharmed += other.unharmed;
        self.wrong.extend(other.wrong);
        self.panics.extend(other.panics);
        self
    }

    /// Judges damaged files; `may_end` says in which earlier states the store may be found.
    fn judge(&mut self, dir: &Path, sample: &Sample, what: &str, may_end: impl Fn(usize) -> bool) {
        self.cases += 1;
        let Ok((state, refusals)) = catch_unwind(AssertUnwindSafe(|| observe(dir))) else {
            return self.panics.push(what.to_owned());
        };
        for (id, found) in &state.sessions {
            let was = |earlier: &State| earlier.sessions.get(id) == Some(found);
            if !sample.states.iter().any(was) {
                return self.wrong.push(format!("{what}: session {id} is {found:?}"));
            }
        }
        if !refusals.is_empty() {
            self.refused += 1;
            if let Some(vague) = refusals.iter().find(|text| !text.contains(DATABASE)) {
                self.wrong.push(format!("{what}: names no place: {vague}"));
            }
            return;
        }
        match sample.states.iter().rposition(|earlier| *earlier == state) {
            Some(at) if at + 1 == sample.states.len() => self.unharmed += 1,
            Some(at) if may_end(at) => self.prefix += 1,
            Some(at) => self.wrong.push(format!("{what}: silently back at state {at}")),
            None => self.wrong.push(format!("{what}: never was {state:?}")),
        }
    }
}

/// Where the log's last commit begins: nothing before it may be lost without a word.
fn last_commit(log: &[u8]) -> usize {
    let frames = (32..log.len()).step_by(24 + 512);
    let ends: Vec<usize> = frames.filter(|at| log[at + 4..at + 8] != [0; 4]).collect();
    ends[ends.len() - 2] + 24 + 512
}

fn flipped(bytes: &[u8], at: usize, mask: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= mask;
    bytes
}

/// Tries each place in a directory of its own thread.
fn sweep(places: usize, judge: impl Fn(&mut Counts, &Path, usize) + Sync) -> Counts {
    const THREADS: usize = 2;
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|first| {
                let judge = &judge;
                scope.spawn(move || {
                    let (dir, mut counts) = (scratch(), Counts::default());
                    for at in (first..places).step_by(THREADS) {
                        judge(&mut counts, dir.path(), at);
                    }
                    counts
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    counts.into_iter().fold(Counts::default(), Counts::and)
}

#[tokio::test]
async fn every_flip_and_every_cut_of_a_closed_store_is_noticed() {
    let sample = sample(false).await;
    let flips = sweep(sample.database.len(), |flips, dir, at| {
        put(dir, &flipped(&sample.database, at, mask(at)), &[]);
        flips.judge(dir, &sample, &format!("byte {at}"), |_| false);
    });
    flips.report("closed, flips");
    let cuts = sweep(sample.database.len(), |cuts, dir, at| {
        put(dir, &sample.database[..at], &[]);
        cuts.judge(dir, &sample, &format!("cut at {at}"), |_| false);
    });
    cuts.report("closed, truncations");
}

#[tokio::test]
async fn every_flip_after_a_crash_is_noticed_or_the_torn_end_of_the_log() {
    let sample = sample(true).await;
    let Sample { database, log, states } = &sample;
    let flips = sweep(database.len(), |flips, dir, at| {
        put(dir, &flipped(database, at, mask(at)), log);
        flips.judge(dir, &sample, &format!("byte {at}"), |_| false);
    });
    flips.report("after a crash, flips of the database");
    let last = last_commit(log);
    let flips = sweep(log.len(), |flips, dir, at| {
        put(dir, database, &flipped(log, at, mask(at)));
        // A last commit that is damaged cannot be told from one that was torn.
        let torn = |end| at >= last && end + 2 == states.len();
        flips.judge(dir, &sample, &format!("log byte {at}"), torn);
    });
    flips.report("after a crash, flips of the log");
}

#[tokio::test]
async fn a_log_that_is_cut_anywhere_ends_with_a_commit() {
    let sample = sample(true).await;
    let cuts = sweep(sample.log.len(), |cuts, dir, at| {
        put(dir, &sample.database, &sample.log[..at]);
        cuts.judge(dir, &sample, &format!("log cut at {at}"), |_| true);
    });
    assert_eq!(cuts.refused, 0);
    cuts.report("after a crash, truncations of the log");
}

/// A bit in some bytes, all bits in others.
fn mask(at: usize) -> u8 {
    [1 << (at % 8), 0xff][at / 8 % 2]
}

/// Writing over damage: what is acknowledged then is there or refused, and never something else.
#[tokio::test]
async fn a_damaged_store_that_is_written_serves_nothing_wrong() {
    let mut counts = Counts::default();
    for crashed in [false, true] {
        let sample = sample(crashed).await;
        let dir = scratch();
        let whole = [&sample.database[..], &sample.log[..]].concat();
        for at in (0..whole.len()).step_by(37) {
            counts.cases += 1;
            let what = format!("crashed {crashed}, byte {at}");
            let damaged = flipped(&whole, at, 1 << (at % 7));
            let (database, log) = damaged.split_at(sample.database.len());
            put(dir.path(), database, log);
            let config = SqliteConfig { busy_timeout: Duration::ZERO, ..SqliteConfig::default() };
            let Ok(store) = SqliteStore::open(dir.path(), config).await else {
                counts.refused += 1;
                continue;
            };
            let mut added = BTreeMap::new();
            for id in IDS {
                let Ok((writer, held)) = store.open_write(&id.into()).await else { continue };
                let first_seq = held.events.len() as u64;
                let events = events(id, first_seq, 30);
                let batch = playhouse_plugin_api::store::EventBatch { first_seq, events };
                if writer.append(batch.clone()).await.is_ok() {
                    added.insert(id, [held.events, batch.events].concat());
                }
            }
            store.close().await.unwrap();
            let (state, refusals) = observe(dir.path());
            for (id, (found, _)) in &state.sessions {
                let expected = events(id, 0, found.len() as u64);
                if *found != expected || added.get(&**id).is_some_and(|added| added != found) {
                    counts.wrong.push(format!("{what}: session {id} is {found:?}"));
                }
            }
            let lost = added.keys().any(|id| !state.sessions.contains_key(*id));
            if lost && refusals.is_empty() {
                counts.wrong.push(format!("{what}: lost without a word"));
            }
            if refusals.is_empty() { counts.unharmed += 1 } else { counts.refused += 1 }
        }
    }
    counts.report("written over damage, flips");
}
