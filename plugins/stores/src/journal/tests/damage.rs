//! Bytes are damaged in every way that we could think of: nothing wrong is ever served, and what is
//! not damaged stays readable.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::model_disk::{Dice, ModelDisk, seed};
use super::*;
use crate::journal::format::{BATCH_HEADER_LEN, BatchHeader, SEGMENT_HEADER_LEN, TRAILER_LEN};

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What a reader found, against what was written.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Everything is there.
    Whole,
    /// The last batch is gone, and nothing else.
    TornTail,
    /// Damage was named; every session that was not named is whole.
    Named,
}

/// Reads damaged files and fails the test if anything wrong is served or anything is lost silently.
fn judge(sample: &Sample, files: &Files, what: &str) -> Verdict {
    let disk = ModelDisk::from_files(files);
    let mut verdicts = Vec::new();
    for depth in [Depth::Full, Depth::Footers] {
        let found = read_all(&disk, depth);
        let mut torn = false;
        let mut refused = false;
        for (&number, &count) in &sample.counts {
            match read_session(&disk, &found, number) {
                Ok(read) if read == expected_events(number, count) => {}
                Ok(read) if read == expected_events(number, sample.before_last[&number]) => {
                    torn = true;
                }
                Ok(read) => {
                    // Shorter than it was: only allowed where the damage could not be placed.
                    let known = found.damages.iter().all(|damage| damage.known);
                    let prefix = expected_events(number, read.len() as u64) == read;
                    assert!(
                        prefix && !known,
                        "{what} ({depth:?}): session {number} reads {} of {count} events; {:?}",
                        read.len(),
                        found.damages
                    );
                }
                Err(error) => {
                    assert_eq!(error.code(), "STORE_CORRUPT", "{what}: {error}");
                    refused = true;
                }
            }
        }
        if depth == Depth::Full {
            assert!(!refused || !found.damages.is_empty(), "{what}: refused without damage");
            let placed = found.damages.iter().all(|damage| damage.known);
            assert!(
                !torn || found.damages.is_empty() || refused || !placed,
                "{what}: torn and damaged"
            );
            verdicts.push(if !found.damages.is_empty() {
                Verdict::Named
            } else if torn {
                Verdict::TornTail
            } else {
                Verdict::Whole
            });
        }
    }
    verdicts.remove(0)
}

/// Offsets and lengths of the batches in a segment's bytes, headers included.
fn batches(bytes: &[u8]) -> Vec<(usize, usize)> {
    let checksum = Checksum::of_store(&STORE);
    let mut at = SEGMENT_HEADER_LEN;
    let mut found = Vec::new();
    while let Some(header) = bytes.get(at..).and_then(|from| BatchHeader::decode(from, checksum)) {
        let length = BATCH_HEADER_LEN + header.length as usize;
        found.push((at, length));
        at += length;
    }
    found
}

fn last_segment(files: &Files) -> PathBuf {
    files.keys().rfind(|path| path.starts_with("/store/journal")).unwrap().clone()
}

#[test]
fn a_last_batch_torn_at_any_byte_is_cut_whole() {
    let sample = sample();
    let path = last_segment(&sample.files);
    let bytes = &sample.files[&path];
    let (start, length) = *batches(bytes).last().unwrap();
    let mut cases = 0;
    for end in start..start + length {
        for length in [end, start + length] {
            let mut files = sample.files.clone();
            let torn = files.get_mut(&path).unwrap();
            torn.truncate(end);
            // The length may arrive without the bytes.
            torn.resize(length, 0);
            let verdict = judge(&sample, &files, &format!("torn at {end} of {length}"));
            assert_eq!(verdict, Verdict::TornTail, "torn at {end}");
            // The next writer cuts it, goes on, and nothing is left to find.
            let disk = ModelDisk::from_files(&files);
            let (mut writer, found) = open(&disk, small(900));
            assert_eq!(found.next_batch, sample.batches);
            let next = found.map.sessions[&1].next_seq;
            writer.write(&[events(1, next, 1)], Urgency::Ordinary).unwrap();
            writer.sync().unwrap();
            let found = read_all(&disk, Depth::Full);
            assert_eq!(found.damages, []);
            assert_eq!(read_session(&disk, &found, 1).unwrap(), expected_events(1, next + 1));
            cases += 1;
        }
    }
    println!("torn last batch: cases run {cases}, faults found 0");
}

#[test]
fn a_flipped_bit_anywhere_is_named_or_harmless() {
    let sample = sample();
    let mut dice = Dice(seed(3));
    let mut cases = 0;
    let mut named = 0;
    for (path, bytes) in &sample.files {
        if path.ends_with("format") {
            continue;
        }
        let headers: Vec<_> = batches(bytes).iter().map(|(at, _)| *at).collect();
        for at in 0..bytes.len() {
            let in_header = at < SEGMENT_HEADER_LEN
                || at >= bytes.len() - TRAILER_LEN
                || headers.iter().any(|start| (*start..start + BATCH_HEADER_LEN).contains(&at));
            let bits: Vec<u32> =
                if in_header { (0..8).collect() } else { vec![dice.below(8) as u32] };
            for bit in bits {
                let mut files = sample.files.clone();
                files.get_mut(path).unwrap()[at] ^= 1 << bit;
                let what = format!("bit {bit} of byte {at} of {}", path.display());
                let verdict = judge(&sample, &files, &what);
                let (last, _) = *batches(bytes).last().unwrap();
                let may_tear = *path == last_segment(&sample.files) && at >= last;
                assert!(may_tear || verdict != Verdict::TornTail, "{what}: {verdict:?}");
                let in_batches = at < batches(bytes).last().map(|(at, len)| at + len).unwrap();
                assert!(may_tear || !in_batches || verdict == Verdict::Named, "{what}: unseen");
                named += usize::from(verdict == Verdict::Named);
                cases += 1;
            }
        }
    }
    println!("flipped bits: cases run {cases}, named {named}, faults found 0");
}

#[test]
fn zeroed_sectors_are_named_or_are_the_torn_tail() {
    let sample = sample();
    let mut cases = 0;
    for (path, bytes) in &sample.files {
        if path.ends_with("format") {
            continue;
        }
        for start in (0..bytes.len()).step_by(512) {
            let inside = |at: usize| at + BATCH_HEADER_LEN > start && at < start + 512;
            let wiped = batches(bytes).iter().filter(|(at, _)| inside(*at)).count();
            if *path == last_segment(&sample.files) && wiped > 1 && start + 512 >= bytes.len() {
                // Several batches at the very end, wiped so that not one header is left, look like
                // one torn batch. `docs/journal.md` says so.
                continue;
            }
            let mut files = sample.files.clone();
            let end = bytes.len().min(start + 512);
            files.get_mut(path).unwrap()[start..end].fill(0);
            let what = format!("sector at {start} of {} zeroed", path.display());
            let verdict = judge(&sample, &files, &what);
            let data_end = batches(bytes).last().map(|(at, len)| at + len).unwrap();
            assert!(verdict != Verdict::Whole || start >= data_end, "{what}");
            cases += 1;
        }
    }
    println!("zeroed sectors: cases run {cases}, faults found 0");
}

#[test]
fn an_equal_duplicate_of_a_batch_is_legal_and_a_differing_one_is_named() {
    let sample = sample();
    let path = last_segment(&sample.files);
    let bytes = &sample.files[&path];
    let checksum = Checksum::of_store(&STORE);
    for (start, length) in batches(bytes) {
        let mut files = sample.files.clone();
        let mut twice = bytes[..start + length].to_vec();
        twice.extend_from_slice(&bytes[start..]);
        files.insert(path.clone(), twice);
        assert_eq!(judge(&sample, &files, "equal duplicate"), Verdict::Whole);

        let number = BatchHeader::decode(&bytes[start..], checksum).unwrap().number;
        let (body, _) = crate::journal::record::encode_body(&[], &[events(1, 0, 1)], checksum);
        let other = crate::journal::format::encode_batch(number, &body, checksum).unwrap();
        let mut twice = bytes[..start + length].to_vec();
        twice.extend_from_slice(&other);
        twice.extend_from_slice(&bytes[start + length..]);
        files.insert(path.clone(), twice);
        assert_eq!(judge(&sample, &files, "differing duplicate"), Verdict::Named);
    }
}

#[test]
fn reordered_batches_are_named() {
    let sample = sample();
    for (path, bytes) in &sample.files {
        for pair in batches(bytes).windows(2) {
            let [(first, first_len), (second, second_len)] = [pair[0], pair[1]];
            let mut swapped = bytes[..first].to_vec();
            swapped.extend_from_slice(&bytes[second..second + second_len]);
            swapped.extend_from_slice(&bytes[first..first + first_len]);
            swapped.extend_from_slice(&bytes[second + second_len..]);
            let mut files = sample.files.clone();
            files.insert(path.clone(), swapped);
            let what = format!("batches at {first} and {second} swapped");
            assert_eq!(judge(&sample, &files, &what), Verdict::Named);
        }
    }
}

#[test]
fn swapped_missing_and_shortened_segments_are_named() {
    let sample = sample();
    let numbers: Vec<u64> = (1..).take_while(|n| sample.files.contains_key(&segment(*n))).collect();
    let mut cases = 0;
    for pair in numbers.windows(2) {
        let mut files = sample.files.clone();
        let (a, b) = (segment(pair[0]), segment(pair[1]));
        files.insert(a.clone(), sample.files[&b].clone());
        files.insert(b.clone(), sample.files[&a].clone());
        assert_eq!(judge(&sample, &files, "swapped segments"), Verdict::Named);

        let mut files = sample.files.clone();
        files.remove(&a);
        assert_eq!(judge(&sample, &files, "missing segment"), Verdict::Named);
        cases += 2;
        for length in (0..sample.files[&a].len()).step_by(7) {
            let mut files = sample.files.clone();
            files.get_mut(&a).unwrap().truncate(length);
            let what = format!("segment {} cut to {length}", pair[0]);
            let verdict = judge(&sample, &files, &what);
            let end = batches(&sample.files[&a]).last().map(|(at, len)| at + len).unwrap();
            let expected = if length >= end { Verdict::Whole } else { Verdict::Named };
            assert_eq!(verdict, expected, "{what}");
            cases += 1;
        }
        // Bytes cut out of the middle: the footer stays, at another place.
        let bytes = &sample.files[&a];
        for (start, length) in batches(bytes) {
            let mut files = sample.files.clone();
            let mut cut = bytes[..start].to_vec();
            cut.extend_from_slice(&bytes[start + length..]);
            files.insert(a.clone(), cut);
            let what = format!("batch at {start} cut out of segment {}", pair[0]);
            assert_eq!(judge(&sample, &files, &what), Verdict::Named);
            cases += 1;
        }
    }
    println!("segments: cases run {cases}, faults found 0");
}

#[test]
fn only_the_sessions_of_a_bad_batch_refuse() {
    let sample = sample();
    let path = last_segment(&sample.files);
    let bytes = &sample.files[&path];
    // In an unsealed segment the next batch's trail says what the bad one held.
    let (start, length) = batches(bytes)[0];
    assert!(batches(bytes).len() > 1);
    let mut files = sample.files.clone();
    files.get_mut(&path).unwrap()[start + length - 1] ^= 1;
    let disk = ModelDisk::from_files(&files);
    let found = read_all(&disk, Depth::Full);
    let [damage] = &found.damages[..] else { panic!("{:?}", found.damages) };
    assert_eq!(segment(damage.segment), path);
    assert_eq!(damage.offset, start as u64);
    assert_eq!(damage.kind, DamageKind::BadBatch);
    assert!(damage.known);
    assert_eq!(damage.sessions.len(), 2, "each batch of the sample holds two of the three");
    for number in 1..=3 {
        let refused = read_session(&disk, &found, number).is_err();
        assert_eq!(refused, damage.sessions.contains(&number));
    }
}

#[test]
fn a_damaged_format_file_never_gives_another_id() {
    let sample = sample();
    let path = dir().join("format");
    let length = sample.files[&path].len();
    let mut cases = 0;
    for at in 0..length {
        for bit in 0..8 {
            let mut files = sample.files.clone();
            files.get_mut(&path).unwrap()[at] ^= 1 << bit;
            let disk = ModelDisk::from_files(&files);
            // The id is in every segment too; the next writer puts the file right.
            assert_eq!(read_format(&disk, &dir()).unwrap().store, STORE);
            let (_, found) = open(&disk, small(900));
            assert_eq!(found.damages, []);
            assert_eq!(disk.files()[&path], sample.files[&path]);
            cases += 1;
        }
    }
    let mut files = sample.files.clone();
    files.remove(&path);
    assert!(read_format(&ModelDisk::from_files(&files), &dir()).unwrap().damaged);
    println!("format file: cases run {cases}, faults found 0");
}
