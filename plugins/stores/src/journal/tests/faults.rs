//! The disk refuses: failed syncs, short writes, no space.

use super::model_disk::{Cut, Dice, Fault, ModelDisk, Op};
use super::*;

#[test]
fn after_a_failed_sync_the_batch_goes_to_a_new_segment() {
    let disk = ModelDisk::default();
    let (mut writer, _) = open(&disk, small(1 << 20));
    writer.write(&[session(1, "one")], Urgency::Ordinary).unwrap();
    let written = writer.write(&[events(1, 0, 2)], Urgency::Ordinary).unwrap();
    disk.fault(Fault::FailSync);
    assert_eq!(writer.sync().unwrap(), 2);
    let moved = writer.take_moved();
    assert_eq!(moved.len(), 1);
    assert_eq!((moved[0].segment, moved[0].to_segment), (1, 2));
    assert_eq!(written.segment, 1);
    writer.write(&[events(1, 2, 1)], Urgency::Ordinary).unwrap();
    assert_eq!(writer.segment(), 2);
    let found = read_all(&disk, Depth::Full);
    assert_eq!(found.damages, []);
    assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, 3));
    // The file whose sync failed is not synced again.
    let log = disk.state().log.clone();
    let failed = log.iter().position(|op| matches!(op, Op::FailedSync(_))).unwrap();
    let Op::FailedSync(inode) = log[failed] else { panic!() };
    assert!(!log[failed..].iter().any(|op| matches!(op, Op::Sync(i) if *i == inode)));
}

#[test]
fn when_the_new_segment_fails_too_the_batch_is_kept_and_tried_again() {
    let disk = ModelDisk::default();
    let (mut writer, _) = open(&disk, small(1 << 20));
    writer.write(&[session(1, "one"), events(1, 0, 1)], Urgency::Ordinary).unwrap();
    for fault in [Fault::FailSync, Fault::FailSync] {
        disk.fault(fault);
    }
    assert_eq!(writer.sync().unwrap_err().code(), "STORE_IO");
    assert!(writer.is_unsynced());
    disk.fault(Fault::FailCreate);
    assert_eq!(writer.sync().unwrap_err().code(), "STORE_IO");
    assert_eq!(writer.sync().unwrap(), 1);
    let found = read_all(&disk, Depth::Full);
    assert_eq!(found.damages, []);
    assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, 1));
}

#[test]
fn a_writer_does_not_trust_what_a_dead_one_could_not_sync() {
    let disk = ModelDisk::default();
    let (mut writer, _) = open(&disk, small(1 << 20));
    writer.write(&[session(1, "one"), events(1, 0, 1)], Urgency::Ordinary).unwrap();
    disk.fault(Fault::FailSync);
    disk.fault(Fault::FailSync);
    writer.sync().unwrap_err();
    drop(writer);
    // Its file looks whole from here, and a sync of it would succeed, and promise nothing.
    let (mut writer, found) = open(&disk, small(1 << 20));
    assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, 1));
    assert_eq!(writer.sync().unwrap(), 1);
    let files = disk.after_power_cut(&Default::default(), disk.at(), Cut::None, &mut Dice(1));
    let after = ModelDisk::from_files(&files);
    let found = read_all(&after, Depth::Full);
    assert_eq!(found.damages, []);
    assert_eq!(read_session(&after, &found, 1).unwrap(), expected_events(1, 1));
}

#[test]
fn a_short_write_is_never_seen_and_the_batch_lands_in_a_new_segment() {
    for taken in [0, 1, 23, 24, 25, 60] {
        let disk = ModelDisk::default();
        let (mut writer, _) = open(&disk, small(1 << 20));
        writer.write(&[session(1, "one")], Urgency::Ordinary).unwrap();
        writer.sync().unwrap();
        disk.fault(Fault::ShortWrite(taken));
        // A short write is how a full disk shows first, so the batch is refused ...
        let refused = writer.write(&[events(1, 0, 1)], Urgency::Ordinary).unwrap_err();
        assert_eq!(refused.code(), "STORE_FULL");
        assert_eq!(read_all(&disk, Depth::Full).map.sessions[&1].next_seq, 0);
        // ... and the same call works once there is room.
        writer.write(&[events(1, 0, 1)], Urgency::Ordinary).unwrap();
        assert_eq!(writer.segment(), 2);
        let found = read_all(&disk, Depth::Full);
        assert_eq!(found.damages, []);
        assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, 1));
    }
}

#[test]
fn a_failed_write_is_tried_once_more_in_a_new_segment() {
    let disk = ModelDisk::default();
    let (mut writer, _) = open(&disk, small(1 << 20));
    writer.write(&[session(1, "one")], Urgency::Ordinary).unwrap();
    disk.fault(Fault::FailWrite);
    writer.write(&[events(1, 0, 1)], Urgency::Ordinary).unwrap();
    assert_eq!(writer.segment(), 2);
    disk.fault(Fault::FailWrite);
    disk.fault(Fault::FailWrite);
    assert_eq!(writer.write(&[events(1, 1, 1)], Urgency::Ordinary).unwrap_err().code(), "STORE_IO");
    writer.write(&[events(1, 1, 1)], Urgency::Ordinary).unwrap();
    let found = read_all(&disk, Depth::Full);
    assert_eq!(found.damages, []);
    assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, 2));
}

#[test]
fn on_a_full_disk_closers_take_the_reserve_and_work_resumes_with_room() {
    let disk = ModelDisk::default();
    let config = JournalConfig { segment_bytes: 1 << 20, reserve_bytes: 4096 };
    let (mut writer, _) = open(&disk, config);
    disk.state().capacity = Some(8192);
    writer.write(&[session(1, "one")], Urgency::Ordinary).unwrap();
    let mut next = 0;
    let refused = loop {
        match writer.write(&[events(1, next, 4)], Urgency::Ordinary) {
            Ok(_) => next += 4,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), "STORE_FULL");
    assert!(disk.files().contains_key(&dir().join("reserve")));
    writer.write(&[events(1, next, 4)], Urgency::Closing).unwrap();
    writer.sync().unwrap();
    assert!(!disk.files().contains_key(&dir().join("reserve")));
    let found = read_all(&disk, Depth::Full);
    assert_eq!(found.damages, []);
    assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, next + 4));
    disk.state().capacity = None;
    writer.write(&[events(1, next + 4, 4)], Urgency::Ordinary).unwrap();
    writer.sync().unwrap();
    assert!(disk.files().contains_key(&dir().join("reserve")), "set aside again");
}

#[test]
fn a_footer_that_cannot_be_written_costs_nothing_but_a_scan() {
    for fault in [Fault::FailWrite, Fault::ShortWrite(9)] {
        let disk = ModelDisk::default();
        let (mut writer, _) = open(&disk, small(1 << 20));
        writer.write(&[session(1, "one"), events(1, 0, 3)], Urgency::Ordinary).unwrap();
        disk.fault(fault);
        writer.seal().unwrap();
        assert!(writer.take_sealed().is_empty());
        writer.write(&[events(1, 3, 1)], Urgency::Ordinary).unwrap();
        let found = read_all(&disk, Depth::Footers);
        assert_eq!(found.damages, []);
        assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, 4));
    }
}

#[test]
fn a_reader_beside_a_writer_sees_a_prefix_at_every_step() {
    let disk = ModelDisk::default();
    let (mut writer, _) = open(&disk, small(500));
    writer.write(&[session(1, "one")], Urgency::Ordinary).unwrap();
    for next in 0..40 {
        writer.write(&[events(1, next, 1)], Urgency::Ordinary).unwrap();
        for depth in [Depth::Footers, Depth::Full] {
            let found = read_all(&disk, depth);
            assert_eq!(found.damages, []);
            assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, next + 1));
        }
    }
    // And with the last batch half there, as it is in the middle of a write.
    let mut files = disk.files();
    let (_, bytes) = files.iter_mut().next_back().unwrap();
    bytes.truncate(bytes.len() - 3);
    let half = ModelDisk::from_files(&files);
    let found = read_all(&half, Depth::Footers);
    assert_eq!(found.damages, []);
    assert_eq!(read_session(&half, &found, 1).unwrap(), expected_events(1, 39));
    assert_eq!(half.files(), files, "a reader changes nothing");
}
