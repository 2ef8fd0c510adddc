//! All stores are given the same random life, with closings, crashes and reopenings between; none
//! may be told from the others by anything that it shows or answers.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, TryStreamExt as _};
use playhouse_messages::id::SessionId;
use playhouse_messages::testing::Grower;
use playhouse_plugin_api::store::{
    EventBatch, ListQuery, SessionStat, SessionWriter, Store, StoreError, ValueQuery, all_values,
};

use super::backends;
use super::fixtures::header;
use crate::journal::tests::model_disk::{Dice, seed};
use crate::{
    JournalStore, JournalStoreConfig, JsonlConfig, JsonlStore, MemoryStore, compact, verify,
};

/// A kind of store in a directory of its own.
trait Contestant {
    /// Opens a life; the one before is closed, or was left as a kill leaves it.
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>>;

    /// What may be done to it between two lives.
    fn maintain(&self) {}

    /// Moves to what a kill at this moment leaves; the store of this life is not used any more.
    fn crash(&mut self) {}

    /// Looks for damage when all is over.
    fn inspect(&self) {}
}

struct InMemory(MemoryStore);

impl Contestant for InMemory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        let store = self.0.reopen();
        async move { Arc::new(store) as Arc<dyn Store> }.boxed()
    }
}

/// A directory that is copied to crash: everything acknowledged is in the files.
struct Dir {
    root: tempfile::TempDir,
    lives: usize,
}

impl Dir {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap(), lives: 0 }
    }

    fn path(&self) -> PathBuf {
        self.root.path().join(self.lives.to_string())
    }

    fn crash(&mut self) {
        let from = self.path();
        self.lives += 1;
        copy(&from, &self.path());
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for (path, bytes) in backends::files(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
}

struct InJournal {
    dir: Dir,
    index: bool,
}

impl Contestant for InJournal {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        let mut config = JournalStoreConfig { index: self.index, ..JournalStoreConfig::default() };
        config.journal.segment_bytes = 3000;
        config.journal.reserve_bytes = 0;
        let dir = self.dir.path();
        async { Arc::new(JournalStore::open(dir, config).await.unwrap()) as Arc<dyn Store> }.boxed()
    }

    fn maintain(&self) {
        compact(self.dir.path()).unwrap();
    }

    fn crash(&mut self) {
        self.dir.crash();
    }

    fn inspect(&self) {
        let report = verify(self.dir.path(), |_| ()).unwrap();
        assert!(report.is_whole(), "{report}");
    }
}

struct InJsonl(Dir);

impl Contestant for InJsonl {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        let dir = self.0.path();
        async {
            Arc::new(JsonlStore::open(dir, JsonlConfig::default()).await.unwrap()) as Arc<dyn Store>
        }
        .boxed()
    }

    fn crash(&mut self) {
        self.0.crash();
    }

    fn inspect(&self) {
        let report = verify(self.0.path(), |_| ()).unwrap();
        assert!(report.is_whole(), "{report}");
    }
}

#[cfg(feature = "sqlite")]
struct InSqlite(Dir);

#[cfg(feature = "sqlite")]
impl Contestant for InSqlite {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        let opening = crate::SqliteStore::open(self.0.path(), crate::SqliteConfig::default());
        async { Arc::new(opening.await.unwrap()) as Arc<dyn Store> }.boxed()
    }

    fn maintain(&self) {
        crate::compact_sqlite(self.0.path()).unwrap();
    }

    fn crash(&mut self) {
        self.0.crash();
    }

    fn inspect(&self) {
        let report = verify(self.0.path(), |_| ()).unwrap();
        assert!(report.is_whole(), "{report}");
    }
}

fn contestants() -> Vec<Box<dyn Contestant>> {
    vec![
        Box::new(InMemory(MemoryStore::new())),
        Box::new(InJournal { dir: Dir::new(), index: true }),
        Box::new(InJournal { dir: Dir::new(), index: false }),
        Box::new(InJsonl(Dir::new())),
        #[cfg(feature = "sqlite")]
        Box::new(InSqlite(Dir::new())),
    ]
}

/// A log that a session would accept, as texts.
fn log(dice: &mut Dice) -> Vec<Bytes> {
    let choices: Vec<_> =
        (0..400 + dice.below(400)).map(|_| (dice.next() as u8, dice.next() as u8)).collect();
    let log = Grower::grown(&choices).log;
    log.iter().map(|event| Bytes::from(event.to_json())).collect()
}

/// Everything that a store shows.
async fn shown(store: &dyn Store, limit: usize) -> String {
    let (mut out, mut after) = (String::new(), None);
    loop {
        let page = store.list(ListQuery { after, limit }).await.unwrap();
        for stat in page.sessions {
            let id = &stat.header.id;
            let session = store.read(id).await.unwrap();
            let mut parts = Vec::new();
            let count = stat.event_count;
            let all = u64::MAX;
            for (from, to) in
                [(3, count.max(5) - 1), (0, 2), (count / 2, all), (count, count + 3), (2, 1)]
            {
                parts.push(store.read_events(id, from..to).await.unwrap());
            }
            let inherited = session.inherited_event_count;
            let SessionStat { header, event_count, size_bytes, .. } = stat;
            let (events, tail) = (session.events, session.tail);
            out += &format!("{header:?} {inherited} {event_count} {size_bytes} {tail:?}\n");
            out += &format!("{events:?} {parts:?}\n");
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    for n in 0..5 {
        out += &format!("{:?}\n", store.get_value(&format!("k{n}")).await.unwrap());
    }
    let keys: Vec<_> = all_values(store).try_collect().await.unwrap();
    let query = ValueQuery { after: Some("k1".to_owned()), limit };
    out += &format!("{keys:?} {:?}\n", store.list_values(query).await.unwrap());
    out
}

/// The one answer of all.
fn agreed<T: PartialEq + Debug>(answers: Vec<T>, what: &str) -> T {
    let mut answers = answers.into_iter();
    let first = answers.next().unwrap();
    for (n, answer) in (1..).zip(answers) {
        assert_eq!(answer, first, "{what}: store {n} differs from the first");
    }
    first
}

/// What a call came to, without the names of stores.
fn code<T>(result: &Result<T, StoreError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(StoreError::NotFound { .. }) => "SESSION_NOT_FOUND".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// One writer a store.
type Writers = Vec<Arc<dyn SessionWriter>>;

async fn each<'a, T>(
    writers: &'a Writers,
    call: impl Fn(&'a Arc<dyn SessionWriter>) -> BoxFuture<'static, T>,
) -> Vec<T> {
    futures::future::join_all(writers.iter().map(call)).await
}

async fn life(seed: u64, steps: usize) -> usize {
    let mut dice = Dice(seed);
    let mut contestants = contestants();
    let mut stores = Vec::new();
    for contestant in &contestants {
        stores.push(contestant.open().await);
    }
    let logs: Vec<_> = (0..5).map(|_| log(&mut dice)).collect();
    let mut writers: BTreeMap<usize, Writers> = BTreeMap::new();
    let mut written = 0;
    for step in 0..steps {
        let what = format!("seed {seed} step {step}");
        let n = dice.below(5);
        let id = SessionId::from(format!("s{n}"));
        match dice.below(100) {
            0..10 => {
                let mut made = Vec::new();
                let seeded =
                    if n == 3 { super::fixtures::full_header("s3") } else { header(id.as_str()) };
                for store in &stores {
                    made.push(store.create(&seeded, if n == 3 { 2 } else { 0 }).await);
                }
                agreed(made.iter().map(code).collect(), &what);
                if let Ok(made) = made.into_iter().collect() {
                    writers.insert(n, made);
                }
            }
            10..22 => {
                let mut opened = Vec::new();
                for store in &stores {
                    opened.push(store.open_write(&id).await);
                }
                agreed(opened.iter().map(code).collect(), &what);
                if let Ok(opened) = opened.into_iter().collect::<Result<Vec<_>, _>>() {
                    let (handles, sessions): (Writers, Vec<_>) = opened.into_iter().unzip();
                    let whole = |s| format!("{s:?}");
                    agreed(sessions.into_iter().map(whole).collect(), &what);
                    writers.insert(n, handles);
                }
            }
            22..60 => {
                let Some(writers) = writers.get(&n) else { continue };
                let stored = stores[0].stat(&id).await.unwrap().map_or(0, |stat| stat.event_count);
                // Mostly what follows, at times again, with a gap, or something else.
                let back = [0, 0, 0, 1, 3][dice.below(5)];
                let first_seq = stored.saturating_sub(back) + u64::from(dice.chance(5));
                let events = logs[n].iter().skip(first_seq as usize).take(dice.below(20));
                let mut events: Vec<_> = events.cloned().collect();
                if dice.chance(5)
                    && let Some(event) = events.last_mut()
                {
                    *event = Bytes::from_static(b"{\"type\":\"x\",\"seq\":1,\"data\":[-0.0]}");
                }
                let batch = EventBatch { first_seq, events };
                let answers = each(writers, |writer| writer.append(batch.clone())).await;
                if agreed(answers, &what).is_ok() {
                    written += batch.events.len();
                }
            }
            60..69 => {
                let Some(writers) = writers.get(&n) else { continue };
                let (attempt, part) = (dice.next() % 3, Bytes::from(format!("part {step}")));
                agreed(each(writers, |writer| writer.tail(attempt, part.clone())).await, &what)
                    .unwrap();
            }
            69..72 => {
                let Some(writers) = writers.get(&n) else { continue };
                agreed(each(writers, |writer| writer.flush()).await, &what).unwrap();
            }
            72..79 => {
                let Some(writers) = writers.remove(&n) else { continue };
                agreed(each(&writers, |writer| writer.close()).await, &what).unwrap();
            }
            79..85 => {
                let mut deleted = Vec::new();
                for store in &stores {
                    deleted.push(code(&store.delete(&id).await));
                }
                agreed(deleted, &what);
            }
            85..91 => {
                let (key, value) = (format!("k{}", n % 5), Bytes::from(vec![7; dice.below(90)]));
                let removes = dice.chance(30);
                for store in &stores {
                    let done = match removes {
                        true => store.remove_value(&key).await,
                        false => store.put_value(&key, value.clone()).await,
                    };
                    done.unwrap();
                }
            }
            91..96 => {
                writers.clear();
                for store in stores.drain(..) {
                    store.close().await.unwrap();
                }
                let maintained = dice.chance(40);
                for contestant in &contestants {
                    if maintained {
                        contestant.maintain();
                    }
                    stores.push(contestant.open().await);
                }
            }
            _ => {
                for contestant in &mut contestants {
                    contestant.crash();
                }
                // Of the storage that was left: what is done to it now is seen by nobody.
                writers.clear();
                for store in stores.drain(..) {
                    store.close().await.unwrap();
                }
                for contestant in &contestants {
                    stores.push(contestant.open().await);
                }
            }
        }
        if step % 5 == 0 {
            let limit = 1 + dice.below(9);
            let mut all = Vec::new();
            for store in &stores {
                all.push(shown(&**store, limit).await);
            }
            agreed(all, &what);
        }
    }
    writers.clear();
    for (store, contestant) in stores.iter().zip(&contestants) {
        store.close().await.unwrap();
        contestant.inspect();
    }
    written
}

#[tokio::test]
async fn the_stores_cannot_be_told_apart() {
    let (seed, rounds, steps) = (seed(23), 10, 120);
    let mut written = 0;
    for round in 0..rounds {
        written += life(seed.wrapping_add(round), steps).await;
    }
    let stores = contestants().len();
    println!(
        "one random life in {stores} stores: lives {rounds}, steps {}, events {written}, differences 0",
        rounds as usize * steps
    );
}
