//! Every byte is changed, and every file is cut everywhere: a valid prefix, or a refusal that names the
//! place, or nothing happened.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

struct Sample {
    files: Files,
    sessions: Vec<(SessionId, StoredSession)>,
}

const KEY: &str = "a key";
/// Where a part of a session begins: behind what a line says was durable.
const SUFFIX: u64 = 8;
const VALUE: &[u8] = b"{\"some\":\"value\"}\n\xff";

/// A small store with every kind of line in it.
async fn sample() -> Sample {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let long = "long ".repeat(60);
    for id in ["s", "t", &long] {
        let mut header = (*header(id)).clone();
        header.is_seeded = true;
        let writer = store.create(&Arc::new(header), 2).await.unwrap();
        writer.append(batch(0, 4)).await.unwrap();
        for (attempt, part) in [(1, &b"old"[..]), (2, b"new"), (2, b"\xff\x00"), (2, b"parts")] {
            writer.tail(attempt, Bytes::from_static(part)).await.unwrap();
        }
        writer.append(batch(4, 3)).await.unwrap();
        writer.flush().await.unwrap();
        writer.append(batch(7, 3)).await.unwrap();
        writer.append(batch(10, 2)).await.unwrap();
    }
    store.create(&header("empty"), 0).await.unwrap().flush().await.unwrap();
    store.put_value(KEY, Bytes::from_static(VALUE)).await.unwrap();
    let files = disk.files();
    let shelf = shelf(&disk);
    let sessions = ["s", "t", &long, "empty"].map(|id| {
        let id = SessionId::from(id);
        (id.clone(), shelf.read(&id).unwrap())
    });
    Sample { files, sessions: sessions.into() }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Unharmed,
    Prefix,
    Refused,
}

/// What a reader makes of a session. Fails the test if it is anything but a prefix or a refusal.
fn judge_session(
    stored: &StoredSession,
    read: Result<StoredSession, StoreError>,
    what: &str,
) -> Verdict {
    let read = match read {
        Ok(read) => read,
        Err(StoreError::Corrupt { place, .. }) => {
            assert!(place.contains("line ") && place.contains("byte "), "{what}: {place}");
            return Verdict::Refused;
        }
        Err(error) => panic!("{what}: {error}"),
    };
    assert_eq!(read.header, stored.header, "{what}");
    assert_eq!(read.inherited_event_count, stored.inherited_event_count, "{what}");
    assert!(stored.events.starts_with(&read.events), "{what}: no prefix");
    let parts = read.tail.as_ref().map_or(&[][..], |tail| &tail.parts);
    if let (Some(read), Some(stored)) = (&read.tail, &stored.tail) {
        assert_eq!(read.attempt, stored.attempt, "{what}");
    }
    let whole = stored.tail.as_ref().map_or(&[][..], |tail| &tail.parts);
    assert!(whole.starts_with(parts), "{what}: no prefix of the tail");
    let is_whole = read.events == stored.events && parts == whole;
    if is_whole { Verdict::Unharmed } else { Verdict::Prefix }
}

/// What a reader finds in a store.
struct Seen {
    ids: Vec<SessionId>,
    sessions: Vec<Result<StoredSession, StoreError>>,
    /// The events of each from [`SUFFIX`] on, read by themselves.
    suffixes: Vec<Result<Vec<Bytes>, StoreError>>,
    value: Result<Option<Bytes>, StoreError>,
}

fn look(sample: &Sample, files: &Files) -> Result<Seen, StoreError> {
    let disk = Arc::new(ModelDisk::from_files(files));
    let (shelf, _) = view(disk, Path::new("/store"))?;
    let ids = || sample.sessions.iter().map(|(id, _)| id);
    let sessions = ids().map(|id| shelf.read(id)).collect();
    let suffixes = ids().map(|id| shelf.events(id, SUFFIX..u64::MAX)).collect();
    Ok(Seen { ids: shelf.ids()?, sessions, suffixes, value: shelf.value(KEY) })
}

fn judge(sample: &Sample, seen: Result<Seen, StoreError>, what: &str) -> Verdict {
    let seen = seen.unwrap_or_else(|error| panic!("{what}: {error}"));
    let known = |id: &SessionId| sample.sessions.iter().any(|(known, _)| known == id);
    assert!(seen.ids.iter().all(known), "{what}");
    for ((id, stored), (read, suffix)) in
        sample.sessions.iter().zip(seen.sessions.iter().zip(&seen.suffixes))
    {
        let expected = read.clone().map(|read| read.into_events(SUFFIX..u64::MAX));
        // Damage before what was read by itself need not show.
        let is_sound = *suffix == expected
            || (expected.is_err() && *suffix == Ok(stored.clone().into_events(SUFFIX..u64::MAX)));
        assert!(is_sound, "{what}, session {id}: {suffix:?} instead of {expected:?}");
    }
    let judged = sample.sessions.iter().zip(seen.sessions).map(|((id, stored), read)| {
        judge_session(stored, read, &format!("{what}, session {}", id.as_str()))
    });
    let verdict = judged.max().unwrap();
    match seen.value {
        Ok(value) => {
            assert_eq!(value.as_deref(), Some(VALUE), "{what}");
            verdict
        }
        Err(StoreError::Io { cause, .. }) => {
            assert!(cause.contains("byte "), "{what}: {cause}");
            Verdict::Refused
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

#[derive(Default)]
struct Counts {
    cases: u32,
    prefix: u32,
    refused: u32,
    unharmed: u32,
    wrong: u32,
    panics: u32,
}

impl Counts {
    fn case(&mut self, sample: &Sample, files: &Files, what: &str) {
        self.cases += 1;
        let Ok(seen) = catch_unwind(|| look(sample, files)) else {
            self.panics += 1;
            return;
        };
        // An assertion that fails says that it was wrong; it has been printed.
        match catch_unwind(AssertUnwindSafe(|| judge(sample, seen, what))) {
            Ok(Verdict::Unharmed) => self.unharmed += 1,
            Ok(Verdict::Prefix) => self.prefix += 1,
            Ok(Verdict::Refused) => self.refused += 1,
            Err(_) => self.wrong += 1,
        }
    }

    fn print(&self, what: &str, bytes: usize) {
        let Self { cases, prefix, refused, unharmed, wrong, panics } = self;
        println!(
            "jsonl of {bytes} bytes, {what} {cases}: prefix {prefix}, refused {refused}, unharmed \
             {unharmed}; wrong {wrong}, panics {panics}"
        );
        assert_eq!(wrong + panics, 0);
    }
}

#[tokio::test]
async fn every_flip_of_a_byte_is_a_prefix_or_a_refusal_or_harmless() {
    let sample = sample().await;
    let seed = seed(5);
    let mut dice = Dice(seed);
    let mut counts = Counts::default();
    let mut files = sample.files.clone();
    for (path, bytes) in &sample.files {
        for (at, byte) in bytes.iter().enumerate() {
            // A bit, the case of a letter, all bits, and into a line end or out of one.
            let newline = if *byte == b'\n' { b'\n' ^ b' ' } else { byte ^ b'\n' };
            for by in [1 << dice.below(8), 0x20, 0xff, newline] {
                files.get_mut(path).unwrap()[at] ^= by;
                let what = format!("seed {seed}: byte {at} ^ {by:#x} of {}", path.display());
                counts.case(&sample, &files, &what);
                files.get_mut(path).unwrap()[at] = *byte;
            }
        }
    }
    let bytes = sample.files.values().map(Vec::len).sum::<usize>();
    assert!(bytes <= 16 << 10, "{bytes}");
    counts.print("flips", bytes);
}

#[tokio::test]
async fn every_truncation_is_a_prefix_or_a_refusal_or_harmless() {
    let sample = sample().await;
    let mut counts = Counts::default();
    let mut files = sample.files.clone();
    for (path, bytes) in &sample.files {
        for length in 0..bytes.len() {
            files.insert(path.clone(), bytes[..length].to_vec());
            counts.case(&sample, &files, &format!("{} cut to {length}", path.display()));
        }
        files.insert(path.clone(), bytes.clone());
    }
    counts.print("truncations", sample.files.values().map(Vec::len).sum());
}

#[tokio::test]
async fn a_writer_goes_on_from_what_a_reader_sees_or_refuses_as_it_does() {
    let sample = sample().await;
    let (id, _) = &sample.sessions[0];
    let whole = &sample.files[&log("s")];
    let (mut went_on, mut refused) = (0, 0);
    for length in (0..whole.len()).step_by(7) {
        let mut files = sample.files.clone();
        files.insert(log("s"), whole[..length].to_vec());
        let disk = ModelDisk::from_files(&files);
        let read = shelf(&disk).read(id);
        let store = on_model(&disk).await;
        match (read, store.open_write(id).await) {
            (Ok(read), Ok((writer, session))) => {
                assert_eq!(read.events, session.events);
                let next = session.events.len() as u64;
                writer.append(batch(next, 2)).await.unwrap();
                writer.close().await.unwrap();
                let events = shelf(&disk).read(id).unwrap().events;
                assert_eq!(events, [&read.events[..], &texts(next, 2)].concat(), "cut to {length}");
                went_on += 1;
            }
            (Err(one), Err(other)) => {
                assert_eq!(one, other);
                assert_eq!(disk.files(), files, "a refusal changes nothing");
                refused += 1;
            }
            (read, _) => panic!("cut to {length}: reader and writer differ: {read:?}"),
        }
    }
    assert!(went_on > 0 && refused > 0);
    println!("writers on a cut log: went on {went_on}, refused {refused}");
}

#[tokio::test]
async fn one_damaged_session_leaves_the_others_alone_and_is_named_by_verify() {
    let sample = sample().await;
    let mut files = sample.files.clone();
    let bytes = files.get_mut(&log("s")).unwrap();
    let at = line_starts(bytes)[3] + 5;
    bytes[at] ^= 1;
    files.get_mut(Path::new("/store/values/a~20key.value")).unwrap().pop();
    files.get_mut(Path::new("/store/format")).unwrap()[0] ^= 1;
    let disk = ModelDisk::from_files(&files);
    let mut steps = Vec::new();
    let report =
        verify_on(Arc::new(disk.clone()), Path::new("/store"), &mut |p| steps.push(p.done))
            .unwrap();
    assert_eq!(steps, [1, 2, 3, 4]);
    let named: Vec<&str> = report.unreadable.iter().map(|(id, _)| id.as_str()).collect();
    // The odd events of the others are no events, which the store does not ask.
    assert!(named.contains(&"s"), "{report}");
    let text = report.to_string();
    assert!(
        text.contains("values/a~20key.value byte ") && text.contains("damaged: format"),
        "{text}"
    );
    let store = on_model(&disk).await;
    assert_eq!(disk.files()[Path::new("/store/format")], sample.files[Path::new("/store/format")]);
    assert_eq!(store.read(&"s".into()).await.unwrap_err().code(), "STORE_CORRUPT");
    assert_eq!(store.read(&"t".into()).await.unwrap().events, sample.sessions[1].1.events);
    // A session that refuses is not absent.
    assert_eq!(store.list(ListQuery::default()).await.unwrap().sessions.len(), 4);
}
