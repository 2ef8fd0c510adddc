//! Where the sessions of a run are kept.

use std::{path::PathBuf, sync::Arc};

use playhouse_plugin_api::store::{Store, StoreError, StoreReader};
use playhouse_stores::{JournalStore, MemoryStore, StoreConfig, open_reader};
use ractor::ActorCell;

/// Where the sessions of a run are kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    /// In memory.
    Memory,
    /// In a directory, which may hold other sessions.
    Dir {
        /// The directory.
        dir: PathBuf,
        /// The kind of store, and how it behaves.
        config: StoreConfig,
    },
}

/// A store that is open, and the way to read it once it is closed.
pub(super) struct Opened {
    pub(super) store: Arc<dyn Store>,
    /// What keeps the actor that writes, if the store has one.
    pub(super) keeper: Option<ActorCell>,
    again: Again,
}

enum Again {
    Memory(MemoryStore),
    Dir(PathBuf),
}

impl Place {
    pub(super) async fn open(self) -> Result<Opened, StoreError> {
        Ok(match self {
            Self::Memory | Self::Dir { config: StoreConfig::Memory, .. } => {
                let store = MemoryStore::new();
                let again = Again::Memory(store.reopen());
                Opened { store: Arc::new(store), keeper: None, again }
            }
            Self::Dir { dir, config: StoreConfig::Journal(config) } => {
                let store = JournalStore::open(&dir, config).await?;
                let keeper = Some(store.keeper());
                Opened { store: Arc::new(store), keeper, again: Again::Dir(dir) }
            }
            // Further kinds have no actors of their own.
            Self::Dir { dir, config } => {
                let store = config.open(&dir).await?;
                Opened { store, keeper: None, again: Again::Dir(dir) }
            }
        })
    }
}

impl Opened {
    /// What a process that starts anew finds.
    pub(super) async fn again(&self) -> Result<Arc<dyn StoreReader>, StoreError> {
        Ok(match &self.again {
            Again::Memory(store) => Arc::new(store.reopen()),
            Again::Dir(dir) => open_reader(dir).await?,
        })
    }
}
