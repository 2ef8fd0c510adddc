//! Bytes of the index are flipped. sled may panic, abort or hang over them, so each look is a child's;
//! whatever sled does, the store must say what the journal says.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use super::*;
use crate::index::{Covered, Index};
use crate::journal::{Depth, recover};

const SESSIONS: u64 = 16;
const EVENTS: u64 = 40;
/// How many flips; `PLAYHOUSE_FLIPS` says otherwise.
const FLIPS: usize = 100;
const FLIPS_A_CHILD: usize = 50;
const PATIENCE: Duration = Duration::from_secs(120);

fn config() -> JournalStoreConfig {
    let mut config = small().cache_bytes(1 << 20);
    config.journal.segment_bytes = 30_000;
    config
}

/// A store that was closed cleanly three times, so that the index has a history.
async fn make(dir: &Path) {
    for life in 0..3 {
        let store = JournalStore::open(dir, config()).await.unwrap();
        for n in 0..SESSIONS {
            let id = format!("s{n:02}");
            let writer = match life {
                0 => store.create(&header(&id), 0).await.unwrap(),
                _ => store.open_write(&id.into()).await.unwrap().0,
            };
            let last = if life == 2 { EVENTS } else { (life + 1) * 10 };
            for seq in (life * 10..last).step_by(5) {
                writer.append(batch(seq, 5)).await.unwrap();
            }
        }
        store.put_value("k", Bytes::from(format!("v{life}"))).await.unwrap();
        store.close().await.unwrap();
    }
}

/// Opens the store, reads all of it, writes a little, and holds its index against the journal.
async fn look(dir: &Path, what: &str) {
    for life in 0..2_u64 {
        let store = JournalStore::open(dir, config()).await.unwrap();
        assert_eq!(store.damages(), [], "{what}");
        let page = store.list(ListQuery { after: None, limit: 1000 }).await.unwrap();
        assert_eq!(page.sessions.len() as u64, SESSIONS + life, "{what}");
        for n in 0..SESSIONS {
            let id = SessionId::from(format!("s{n:02}"));
            assert_eq!(store.read(&id).await.unwrap().events, texts(0, EVENTS), "{what}: {id}");
            let stat = store.stat(&id).await.unwrap().unwrap();
            assert_eq!(stat.event_count, EVENTS, "{what}: {id}");
        }
        assert_eq!(store.get_value("k").await, Ok(Some(Bytes::from_static(b"v2"))), "{what}");
        assert_eq!(store.get_value("none").await, Ok(None), "{what}");
        let new = header(&format!("new {life}"));
        store.create(&new, 0).await.unwrap().append(batch(0, 2)).await.unwrap();
        store.close().await.unwrap();
    }
    let index = Index::open(dir, 1 << 20).unwrap();
    let covered: Covered = index.covered().unwrap().unwrap();
    let found = recover(&RealDisk, dir, &covered.store, Depth::Full).unwrap();
    assert!(covered.clean && found.damages.is_empty(), "{what}");
    assert_eq!(index.reconcile(&found.map, &covered, |_, _| ()).unwrap(), 0, "{what}");
}

/// The child: looks at flip after flip of a plan, and says which it is at.
#[tokio::test]
#[ignore = "runs as the child of the test below"]
async fn looks_at_flips() {
    let Ok(dir) = std::env::var("PLAYHOUSE_FLIP_DIR") else { return };
    let dir = Path::new(&dir);
    let first: usize = std::env::var("PLAYHOUSE_FLIP_FIRST").unwrap().parse().unwrap();
    let plan = std::fs::read_to_string(dir.join("plan")).unwrap();
    for (n, line) in plan.lines().enumerate().skip(first).take(FLIPS_A_CHILD) {
        println!("begin {n}");
        let words: Vec<_> = line.split(' ').collect();
        let (at, mask): (usize, u8) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        let copy = dir.join(format!("copy-{n}"));
        copy_dir(&dir.join("store"), &copy);
        let path = copy.join("index").join(words[0]);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= mask;
        std::fs::write(&path, bytes).unwrap();
        look(&copy, line).await;
        let moved = copy.join("index.damaged-1").exists();
        std::fs::remove_dir_all(&copy).unwrap();
        println!("{} {n}", if moved { "rebuilt" } else { "unharmed" });
    }
    println!("ended");
}

#[tokio::test]
async fn flipped_bytes_of_the_index_change_nothing_that_is_read() {
    let seed = seed(31);
    let mut dice = Dice(seed);
    let count = std::env::var("PLAYHOUSE_FLIPS").map_or(FLIPS, |count| count.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("store")).await;
    // Most of the file is empty: flips go where something stands, and now and then where nothing does.
    let (mut filled, mut empty) = (Vec::new(), Vec::new());
    let mut names: Vec<_> = std::fs::read_dir(dir.path().join("store/index")).unwrap().collect();
    names.sort_by_key(|entry| entry.as_ref().unwrap().path());
    for entry in names.into_iter().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            let name = entry.file_name().into_string().unwrap();
            for (at, byte) in std::fs::read(entry.path()).unwrap().into_iter().enumerate() {
                let place = (name.clone(), at);
                if byte == 0 { empty.push(place) } else { filled.push(place) }
            }
        }
    }
    let mut plan = String::new();
    for n in 0..count {
        let places = if n % 8 == 0 { &empty } else { &filled };
        let (name, at) = &places[dice.below(places.len())];
        plan += &format!("{name} {at} {}\n", 1 + dice.below(255));
    }
    std::fs::write(dir.path().join("plan"), &plan).unwrap();
    let (mut rebuilt, mut unharmed, mut bad) = (0, 0, Vec::new());
    let mut first = 0;
    while first < count {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture"])
            .arg("journal_store::tests::index_flips::looks_at_flips")
            .env("PLAYHOUSE_FLIP_DIR", dir.path())
            .env("PLAYHOUSE_FLIP_FIRST", first.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        let reader = std::thread::spawn(move || {
            // The test's own harness writes on the same lines.
            output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        let mut at = first;
        let ended = loop {
            let Ok(line) = lines.recv_timeout(PATIENCE) else { break false };
            let word = |word: &str| line.contains(&format!("{word} {at}"));
            if line.contains("ended") {
                break true;
            }
            if word("rebuilt") || word("unharmed") {
                rebuilt += usize::from(word("rebuilt"));
                unharmed += usize::from(word("unharmed"));
                at += 1;
            }
        };
        if ended {
            child.wait().unwrap();
            first += FLIPS_A_CHILD;
        } else {
            // It died, or hangs, over this one.
            child.kill().unwrap();
            let status = child.wait().unwrap();
            bad.push(format!("{}: {status}", plan.lines().nth(at).unwrap_or_default()));
            first = at + 1;
        }
        reader.join().unwrap();
    }
    println!("flips of the index: cases run {count}, rebuilt {rebuilt}, unharmed {unharmed}");
    assert_eq!(bad, Vec::<String>::new(), "seed {seed}");
    assert_eq!(rebuilt + unharmed, count);
}
