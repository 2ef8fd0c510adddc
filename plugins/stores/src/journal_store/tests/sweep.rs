//! Every byte of a small store is changed, and every file of it cut at every length.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;
use crate::journal::Depth;
use crate::journal_store::reading::view;

type Files = BTreeMap<PathBuf, Vec<u8>>;

const DELETED: &str = "deleted";

/// What a store shows of one session.
type Shown = (Vec<Bytes>, Option<Vec<Bytes>>);

struct Sample {
    files: Files,
    sessions: BTreeMap<String, Shown>,
}

/// Seven sessions in several segments, one of them deleted, with tails and values; the last segment as
/// a crash leaves it.
async fn sample() -> Sample {
    let disk = ModelDisk::default();
    let mut config = small();
    config.journal.segment_bytes = 1_800;
    let store = on_model(&disk, config).await.unwrap();
    let mut writers = BTreeMap::new();
    for id in [DELETED, "a", "b", "c", "d", "e", "f"] {
        writers.insert(id, store.create(&header(id), 0).await.unwrap());
    }
    writers[DELETED].append(batch(0, 3)).await.unwrap();
    writers.remove(DELETED).unwrap().close().await.unwrap();
    store.put_value("k", Bytes::from_static(b"old")).await.unwrap();
    for round in 0..3 {
        for writer in writers.values() {
            writer.append(batch(round * 2, 2)).await.unwrap();
        }
        if round == 1 {
            store.delete(&DELETED.into()).await.unwrap();
            store.put_value("k", Bytes::from_static(b"new")).await.unwrap();
        }
    }
    writers["b"].tail(9, Bytes::from_static(b"part one")).await.unwrap();
    writers["b"].tail(9, Bytes::from_static(b"part two")).await.unwrap();
    writers["c"].append(batch(6, 1)).await.unwrap();
    writers["d"].append(batch(6, 1)).await.unwrap();
    store.flush().await.unwrap();
    let mut sessions = BTreeMap::new();
    for id in writers.keys() {
        let session = store.read(&SessionId::from(*id)).await.unwrap();
        sessions.insert((*id).to_owned(), (session.events, session.tail.map(|tail| tail.parts)));
    }
    Sample { files: disk.files(), sessions }
}

/// What a reader of the whole makes of damaged files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Whole,
    /// The last batch was taken for one that a crash has torn.
    Torn,
    /// The place was named.
    Named,
    /// The store was refused as a whole.
    Refused,
}

#[derive(Debug, Default)]
struct Counts {
    cases: usize,
    verdicts: BTreeMap<Verdict, usize>,
}

impl Counts {
    /// Fails the test if anything wrong is served, or anything is lost without a word; `ends` says that
    /// the end of the journal may be missing.
    fn judge(&mut self, sample: &Sample, files: &Files, ends: bool, what: &str) {
        self.cases += 1;
        let disk: Arc<dyn Disk> = Arc::new(ModelDisk::from_files(files));
        let mut verdict = None;
        for depth in [Depth::Full, Depth::Footers] {
            let what = format!("{what} ({depth:?})");
            let (core, found) = match view(&disk, Path::new("/store"), depth) {
                Ok(viewed) => viewed,
                Err(error) => {
                    assert!(error.to_string().contains("/store"), "{what}: {error}");
                    verdict.get_or_insert(Verdict::Refused);
                    continue;
                }
            };
            // What was there a moment before is right only where the end may be missing.
            let torn = ends || found.torn.is_some() || !found.empty.is_empty();
            let earlier = torn || found.damages.iter().any(|damage| !damage.known);
            let mut differs = false;
            for (id, (events, parts)) in &sample.sessions {
                match core.read(&id.as_str().into()) {
                    Ok((session, _)) => {
                        let same = session.events == *events
                            && session.tail.as_ref().map(|tail| &tail.parts) == parts.as_ref();
                        let count = session.events.len().min(events.len());
                        let prefix = session.events == events[..count];
                        assert!(same || (prefix && earlier), "{what}: {id} reads wrong");
                        differs |= !same;
                    }
                    Err(StoreError::Corrupt { place, .. }) => {
                        assert!(!place.is_empty(), "{what}");
                        assert!(depth == Depth::Footers || !found.damages.is_empty(), "{what}");
                        differs = true;
                    }
                    Err(error) => {
                        assert_eq!(error.code(), "SESSION_NOT_FOUND", "{what}: {error}");
                        assert!(earlier || !found.damages.is_empty(), "{what}: {id} is gone");
                        differs = true;
                    }
                }
            }
            let back = core.read(&DELETED.into());
            assert!(back.is_err() || earlier, "{what}: a deleted session is back");
            match core.value(b"k") {
                Ok(value) => {
                    let new = value == Some(Bytes::from_static(b"new"));
                    assert!(new || earlier, "{what}: {value:?}");
                    differs |= !new;
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    differs = true;
                }
            }
            let page = core.list(&ListQuery::default()).unwrap();
            for stat in page.sessions {
                let id = stat.header.id.as_str();
                assert!(sample.sessions.contains_key(id) || earlier, "{what}: {id} is listed");
            }
            let fits = if !found.damages.is_empty() {
                Verdict::Named
            } else if differs {
                Verdict::Torn
            } else {
                Verdict::Whole
            };
            verdict.get_or_insert(fits);
        }
        *self.verdicts.entry(verdict.unwrap()).or_default() += 1;
    }
}

/// A writer over damaged files changes nothing of what can be read, and goes on.
async fn write_on(sample: &Sample, files: &Files, what: &str) {
    let disk = ModelDisk::from_files(files);
    let Ok(store) = on_model(&disk, small()).await else { return };
    let writer = store.create(&header("new"), 0).await.unwrap();
    writer.append(batch(0, 4)).await.unwrap();
    store.close().await.unwrap();
    drop((writer, store));
    let store = on_model(&disk, small()).await.unwrap();
    assert_eq!(store.read(&"new".into()).await.unwrap().events, texts(0, 4), "{what}");
    for (id, (events, _)) in &sample.sessions {
        match store.read(&id.as_str().into()).await {
            Ok(session) => {
                let count = session.events.len().min(events.len());
                assert_eq!(session.events, events[..count], "{what}: {id}");
            }
            Err(error) => {
                let codes = ["STORE_CORRUPT", "SESSION_NOT_FOUND"];
                assert!(codes.contains(&error.code()), "{what}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn every_flipped_byte_of_a_small_store_is_harmless_or_named() {
    let seed = seed(29);
    let mut dice = Dice(seed);
    let sample = sample().await;
    let mut counts = Counts::default();
    let bytes: usize = sample.files.values().map(Vec::len).sum();
    assert!(bytes <= 16 << 10, "{bytes}");
    for (path, whole) in &sample.files {
        for at in 0..whole.len() {
            let mut files = sample.files.clone();
            let mask = 1 + dice.below(255) as u8;
            files.get_mut(path).unwrap()[at] ^= mask;
            let what = format!("seed {seed}: byte {at} of {} ^ {mask}", path.display());
            counts.judge(&sample, &files, false, &what);
            if counts.cases % 64 == 0 {
                write_on(&sample, &files, &what).await;
            }
        }
    }
    println!("flipped bytes of a journal store of {bytes} bytes: {counts:?}, faults found 0");
}

#[tokio::test]
async fn every_truncation_of_a_small_store_is_a_prefix_or_named() {
    let sample = sample().await;
    let mut counts = Counts::default();
    let last = sample.files.keys().rfind(|path| path.starts_with("/store/journal")).unwrap();
    for (path, whole) in &sample.files {
        for length in 0..whole.len() {
            let mut files = sample.files.clone();
            files.get_mut(path).unwrap().truncate(length);
            let what = format!("{} cut to {length}", path.display());
            // A cut between two batches of the segment that is being written leaves a whole journal.
            counts.judge(&sample, &files, path == last, &what);
            if counts.cases % 64 == 0 {
                write_on(&sample, &files, &what).await;
            }
        }
    }
    println!("truncations of a journal store: {counts:?}, faults found 0");
}
