//! Compaction gives space back, and a power cut at any instant of it loses nothing.

use super::model_disk::{Cut, Dice, Fault, ModelDisk, seed};
use super::*;

/// A journal with two live sessions, one deleted one, tails, values, and events sent twice.
fn full() -> ModelDisk {
    let disk = ModelDisk::default();
    let (mut writer, _) = open(&disk, small(4000));
    writer
        .write(&[session(1, "one"), session(2, "two"), session(3, "three")], Urgency::Ordinary)
        .unwrap();
    let tail = |session, attempt, serial, text: &'static str| {
        let part = Buffer::from_static(text.as_bytes());
        Record::Tail { session, attempt, serial, part }
    };
    let kv = |key: &'static str, value: Option<&'static str>| Record::Kv {
        key: Buffer::from_static(key.as_bytes()),
        value: value.map(|value| Buffer::from_static(value.as_bytes())),
    };
    for turn in 0..20 {
        let records = [
            tail(1, turn, u32::try_from(turn).unwrap() + 1, "replaced"),
            events(1, turn * 5, 5),
            events(2, turn * 30, 30),
            events(3, turn, 1),
            kv("key", Some("old")),
        ];
        writer.write(&records, Urgency::Ordinary).unwrap();
        writer
            .write(
                &[events(1, turn * 5, 5), tail(3, 9, u32::try_from(turn).unwrap() + 1, "open")],
                Urgency::Ordinary,
            )
            .unwrap();
    }
    let last = [Record::Tombstone { session: 2 }, kv("key", Some("new")), kv("gone", None)];
    writer.write(&last, Urgency::Ordinary).unwrap();
    writer.seal().unwrap();
    ModelDisk::from_files(&disk.files())
}

fn check(disk: &ModelDisk, what: &str) {
    for depth in [Depth::Footers, Depth::Full] {
        let found = read_all(disk, depth);
        assert_eq!(found.damages, [], "{what}");
        assert_eq!(read_session(disk, &found, 1).unwrap(), expected_events(1, 100), "{what}");
        assert_eq!(read_session(disk, &found, 3).unwrap(), expected_events(3, 20), "{what}");
        assert_eq!(found.map.ids.keys().collect::<Vec<_>>(), ["one", "three"], "{what}");
        let reader = Reader::new(Arc::new(disk.clone()), &dir(), &STORE);
        let parts = reader.tail(1, found.map.sessions[&1].tail.as_ref().unwrap()).unwrap();
        assert_eq!(parts, ["replaced"], "{what}");
        let parts = reader.tail(3, found.map.sessions[&3].tail.as_ref().unwrap()).unwrap();
        assert_eq!(parts, ["open"; 20], "{what}");
        let value = reader.record(found.map.kv[&b"key"[..]], 0).unwrap();
        assert!(matches!(value, Record::Kv { value: Some(v), .. } if v == "new"), "{what}");
    }
}

fn compact(disk: &ModelDisk) -> Result<(), JournalError> {
    let mut writer = Writer::open(Arc::new(disk.clone()), &dir(), STORE, small(4000))?;
    let found = writer.resume(Depth::Full)?;
    let reader = Reader::new(Arc::new(disk.clone()), &dir(), &STORE);
    writer.compact(&found.map, &reader)
}

fn bytes(disk: &ModelDisk) -> usize {
    disk.files().values().map(Vec::len).sum()
}

#[test]
fn compaction_keeps_what_lives_and_gives_the_rest_back() {
    let disk = full();
    check(&disk, "before");
    let before = bytes(&disk);
    compact(&disk).unwrap();
    check(&disk, "after");
    assert!(bytes(&disk) * 3 < before, "{} of {before} bytes left", bytes(&disk));
    // The journal goes on behind it, and can be compacted again.
    let (mut writer, found) = open(&disk, small(4000));
    assert!(found.superseded.is_empty());
    writer.write(&[session(9, "nine"), events(9, 0, 50)], Urgency::Ordinary).unwrap();
    writer.write(&[Record::Tombstone { session: 9 }], Urgency::Ordinary).unwrap();
    drop(writer);
    let before = bytes(&disk);
    compact(&disk).unwrap();
    assert!(bytes(&disk) < before);
    check(&disk, "again");
}

#[test]
fn a_compaction_that_fails_leaves_the_journal_as_it_was() {
    for fault in [Fault::FailWrite, Fault::FailSync, Fault::FailCreate, Fault::ShortWrite(30)] {
        let disk = full();
        let before = disk.files();
        let mut writer = Writer::open(Arc::new(disk.clone()), &dir(), STORE, small(4000)).unwrap();
        let found = writer.resume(Depth::Full).unwrap();
        let reader = Reader::new(Arc::new(disk.clone()), &dir(), &STORE);
        disk.fault(fault);
        writer.compact(&found.map, &reader).unwrap_err();
        assert_eq!(disk.files(), before, "{fault:?}");
        writer.write(&[events(1, 100, 1)], Urgency::Ordinary).unwrap();
        let found = read_all(&disk, Depth::Full);
        assert_eq!(found.damages, []);
        assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, 101));
    }
}

#[test]
fn a_power_cut_at_any_instant_of_a_compaction_loses_nothing() {
    let seed = seed(17);
    let mut dice = Dice(seed);
    let disk = full();
    let start = disk.files();
    compact(&disk).unwrap();
    let mut cases = 0;
    for at in 0..=disk.at() {
        for cut in [Cut::None, Cut::Prefix, Cut::Subset, Cut::Subset, Cut::Subset] {
            let what = format!("seed {seed} cut {cut:?} at {at}");
            let files = disk.after_power_cut(&start, at, cut, &mut dice);
            let crashed = ModelDisk::from_files(&files);
            check(&crashed, &what);
            // The next writer clears away, and the next compaction works.
            let (writer, _) = open(&crashed, small(4000));
            drop(writer);
            check(&crashed, &what);
            assert!(
                !crashed.files().keys().any(|path| path.extension().is_some_and(|e| e == "draft"))
            );
            compact(&crashed).unwrap();
            check(&crashed, &what);
            cases += 1;
        }
    }
    println!("power cuts in a compaction: cases run {cases}, faults found 0");
}
