use std::collections::BTreeMap;

use playhouse_plugin_api::store::all_values;

use super::*;
use crate::contract::{batch, header, texts};
use crate::journal::tests::model_disk::{Dice, seed};
use crate::{JournalStore, JournalStoreConfig};

const SESSIONS: u64 = 12;
const EVENTS: u64 = 30;

fn small() -> JournalStoreConfig {
    JournalStoreConfig::default().segment_bytes(6_000).reserve_bytes(0)
}

/// Sessions whose events lie between each other's, in several segments; closed, or as a crash leaves
/// it.
async fn make(dir: &Path, closed: bool) {
    let store = JournalStore::open(dir, small()).await.unwrap();
    let mut writers = Vec::new();
    for n in 0..SESSIONS {
        writers.push(store.create(&header(&format!("s{n:02}")), 0).await.unwrap());
    }
    for seq in (0..EVENTS).step_by(3) {
        for writer in &writers {
            writer.append(batch(seq, 3)).await.unwrap();
        }
    }
    for n in 0..4 {
        store.put_value(&format!("k{n}"), Bytes::from(format!("v{n}"))).await.unwrap();
    }
    writers[0].tail(7, Bytes::from_static(b"part")).await.unwrap();
    if closed {
        store.close().await.unwrap();
    } else {
        store.flush().await.unwrap();
    }
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.insert(entry.path(), std::fs::read(entry.path()).unwrap());
        }
    }
    found
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    files(&dir.join("journal")).into_keys().collect()
}

async fn run(from: &Path, into: &Path) -> SalvageReport {
    salvage(from, into, StoreConfig::Journal(small()), |_| ()).await.unwrap()
}

/// Holds what came over against what was written, and against the report.
async fn check(report: &SalvageReport, what: &str) {
    let fresh = open_reader(&report.into).await.unwrap();
    let partial: BTreeMap<_, _> = report.partial.iter().map(|it| (it.id.clone(), it)).collect();
    for n in 0..SESSIONS {
        let id = SessionId::from(format!("s{n:02}"));
        let lost = report.lost.iter().any(|(lost, _)| *lost == id);
        match fresh.read(&id).await {
            Ok(session) => {
                let count = session.events.len() as u64;
                let told = partial.get(&id).map_or(EVENTS, |partial| partial.events);
                // The last batches of an unsealed journal, wiped, look as one that was torn; what two
                // bad ones in a row held, nobody can say.
                let earlier = report.torn.is_some() || report.is_more_lost;
                let fits = count == told || (count < told && earlier);
                assert!(!lost && fits, "{what}: {id}: {count} of {told}\n{report}");
                assert_eq!(session.events, texts(0, count), "{what}: {id}");
                assert_eq!(session.header, header(id.as_str()), "{what}: {id}");
            }
            Err(error) => {
                let named =
                    lost || report.lost.iter().any(|(id, _)| id.as_str().starts_with("number"));
                assert!(named || report.is_more_lost, "{what}: {id}: {error}\n{report}");
            }
        }
    }
    let (whole, partial) = (report.whole, report.partial.len() as u64);
    if !report.is_more_lost {
        assert_eq!(whole + partial + report.lost.len() as u64, SESSIONS, "{what}\n{report}");
    }
    assert!(crate::verify(&report.into, |_| ()).unwrap().is_whole(), "{what}");
}

#[tokio::test]
async fn a_whole_store_comes_over_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (from, into) = (dir.path().join("from"), dir.path().join("into"));
    make(&from, true).await;
    let before = files(&from);
    let mut steps = Vec::new();
    let report = salvage(&from, &into, StoreConfig::Journal(small()), |step| steps.push(step));
    let report = report.await.unwrap();
    assert!(report.is_whole(), "{report}");
    assert_eq!((report.whole, report.events, report.values), (SESSIONS, SESSIONS * EVENTS, 4));
    assert_eq!(steps.last(), Some(&Progress { done: SESSIONS, all: SESSIONS }));
    check(&report, "whole").await;
    let fresh = open_reader(&into).await.unwrap();
    assert_eq!(fresh.get_value("k3").await, Ok(Some(Bytes::from_static(b"v3"))));
    let tail = fresh.read(&"s00".into()).await.unwrap().tail.unwrap();
    assert_eq!((tail.attempt, tail.parts), (7, vec![Bytes::from_static(b"part")]));
    assert_eq!(files(&from), before, "the damaged store is evidence");
    let refused = salvage(&from, &into, StoreConfig::default(), |_| ()).await.unwrap_err();
    assert_eq!(refused.code(), "INVALID_ARGUMENT");
    assert!(refused.to_string().contains("not empty"), "{refused}");
}

#[tokio::test]
async fn a_store_damaged_in_the_middle_gives_back_every_other_session() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    make(&from, true).await;
    let path = segments(&from).remove(1);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&path, &bytes).unwrap();
    let before = files(&from);
    let report = run(&from, &dir.path().join("into")).await;
    check(&report, "one bit").await;
    assert!(!report.is_whole() && !report.is_more_lost, "{report}");
    // One batch was hit, and it held one append.
    assert_eq!((report.whole, report.partial.len(), report.lost.len()), (SESSIONS - 1, 1, 0));
    assert!(report.partial[0].events > 0, "{report}");
    assert!(report.partial[0].cause.to_string().contains("segment 2 offset"), "{report}");
    assert_eq!(files(&from), before);
    // An agent goes on from what is left.
    let store = JournalStore::open(dir.path().join("into"), small()).await.unwrap();
    let (writer, session) = store.open_write(&report.partial[0].id).await.unwrap();
    writer.append(batch(session.events.len() as u64, 2)).await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn whatever_the_damage_nothing_wrong_comes_over() {
    let seed = seed(17);
    let mut dice = Dice(seed);
    let dir = tempfile::tempdir().unwrap();
    let (mut partial, mut lost) = (0, 0);
    let cases = 40;
    for case in 0..cases {
        let (from, into) =
            (dir.path().join(format!("from {case}")), dir.path().join(format!("into {case}")));
        make(&from, case % 2 == 0).await;
        let mut paths = segments(&from);
        // A journal whose last file is gone, or ends between two batches, is a whole shorter one.
        let whole_after = usize::from(case % 5 < 2);
        let path = paths.remove(dice.below(paths.len() - whole_after));
        let mut bytes = std::fs::read(&path).unwrap();
        let at = dice.below(bytes.len());
        let what = match case % 5 {
            0 => {
                std::fs::remove_file(&path).unwrap();
                "a segment is gone"
            }
            1 => {
                bytes.truncate(at);
                "a segment is cut"
            }
            2 => {
                let end = bytes.len().min(at + 700);
                bytes[at..end].fill(0);
                "a stretch is zero"
            }
            3 => {
                bytes.drain(at..bytes.len().min(at + 100));
                "bytes are gone from the middle"
            }
            _ => {
                bytes[at] ^= 1 << dice.below(8);
                "a bit is flipped"
            }
        };
        if path.exists() {
            std::fs::write(&path, bytes).unwrap();
        }
        let what = format!("seed {seed} case {case}: {what}, {} at {at}", path.display());
        let report = run(&from, &into).await;
        check(&report, &what).await;
        partial += report.partial.len();
        lost += report.lost.len();
    }
    println!(
        "salvages: cases run {cases}, sessions in part {partial}, lost {lost}, faults found 0"
    );
}

/// SQLite alone would read nothing of a database whose end is gone.
#[tokio::test]
async fn what_lies_before_the_cut_of_a_database_comes_over() {
    let dir = tempfile::tempdir().unwrap();
    let (from, into) = (dir.path().join("from"), dir.path().join("into"));
    let config = StoreConfig::new(StoreKind::Sqlite);
    let store = config.clone().open(&from).await.unwrap();
    for n in 0..40 {
        let writer = store.create(&header(&format!("s{n:02}")), 0).await.unwrap();
        writer.append(batch(0, 50)).await.unwrap();
    }
    store.close().await.unwrap();
    let path = from.join("sessions.sqlite");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() * 2 / 3]).unwrap();
    let verified = crate::verify(&from, |_| ()).unwrap();
    assert!(verified.damages.iter().any(|text| text.contains("cut short")), "{verified}");
    assert!(config.clone().open(&from).await.is_err(), "a writer could make it worse");
    let report = salvage(&from, &into, config, |_| ()).await.unwrap();
    assert!(!report.is_whole() && report.is_more_lost, "{report}");
    assert!(report.whole >= 15, "{report}");
    assert!(crate::verify(&into, |_| ()).unwrap().is_whole());
    let fresh = open_reader(&into).await.unwrap();
    for stat in all_sessions(&*fresh).try_collect::<Vec<_>>().await.unwrap() {
        let stored = fresh.read(&stat.header.id).await.unwrap().events;
        assert_eq!(stored, texts(0, stored.len() as u64), "{}", stat.header.id);
    }
}

#[tokio::test]
async fn the_values_of_a_store_of_any_kind_come_over() {
    let kinds = StoreKind::ALL.iter().filter(|kind| **kind != StoreKind::Memory);
    for &kind in kinds {
        let dir = tempfile::tempdir().unwrap();
        let (from, into) = (dir.path().join("from"), dir.path().join("into"));
        let store = StoreConfig::new(kind).open(&from).await.unwrap();
        let long = "long ".repeat(200);
        for key in ["a/b", "é", &long, "gone"] {
            store.put_value(key, Bytes::from(key.to_owned())).await.unwrap();
        }
        store.remove_value("gone").await.unwrap();
        store.close().await.unwrap();
        let report = salvage(&from, &into, StoreConfig::new(kind), |_| ()).await.unwrap();
        assert!(report.is_whole() && report.values == 3, "{kind}: {report}");
        let fresh = open_reader(&into).await.unwrap();
        let keys: Vec<String> = all_values(&*fresh).try_collect().await.unwrap();
        assert_eq!(keys, ["a/b", &long, "é"], "{kind}");
        for key in keys {
            assert_eq!(fresh.get_value(&key).await, Ok(Some(Bytes::from(key))), "{kind}");
        }
    }
}

/// Changes one byte behind the first place of `text` in a file.
fn damage(path: &Path, text: &[u8]) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(text.len()).position(|found| found == text).unwrap();
    bytes[at + text.len() - 1] ^= 0x10;
    std::fs::write(path, &bytes).unwrap();
}

#[tokio::test]
async fn damage_after_a_compaction_costs_one_session_alone() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    make(&from, true).await;
    crate::compact(&from).unwrap();
    damage(&segments(&from)[0], b"\"s05\"");
    let report = run(&from, &dir.path().join("into")).await;
    assert_eq!((report.whole, report.lost.len()), (SESSIONS - 1, 1), "{report}");
    assert!(!report.is_more_lost && report.values == 4, "{report}");
}

#[tokio::test]
async fn a_damaged_file_of_lines_is_listed_refused_and_salvaged_up_to_the_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (from, into) = (dir.path().join("from"), dir.path().join("into"));
    let store = StoreConfig::new(StoreKind::Jsonl).open(&from).await.unwrap();
    for id in ["s", "t"] {
        let writer = store.create(&header(id), 0).await.unwrap();
        writer.append(batch(0, 6)).await.unwrap();
        writer.flush().await.unwrap();
        writer.append(batch(6, 2)).await.unwrap();
    }
    store.close().await.unwrap();
    damage(&from.join("sessions/s.jsonl"), b"\"seq\":4");
    let reader = open_reader(&from).await.unwrap();
    let listed: Vec<_> = all_sessions(&*reader).try_collect().await.unwrap();
    assert_eq!(listed.len(), 2, "a list that leaves it out would make a backup without it");
    let (id, count) = (SessionId::from("s"), listed[0].event_count);
    assert_eq!(reader.read(&id).await.unwrap_err().code(), "STORE_CORRUPT");
    assert_eq!(reader.read_events(&id, 0..count).await.unwrap_err().code(), "STORE_CORRUPT");
    assert_eq!(reader.read_events(&id, 1..4).await.unwrap(), texts(1, 3));
    let report = salvage(&from, &into, StoreConfig::new(StoreKind::Jsonl), |_| ()).await.unwrap();
    assert_eq!((report.whole, report.partial.len(), report.lost.len()), (1, 1, 0), "{report}");
    assert_eq!(report.partial[0].events, 4, "{report}");
    assert_eq!(open_reader(&into).await.unwrap().read(&id).await.unwrap().events, texts(0, 4));
}

#[test]
fn what_a_fork_has_inherited_stands_before_its_last_marker() {
    let text = |text: &'static str| Bytes::from_static(text.as_bytes());
    let note = text(r#"{"type":"x/y","seq":0,"time":1,"data":{}}"#);
    let marker = text(r#"{"type":"session/end-seed","seq":1,"time":1,"data":{"inherited":true}}"#);
    let other = text(r#"{"type":"session/end-seed","seq":1,"time":1,"data":{}}"#);
    assert_eq!(inherited(&[note.clone(), marker.clone(), note.clone(), marker, other]), 3);
    assert_eq!(inherited(&[note.clone(), note]), 2);
}
