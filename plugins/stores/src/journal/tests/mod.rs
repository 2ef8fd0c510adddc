//! Tests of the journal alone.

mod compaction;
mod damage;
mod faults;
mod golden;
pub mod model_disk;
mod power_loss;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes as Buffer;

use super::*;
use model_disk::ModelDisk;

pub const STORE: StoreId = *b"0123456789abcdef";

pub fn dir() -> PathBuf {
    PathBuf::from("/store")
}

pub fn small(segment_bytes: u64) -> JournalConfig {
    JournalConfig { segment_bytes, reserve_bytes: 0 }
}

pub fn open(disk: &ModelDisk, config: JournalConfig) -> (Writer, Recovered) {
    let mut writer = Writer::open(Arc::new(disk.clone()), &dir(), STORE, config).unwrap();
    let found = writer.resume(Depth::Footers).unwrap();
    (writer, found)
}

pub fn session(number: u64, id: &str) -> Record {
    Record::Session {
        session: number,
        id: id.to_owned(),
        inherited: 0,
        header: Buffer::from(format!("{{\"id\":\"{id}\"}}")),
    }
}

pub fn event(session: u64, seq: u64) -> Buffer {
    let filler = "x".repeat(((session * 31 + seq * 17) % 90) as usize);
    Buffer::from(format!("{{\"s\":{session},\"seq\":{seq},\"f\":\"{filler}\"}}"))
}

pub fn events(session: u64, first_seq: u64, count: u64) -> Record {
    Record::Events {
        session,
        first_seq,
        events: (first_seq..first_seq + count).map(|seq| event(session, seq)).collect(),
    }
}

pub fn read_all(disk: &ModelDisk, depth: Depth) -> Recovered {
    recover(disk, &dir(), &STORE, depth).unwrap()
}

/// The events of a session that can be read, or the error.
pub fn read_session(
    disk: &ModelDisk,
    found: &Recovered,
    number: u64,
) -> Result<Vec<Buffer>, JournalError> {
    let reader = Reader::new(Arc::new(disk.clone()), &dir(), &STORE);
    match found.map.sessions.get(&number) {
        Some(session) => reader.events(number, session, 0..u64::MAX),
        None => Ok(Vec::new()),
    }
}

pub fn expected_events(session: u64, count: u64) -> Vec<Buffer> {
    (0..count).map(|seq| event(session, seq)).collect()
}

/// Three sessions over three segments: two sealed, the last one as a crash leaves it.
pub struct Sample {
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// Number of events of each session, by its number.
    pub counts: BTreeMap<u64, u64>,
    /// Number of events of each session before the last batch.
    pub before_last: BTreeMap<u64, u64>,
    pub batches: u64,
}

pub fn sample() -> Sample {
    let disk = ModelDisk::default();
    let (mut writer, _) = open(&disk, small(900));
    let mut counts = BTreeMap::new();
    let mut before_last = BTreeMap::new();
    let mut batches = 0;
    writer
        .write(&[session(1, "one"), session(2, "two"), session(3, "three")], Urgency::Ordinary)
        .unwrap();
    while writer.segment() < 3 || batches < 12 {
        batches = writer.next_batch();
        before_last.clone_from(&counts);
        let mut records = Vec::new();
        for number in 1..=3 {
            if (batches + number) % 3 != 0 {
                let next = counts.entry(number).or_insert(0);
                records.push(events(number, *next, 1 + batches % 2));
                *next += 1 + batches % 2;
            }
        }
        writer.write(&records, Urgency::Ordinary).unwrap();
    }
    writer.sync().unwrap();
    let mut files = disk.files();
    files.retain(|path, _| {
        path.extension().is_some_and(|ext| ext == "segment") || path.ends_with("format")
    });
    Sample { files, counts, before_last, batches }
}

pub fn segment(number: u64) -> PathBuf {
    Path::new("/store/journal").join(format!("{number:016}.segment"))
}

#[test]
fn what_is_written_is_read_back_by_footers_and_by_a_full_scan() {
    let sample = sample();
    let disk = ModelDisk::from_files(&sample.files);
    for depth in [Depth::Footers, Depth::Full] {
        let found = read_all(&disk, depth);
        assert_eq!(found.damages, []);
        assert_eq!(found.next_batch, sample.batches + 1);
        for (&number, &count) in &sample.counts {
            let read = read_session(&disk, &found, number).unwrap();
            assert_eq!(read, expected_events(number, count));
        }
    }
}

#[test]
fn a_reopened_journal_goes_on_where_it_ended() {
    let disk = ModelDisk::default();
    let mut next = 0;
    for life in 0..5 {
        let (mut writer, found) = open(&disk, small(400));
        assert_eq!(found.damages, []);
        assert_eq!(found.map.sessions.get(&1).map_or(0, |s| s.next_seq), next);
        if life == 0 {
            writer.write(&[session(1, "one")], Urgency::Ordinary).unwrap();
        }
        for _ in 0..4 {
            writer.write(&[events(1, next, 2)], Urgency::Ordinary).unwrap();
            next += 2;
        }
        if life % 2 == 0 {
            writer.seal().unwrap();
        }
    }
    let found = read_all(&disk, Depth::Full);
    assert_eq!(found.damages, []);
    assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, next));
}

#[test]
fn tails_gather_parts_and_tombstones_end_a_session() {
    let disk = ModelDisk::default();
    let (mut writer, _) = open(&disk, small(1 << 20));
    let tail = |session, attempt, serial| {
        let part = Buffer::from_static(b"chunks");
        Record::Tail { session, attempt, serial, part }
    };
    writer.write(&[session(1, "one"), session(2, "two")], Urgency::Ordinary).unwrap();
    writer.write(&[tail(1, 1, 1), tail(2, 1, 1), tail(2, 1, 2)], Urgency::Ordinary).unwrap();
    // Another attempt replaces all, and a part that comes again is none.
    writer.write(&[tail(1, 2, 2), tail(1, 1, 1), tail(2, 1, 2)], Urgency::Ordinary).unwrap();
    writer.write(&[events(1, 0, 1)], Urgency::Ordinary).unwrap();
    let found = read_all(&disk, Depth::Full);
    let serials = |number: u64| -> Vec<u32> {
        let tail = found.map.sessions[&number].tail.as_ref().unwrap();
        tail.parts.iter().map(|(serial, _)| *serial).collect()
    };
    assert_eq!((serials(1), serials(2)), (vec![2], vec![1, 2]));
    let reader = Reader::new(Arc::new(disk.clone()), &dir(), &STORE);
    let parts = reader.tail(2, found.map.sessions[&2].tail.as_ref().unwrap()).unwrap();
    assert_eq!(parts, ["chunks", "chunks"]);
    writer.write(&[Record::Tombstone { session: 2 }], Urgency::Ordinary).unwrap();
    let found = read_all(&disk, Depth::Full);
    assert!(!found.map.sessions.contains_key(&2));
    assert!(!found.map.ids.contains_key("two"));
    assert_eq!(found.map.last_session, 2);
}

#[test]
fn a_second_writer_is_told_who_has_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Writer::open(Arc::new(RealDisk), directory.path(), STORE, small(1 << 20));
    let held = open().unwrap();
    let refused = open().err().unwrap();
    assert_eq!(refused.code(), "STORE_IN_USE");
    assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
    assert!(refused.to_string().contains(&directory.path().display().to_string()));
    drop(held);
    open().unwrap();
}

#[test]
fn a_store_of_a_newer_version_asks_for_an_upgrade() {
    let disk = ModelDisk::default();
    drop(open(&disk, small(1 << 20)));
    let mut files = disk.files();
    files.insert(dir().join("format"), b"playhouse-store 2 whatever\n".to_vec());
    let disk = ModelDisk::from_files(&files);
    let refused = Writer::open(Arc::new(disk), &dir(), STORE, small(1 << 20)).err().unwrap();
    assert_eq!(refused.code(), "FORMAT_UNSUPPORTED");
    assert!(refused.to_string().contains("upgrade"), "{refused}");
}

#[cfg(unix)]
#[test]
fn files_and_directories_are_private_to_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let mut writer =
        Writer::open(Arc::new(RealDisk), &directory, STORE, JournalConfig::default()).unwrap();
    writer.write(&[session(1, "one")], Urgency::Ordinary).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(&directory.join("journal")), 0o700);
    for file in ["format", "lock", "reserve", "journal/0000000000000001.segment"] {
        assert_eq!(mode(&directory.join(file)), 0o600, "{file}");
    }
}
