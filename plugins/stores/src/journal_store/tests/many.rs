//! Many sessions: a page costs what it shows, and an unclean end tells how far its check is.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::journal::{DiskFile, JournalConfig, LockOutcome, Record, Urgency, Writer};

/// The real disk, counting what is read, whose next syncs fail if told to. Clones are one.
#[derive(Clone, Default)]
struct Counting {
    reads: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    failing_syncs: Arc<AtomicU64>,
}

struct CountingFile(Box<dyn DiskFile>, Counting);

impl Disk for Counting {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(CountingFile(RealDisk.create(path)?, self.clone())))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(CountingFile(RealDisk.open(path)?, self.clone())))
    }
    fn open_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.open_write(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.link(from, to)
    }
    fn lock(&self, path: &Path) -> io::Result<LockOutcome> {
        RealDisk.lock(path)
    }
}

impl DiskFile for CountingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        let failing = |left: u64| left.checked_sub(1);
        let failing =
            self.1.failing_syncs.fetch_update(Ordering::AcqRel, Ordering::Acquire, failing);
        if failing.is_ok() { Err(io::Error::other("on purpose")) } else { self.0.sync() }
    }
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.0.seek(offset)
    }
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.1.reads.fetch_add(1, Ordering::Relaxed);
        self.1.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.0.read_at(buf, offset)
    }
}

/// How many sessions; `PLAYHOUSE_SESSIONS` says otherwise.
const SESSIONS: u64 = 10_000;

#[tokio::test]
async fn a_page_of_many_sessions_reads_what_it_shows_and_an_unclean_end_tells_its_progress() {
    let count = std::env::var("PLAYHOUSE_SESSIONS").map_or(SESSIONS, |n| n.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    // Written by the journal alone, as a store leaves it that died before its index was written.
    let config = JournalConfig { segment_bytes: 1 << 20, reserve_bytes: 0 };
    let mut writer =
        Writer::open(Arc::new(RealDisk), dir.path(), *b"0123456789abcdef", config).unwrap();
    for first in (1..=count).step_by(500) {
        let mut records = Vec::new();
        for number in first..(first + 500).min(count + 1) {
            let id = format!("s{number:08}");
            let json = Bytes::from(serde_json::to_vec(&*header(&id)).unwrap());
            records.push(Record::Session { session: number, id, inherited: 0, header: json });
            records.push(Record::Events { session: number, first_seq: 0, events: texts(0, 2) });
        }
        writer.write(&records, Urgency::Ordinary).unwrap();
    }
    writer.sync().unwrap();
    drop(writer);
    let told = Arc::new(Mutex::new(Vec::new()));
    let disk = Counting::default();
    let config = {
        let told = Arc::clone(&told);
        let mut config = JournalStoreConfig::default().reserve_bytes(0);
        config.journal.segment_bytes = 1 << 20;
        config.on_progress(move |at| told.lock().unwrap().push(at))
    };
    let opening = std::time::Instant::now();
    let path = dir.path().to_path_buf();
    let store = JournalStore::open_on(Arc::new(disk.clone()), path, config).await.unwrap();
    let opening = opening.elapsed();
    let told = std::mem::take(&mut *told.lock().unwrap());
    for step in [OpenStep::Segments, OpenStep::IndexRows] {
        let told: Vec<_> = told.iter().filter(|at| at.step == step).collect();
        assert!(told.len() > 2, "{step:?}: {told:?}");
        assert!(told.iter().all(|at| at.done <= at.all && at.all > 0), "{told:?}");
        assert!(told.is_sorted_by_key(|at| at.done), "{told:?}");
    }
    assert!(store.office.core.ledger().index.is_some());
    assert!(store.office.core.ledger().recent.sessions.is_empty(), "all of it is in the index");
    let mut slowest = Duration::ZERO;
    for start in [0, count / 2, count - 101] {
        let after = (start > 0).then(|| SessionId::from(format!("s{start:08}")));
        let before = disk.reads.load(Ordering::Relaxed);
        let since = std::time::Instant::now();
        let page = store.list(ListQuery { after, limit: 100 }).await.unwrap();
        slowest = slowest.max(since.elapsed());
        assert_eq!(page.sessions.len(), 100);
        assert_eq!(page.sessions[0].header.id.as_str(), format!("s{:08}", start + 1));
        assert!(page.next.is_some());
        let reads = disk.reads.load(Ordering::Relaxed) - before;
        assert!(reads <= 101, "one header a session: {reads} reads");
    }
    println!(
        "{count} sessions: opened and indexed in {opening:?}, slowest page of 100 in {slowest:?}"
    );
    store.close().await.unwrap();
}

#[tokio::test]
async fn the_index_does_not_tell_of_what_a_failed_sync_moves() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Counting::default();
    let open = async || {
        let config = small().window(Duration::from_secs(3600));
        JournalStore::open_on(Arc::new(disk.clone()), dir.path().to_path_buf(), config).await
    };
    let store = open().await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    let segments = || {
        let files = std::fs::read_dir(dir.path().join("journal")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    };
    writer.append(batch(0, 1)).await.unwrap();
    writer.flush().await.unwrap();
    let (before, mut next) = (segments(), 1);
    // The one that begins a segment is not synced yet.
    while segments() == before {
        writer.append(batch(next, 3)).await.unwrap();
        next += 3;
    }
    let unsynced = segments().pop().unwrap();
    disk.failing_syncs.store(1, Ordering::Release);
    writer.flush().await.unwrap();
    assert_eq!(disk.failing_syncs.load(Ordering::Acquire), 0);
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, next));
    store.close().await.unwrap();
    drop((writer, store));
    // Of a file whose sync has failed, nothing need be there after a power loss.
    assert_ne!(segments().pop().unwrap(), unsynced);
    std::fs::File::options().write(true).open(&unsynced).unwrap().set_len(0).unwrap();
    let store = open().await.unwrap();
    assert!(store.office.core.ledger().index.is_some());
    assert_eq!(store.read(&"s".into()).await.unwrap().events, texts(0, next));
    store.close().await.unwrap();
}
