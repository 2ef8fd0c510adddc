//! Writing behind the log: what failing writes cost, and a disk that is full.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use playhouse::{
    AgentHandle, Durability, Harness, NewAgent, NewEvent, TurnEndReason,
    models::scripted::Reply,
    plugin_api::store::{Store, StoreError, StoreReader},
    testing::{FaultyStore, StoreOp},
};
use playhouse_stores::{
    JournalStore, JournalStoreConfig, MemoryStore,
    journal::{Disk, DiskFile, LockOutcome, RealDisk},
};
use serde_json::json;

use crate::lifecycle::rig::{self, Gated, Pause, soon};

fn note(n: u64) -> NewEvent {
    NewEvent::custom("x/note", json!({ "n": n })).ignorable()
}

fn broken() -> StoreError {
    StoreError::Io { what: "append".to_owned(), cause: "the disk is on fire".to_owned() }
}

/// Time passes, and all that can happen in it does.
async fn pass(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

async fn idle_agent(store: Arc<dyn Store>) -> (Harness, AgentHandle) {
    let (harness, _) = rig::on(store, []).await;
    let options = rig::options().durability(Durability::Relaxed);
    let agent = harness.create(NewAgent::new(options)).await.unwrap();
    agent.session().flush().await.unwrap();
    (harness, agent)
}

mod scenario {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn persistence_21_a_failed_background_write_is_not_tried_again_until_a_flush() {
        let store = FaultyStore::new(MemoryStore::new());
        let (harness, agent) = idle_agent(Arc::new(store.clone())).await;
        store.fail(StoreOp::Append, 1000, broken());
        for n in 0..3 {
            agent.session().append(note(n)).await.unwrap();
            pass(Duration::from_millis(1)).await;
        }
        assert_eq!(store.struck(StoreOp::Append), 1, "later events wait as well");
        pass(Duration::from_secs(2)).await;
        assert_eq!(store.struck(StoreOp::Append), 1);
        store.heal();
        agent.session().flush().await.unwrap();
        rig::assert_stored(&store, &agent).await;
        harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn persistence_22_each_caller_of_a_failing_flush_is_told_and_the_log_is_whole_at_last() {
        let store = FaultyStore::new(MemoryStore::new());
        let (harness, agent) = idle_agent(Arc::new(store.clone())).await;
        store.fail(StoreOp::Append, 2, broken());
        agent.session().append(note(1)).await.unwrap();
        pass(Duration::from_millis(1)).await;
        let code = |failed: Result<bool, playhouse::plugin_api::session::SessionError>| {
            failed.unwrap_err().code().to_owned()
        };
        assert_eq!(code(agent.session().flush().await), "STORE_IO");
        store.fail(StoreOp::Flush, 2, StoreError::Full { path: "/disk".to_owned() });
        assert_eq!(code(agent.session().flush().await), "STORE_FULL");
        agent.session().append(note(2)).await.unwrap();
        assert_eq!(code(agent.session().flush().await), "STORE_FULL");
        assert!(agent.session().flush().await.unwrap());
        rig::assert_stored(&store, &agent).await;
        harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn persistence_23_a_flush_behind_a_write_that_fails_has_a_try_of_its_own() {
        let store = Gated::new(MemoryStore::new(), Pause::opened());
        let (harness, agent) = idle_agent(store.clone()).await;
        let appending = &store.state.appending;
        let under_way = appending.count() + 1;
        appending.close();
        agent.session().append(note(1)).await.unwrap();
        appending.arrived(under_way).await;
        let flush = {
            let session = agent.session().clone();
            tokio::spawn(async move { session.flush().await })
        };
        pass(Duration::from_millis(1)).await;
        store.state.fail_appends.store(1, Ordering::SeqCst);
        appending.open();
        assert!(soon(flush).await.unwrap().unwrap(), "the retry works, so the flush does");
        assert_eq!(appending.count(), under_way + 1);
        rig::assert_stored(&store.inner, &agent).await;
        harness.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn persistence_24_fifty_flushes_of_a_session_are_two_of_the_store_at_most() {
        let store = Gated::new(MemoryStore::new(), Pause::opened());
        let (harness, agent) = idle_agent(store.clone()).await;
        let before = store.flushes();
        agent.session().append(note(1)).await.unwrap();
        let flushes: Vec<_> = (0..50).map(|_| agent.session().flush()).collect();
        for flushed in futures::future::join_all(flushes).await {
            assert!(flushed.unwrap());
        }
        let made = store.flushes() - before;
        assert!((1..=2).contains(&made), "{made} flushes");
        let marks = *agent.session().marks().borrow();
        assert_eq!(marks.durable, agent.session().log().len());
        harness.shutdown().await.unwrap();
    }

    /// Our store has no flush of some sessions: one sync is for all, and a checkpoint is a session's.
    #[tokio::test(start_paused = true)]
    async fn persistence_26_one_session_that_cannot_be_written_fails_no_other() {
        let store = Gated::new(MemoryStore::new(), Pause::opened());
        let (harness, broken) = idle_agent(store.clone()).await;
        let options = || NewAgent::new(rig::options().durability(Durability::Relaxed));
        let (healthy, closing) =
            (harness.create(options()).await.unwrap(), harness.create(options()).await.unwrap());
        for agent in [&broken, &healthy, &closing] {
            agent.session().flush().await.unwrap();
        }
        store.state.broken.lock().unwrap().replace(broken.id().clone());
        for agent in [&broken, &healthy, &closing] {
            agent.session().append(note(1)).await.unwrap();
        }
        let (failed, flushed, disposed) =
            futures::join!(broken.session().flush(), healthy.session().flush(), closing.dispose());
        assert_eq!(failed.unwrap_err().code(), "STORE_IO");
        assert!(flushed.unwrap());
        disposed.unwrap();
        rig::assert_stored(&store.inner, &healthy).await;
        rig::assert_stored(&store.inner, &closing).await;
        store.state.broken.lock().unwrap().take();
        broken.session().flush().await.unwrap();
        rig::assert_stored(&store.inner, &broken).await;
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn persistence_64_a_full_disk_fails_the_checkpoint_and_work_resumes_with_room() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Quota::of(dir.path());
        let config = JournalStoreConfig::default().index(false).reserve_bytes(64 << 10);
        let store =
            JournalStore::open_on(Arc::new(disk.clone()), dir.path().to_path_buf(), config).await;
        let store = Arc::new(store.unwrap());
        let replies = ["one", "two", "three"].map(Reply::text);
        let (harness, model) = rig::on(store.clone(), replies).await;
        let agent = harness.create(NewAgent::new(rig::options())).await.unwrap();
        assert_eq!(soon(agent.prompt("Hi")).await.unwrap().text, "one");
        soon(agent.when_idle()).await.unwrap();
        let asked = model.captured().len();
        disk.capacity.store(disk.used() + 100, Ordering::SeqCst);
        let failed = soon(agent.prompt("More")).await.unwrap();
        let full = |reason: &TurnEndReason| matches!(reason, TurnEndReason::Error(failure) if failure.code == "STORE_FULL");
        assert!(full(&failed.reason), "{:?}", failed.reason);
        assert_eq!(model.captured().len(), asked, "nobody was asked what could not be recorded");
        soon(agent.when_idle()).await.unwrap();
        // The turn was closed with what was set aside.
        assert!(!dir.path().join("reserve").exists());
        rig::assert_stored(&*store, &agent).await;
        let again = soon(agent.prompt("Still full?")).await.unwrap();
        assert!(full(&again.reason), "{:?}", again.reason);
        assert_eq!(model.captured().len(), asked);
        disk.capacity.store(u64::MAX, Ordering::SeqCst);
        soon(agent.session().flush()).await.unwrap();
        rig::assert_stored(&*store, &agent).await;
        assert_eq!(soon(agent.prompt("And now?")).await.unwrap().text, "two");
        soon(agent.when_idle()).await.unwrap();
        rig::assert_stored(&*store, &agent).await;
        assert!(dir.path().join("reserve").exists(), "it is set aside again");
        let log = agent.session().log();
        harness.shutdown().await.unwrap();
        let store = JournalStore::open(dir.path(), JournalStoreConfig::default()).await.unwrap();
        let stored = store.read(agent.id()).await.unwrap();
        assert!(stored.log().unwrap().iter().eq(log.iter()));
        store.close().await.unwrap();
    }
}

/// The real disk, as if it held no more than so many bytes. Clones are the same one.
#[derive(Clone)]
struct Quota {
    dir: PathBuf,
    capacity: Arc<AtomicU64>,
}

impl Quota {
    fn of(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), capacity: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    fn limited(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(Limited { file, disk: self.clone() })
    }

    /// Bytes of all files.
    fn used(&self) -> u64 {
        let files = [self.dir.clone(), self.dir.join("journal")].map(|dir| {
            let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
            let files = entries.map(|entry| entry.metadata().unwrap()).filter(|it| it.is_file());
            files.map(|file| file.len()).sum::<u64>()
        });
        files.iter().sum()
    }

    fn room(&self) -> u64 {
        self.capacity.load(Ordering::SeqCst).saturating_sub(self.used())
    }
}

/// A file of it.
struct Limited {
    file: Box<dyn DiskFile>,
    disk: Quota,
}

impl Disk for Quota {
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
        Ok(self.limited(RealDisk.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.open(path)
    }

    fn open_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.limited(RealDisk.open_write(path)?))
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

impl DiskFile for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = usize::try_from(self.disk.room()).unwrap_or(usize::MAX);
        if room == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write(&bytes[..bytes.len().min(room)])
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.file.seek(offset)
    }

    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buf, offset)
    }
}
