//! The stores of this crate as backends of the contract.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{Store, StoreError, StoreReader};

use super::{Backend, Capability};
use crate::journal::tests::model_disk::{Fault, ModelDisk};
use crate::journal::{JournalConfig, RealDisk, Record, Urgency, Writer};
use crate::{
    JournalReader, JournalStore, JournalStoreConfig, JsonlConfig, JsonlReader, JsonlStore,
    MemoryStore,
};

pub(super) struct Memory(MemoryStore);

impl Memory {
    pub(super) fn new() -> Self {
        Self(MemoryStore::new())
    }
}

impl Backend for Memory {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
        let store = self.0.reopen();
        async move { Ok(Arc::new(store) as Arc<dyn Store>) }.boxed()
    }

    fn lacks(&self, capability: Capability) -> Option<&'static str> {
        Some(match capability {
            Capability::MultiInstance | Capability::OneInstance | Capability::Readers => {
                "clones share what is claimed, not only what is stored"
            }
            _ => "there is no medium that could fail",
        })
    }
}

/// A journal in a directory.
pub(super) struct OnDisk {
    dir: tempfile::TempDir,
    config: JournalStoreConfig,
}

impl OnDisk {
    pub(super) fn new(index: bool, segment_bytes: u64) -> Self {
        let mut config = JournalStoreConfig { index, ..JournalStoreConfig::default() };
        config.journal.segment_bytes = segment_bytes;
        config.journal.reserve_bytes = 0;
        Self { dir: tempfile::tempdir().unwrap(), config }
    }
}

/// A JSONL store in a directory.
pub(super) struct Jsonl(tempfile::TempDir);

impl Jsonl {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Backend for Jsonl {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
        let opening = JsonlStore::open(self.0.path(), JsonlConfig::default());
        async { Ok(Arc::new(opening.await?) as Arc<dyn Store>) }.boxed()
    }

    fn lacks(&self, capability: Capability) -> Option<&'static str> {
        match capability {
            Capability::MultiInstance => Some("one process has the whole directory"),
            Capability::BreakWrites | Capability::BreakFlush => {
                Some("a real disk does not fail on demand; JSONL on a model of one does")
            }
            _ => None,
        }
    }

    fn open_reader(&self) -> BoxFuture<'_, Result<Arc<dyn StoreReader>, StoreError>> {
        let opening = JsonlReader::open(self.0.path());
        async { Ok(Arc::new(opening.await?) as Arc<dyn StoreReader>) }.boxed()
    }

    fn corrupt_tail(&self, id: &SessionId) {
        let path = self.0.path().join(format!("sessions/{id}.jsonl"));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(b"{\"type\":\"turn/sta");
        std::fs::write(path, bytes).unwrap();
    }

    fn plant(&self, id: &SessionId, header: &str) {
        let path = self.0.path().join(format!("sessions/{id}.jsonl"));
        std::fs::write(path, crate::jsonl::sealed_header(header)).unwrap();
    }

    fn storage(&self) -> Vec<u8> {
        files(self.0.path()).into_values().flatten().collect()
    }
}

/// A SQLite store in a directory.
#[cfg(feature = "sqlite")]
pub(super) struct Sqlite(tempfile::TempDir);

#[cfg(feature = "sqlite")]
impl Sqlite {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

#[cfg(feature = "sqlite")]
impl Backend for Sqlite {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
        let opening = crate::SqliteStore::open(self.0.path(), crate::SqliteConfig::default());
        async { Ok(Arc::new(opening.await?) as Arc<dyn Store>) }.boxed()
    }

    fn lacks(&self, capability: Capability) -> Option<&'static str> {
        match capability {
            Capability::MultiInstance => Some("one process has the whole database"),
            Capability::CorruptTail => Some("a transaction is whole or is not: nothing is torn"),
            Capability::BreakWrites | Capability::BreakFlush => {
                Some("SQLite has its own way to the disk; its module's tests break it")
            }
            _ => None,
        }
    }

    fn open_reader(&self) -> BoxFuture<'_, Result<Arc<dyn StoreReader>, StoreError>> {
        let opening = crate::SqliteReader::open(self.0.path());
        async { Ok(Arc::new(opening.await?) as Arc<dyn StoreReader>) }.boxed()
    }

    fn plant(&self, id: &SessionId, header: &str) {
        let (dir, id) = (self.0.path().to_path_buf(), id.to_string());
        let planting = {
            let (dir, id) = (dir.clone(), id.clone());
            move || {
                super::block_on(async {
                    let config = crate::SqliteConfig::default();
                    let store = crate::SqliteStore::open(dir, config).await.unwrap();
                    super::fixtures::store_one(&store, &id, super::batch(0, 1)).await;
                    store.close().await.unwrap();
                });
            }
        };
        // A runtime of its own: this is called from within one.
        std::thread::spawn(planting).join().unwrap();
        crate::sqlite::tests::contract::with_header(&dir, &id, header);
    }

    fn storage(&self) -> Vec<u8> {
        let mut files = files(self.0.path());
        // Where readers are noted: memory that is shared, not storage.
        files.retain(|path, _| !path.to_string_lossy().ends_with("-shm"));
        files.into_values().flatten().collect()
    }
}

/// All files below a directory.
pub(super) fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
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

impl Backend for OnDisk {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
        let opening = JournalStore::open(self.dir.path(), self.config.clone());
        async { Ok(Arc::new(opening.await?) as Arc<dyn Store>) }.boxed()
    }

    fn lacks(&self, capability: Capability) -> Option<&'static str> {
        match capability {
            Capability::MultiInstance => Some("one process has the whole journal"),
            Capability::BreakWrites | Capability::BreakFlush => {
                Some("a real disk does not fail on demand; a journal on a model of one does")
            }
            _ => None,
        }
    }

    fn open_reader(&self) -> BoxFuture<'_, Result<Arc<dyn StoreReader>, StoreError>> {
        let opening = JournalReader::open(self.dir.path());
        async { Ok(Arc::new(opening.await?) as Arc<dyn StoreReader>) }.boxed()
    }

    fn corrupt_tail(&self, _: &SessionId) {
        let segments = files(&self.dir.path().join("journal"));
        let (path, bytes) = segments.into_iter().next_back().unwrap();
        // A batch that got no further than its first bytes.
        let torn = [&bytes[..], &bytes[48..60]].concat();
        std::fs::write(path, torn).unwrap();
    }

    fn plant(&self, id: &SessionId, header: &str) {
        let store = crate::journal::read_format(&RealDisk, self.dir.path()).unwrap().store;
        let mut writer =
            Writer::open(Arc::new(RealDisk), self.dir.path(), store, JournalConfig::default())
                .unwrap();
        writer.resume(crate::journal::Depth::Footers).unwrap();
        let session = Record::Session {
            session: 1000,
            id: id.as_str().to_owned(),
            inherited: 0,
            header: Bytes::copy_from_slice(header.as_bytes()),
        };
        writer.write(&[session], Urgency::Ordinary).unwrap();
        writer.seal().unwrap();
    }

    fn storage(&self) -> Vec<u8> {
        files(&self.dir.path().join("journal")).into_values().flatten().collect()
    }
}

/// A store on a disk in memory that fails on demand.
pub(super) struct OnModelDisk {
    disk: ModelDisk,
    jsonl: bool,
}

impl OnModelDisk {
    pub(super) fn journal() -> Self {
        Self { disk: ModelDisk::default(), jsonl: false }
    }

    pub(super) fn jsonl() -> Self {
        Self { disk: ModelDisk::default(), jsonl: true }
    }

    fn fail(&self, on: bool, fault: Fault) {
        let mut state = self.disk.state();
        state.faults.clear();
        if on {
            state.faults.extend([fault; 100]);
        }
    }
}

impl Backend for OnModelDisk {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
        if self.jsonl {
            let disk = Arc::new(self.disk.clone());
            let opening = JsonlStore::open_on(disk, "/store".into(), JsonlConfig::default());
            return async { Ok(Arc::new(opening.await?) as Arc<dyn Store>) }.boxed();
        }
        // An index cannot be there.
        let mut config = JournalStoreConfig { index: false, ..JournalStoreConfig::default() };
        config.journal.segment_bytes = 20_000;
        config.journal.reserve_bytes = 0;
        let opening = JournalStore::open_on(Arc::new(self.disk.clone()), "/store".into(), config);
        async { Ok(Arc::new(opening.await?) as Arc<dyn Store>) }.boxed()
    }

    fn lacks(&self, capability: Capability) -> Option<&'static str> {
        match capability {
            Capability::BreakWrites | Capability::BreakFlush => None,
            Capability::MultiInstance => Some("one process has the whole store"),
            _ => Some("the model of a disk is for faults; the store on a real one shows this"),
        }
    }

    fn break_writes(&self, on: bool) {
        self.fail(on, Fault::FailWrite);
    }

    fn break_flush(&self, on: bool) {
        self.fail(on, Fault::FailSync);
    }
}
