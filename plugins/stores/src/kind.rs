//! Which store: one value to choose by, and the way back from a directory to its kind.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use playhouse_plugin_api::store::{Store, StoreError, StoreReader};

use crate::jsonl::{JOURNAL_WORD, WORD, is_ours_without_format};
use crate::{
    JournalReader, JournalStore, JournalStoreConfig, JsonlConfig, JsonlReader, JsonlStore,
    MemoryStore,
};
#[cfg(feature = "sqlite")]
use crate::{SqliteConfig, SqliteReader, SqliteStore};

/// The name of a kind that a build may lack.
const SQLITE: &str = "sqlite";
/// The file by which its stores are known.
pub(crate) const SQLITE_FILE: &str = "sessions.sqlite";

/// The kinds of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKind {
    /// A journal with an index over it: the default.
    Journal,
    /// A readable file of JSON lines a session.
    Jsonl,
    /// Nothing on disk.
    Memory,
    /// One SQLite database.
    #[cfg(feature = "sqlite")]
    Sqlite,
}

impl StoreKind {
    /// All kinds of this build.
    pub const ALL: &[Self] = &[
        Self::Journal,
        Self::Jsonl,
        #[cfg(feature = "sqlite")]
        Self::Sqlite,
        Self::Memory,
    ];

    /// Its name in configs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Jsonl => "jsonl",
            Self::Memory => "memory",
            #[cfg(feature = "sqlite")]
            Self::Sqlite => SQLITE,
        }
    }

    /// The kind of the store that lies `at` this directory.
    ///
    /// # Errors
    ///
    /// [`StoreError::Argument`] if there is none, one that this build does not have, or several.
    pub fn detect(at: &Path) -> Result<Self, StoreError> {
        let found: Vec<Self> = Self::found(at).collect();
        let dir = at.display();
        match found[..] {
            [kind] => Ok(kind),
            [] if Self::is_lacking(at) => Err(StoreError::Argument(format!(
                "the store at {dir} is of the kind sqlite, which this build lacks; build with the \
                 feature `sqlite`"
            ))),
            [] => Err(StoreError::Argument(format!(
                "there is no store at {dir}; name the directory of one"
            ))),
            [one, other, ..] => Err(StoreError::Argument(format!(
                "{dir} has the files of a {one} store and of a {other} store; move one of them to a \
                 directory of its own"
            ))),
        }
    }

    /// Refuses a directory in which a store of another kind lies: beside a second one neither would be
    /// found again.
    ///
    /// # Errors
    ///
    /// [`StoreError::Argument`], with the kind that lies there.
    pub(crate) fn check_alone(self, dir: &Path) -> Result<(), StoreError> {
        let other = Self::found(dir).find(|found| *found != self).map(Self::name);
        let Some(found) = other.or_else(|| Self::is_lacking(dir).then_some(SQLITE)) else {
            return Ok(());
        };
        Err(StoreError::Argument(format!(
            "the store at {} is of the kind {found}, not {self}; name another directory, or choose \
             the kind {found}",
            dir.display(),
        )))
    }

    /// Whether a store lies there of a kind that this build does not have.
    fn is_lacking(dir: &Path) -> bool {
        cfg!(not(feature = "sqlite")) && dir.join(SQLITE_FILE).symlink_metadata().is_ok()
    }

    /// The kinds of which something lies in `dir`.
    fn found(dir: &Path) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |kind| kind.lies_in(dir))
    }

    /// Whether `dir` has what only a store of this kind has. A damaged format file hides none.
    fn lies_in(self, dir: &Path) -> bool {
        let says = |word: &str| {
            std::fs::read(dir.join("format")).is_ok_and(|text| text.starts_with(word.as_bytes()))
        };
        match self {
            Self::Journal => says(JOURNAL_WORD) || has_entries(&dir.join("journal")),
            Self::Jsonl => says(WORD) || is_ours_without_format(dir),
            Self::Memory => false,
            #[cfg(feature = "sqlite")]
            Self::Sqlite => dir.join(SQLITE_FILE).symlink_metadata().is_ok(),
        }
    }
}

/// Whether there is anything in a directory. One that is empty was left by a process that died while it
/// made a store: there is none.
fn has_entries(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for StoreKind {
    type Err = StoreError;

    fn from_str(name: &str) -> Result<Self, StoreError> {
        if cfg!(not(feature = "sqlite")) && name == SQLITE {
            let text =
                "this build has no stores of the kind \"sqlite\"; build with the feature `sqlite`";
            return Err(StoreError::Argument(text.to_owned()));
        }
        Self::ALL.iter().copied().find(|kind| kind.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
            StoreError::Argument(format!(
                "no store is of the kind \"{name}\"; there are {}",
                names.join(", ")
            ))
        })
    }
}

/// Which store, and how it behaves.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum StoreConfig {
    /// See [`JournalStore`].
    Journal(JournalStoreConfig),
    /// See [`JsonlStore`].
    Jsonl(JsonlConfig),
    /// See [`MemoryStore`].
    Memory,
    /// See [`SqliteStore`].
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteConfig),
}

impl StoreConfig {
    /// A kind with its defaults.
    pub fn new(kind: StoreKind) -> Self {
        match kind {
            StoreKind::Journal => Self::Journal(JournalStoreConfig::default()),
            StoreKind::Jsonl => Self::Jsonl(JsonlConfig::default()),
            StoreKind::Memory => Self::Memory,
            #[cfg(feature = "sqlite")]
            StoreKind::Sqlite => Self::Sqlite(SqliteConfig::default()),
        }
    }

    /// The kind.
    pub fn kind(&self) -> StoreKind {
        match self {
            Self::Journal(_) => StoreKind::Journal,
            Self::Jsonl(_) => StoreKind::Jsonl,
            Self::Memory => StoreKind::Memory,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => StoreKind::Sqlite,
        }
    }

    /// Opens the store in `dir`, making one if there is none; in memory, `dir` is not touched.
    ///
    /// # Errors
    ///
    /// [`StoreError::Argument`] if a store of another kind lies there, and the kind's own.
    pub async fn open(self, dir: &Path) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Self::Journal(config) => Arc::new(JournalStore::open(dir, config).await?),
            Self::Jsonl(config) => Arc::new(JsonlStore::open(dir, config).await?),
            Self::Memory => Arc::new(MemoryStore::new()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => Arc::new(SqliteStore::open(dir, config).await?),
        })
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self::new(StoreKind::Journal)
    }
}

/// Opens the store in `dir` for reading, whatever its kind. Takes no lock, and works beside a process
/// that writes it.
///
/// # Errors
///
/// [`StoreError::Argument`] if there is none, and the kind's own.
pub async fn open_reader(dir: &Path) -> Result<Arc<dyn StoreReader>, StoreError> {
    match StoreKind::detect(dir)? {
        StoreKind::Journal => Ok(Arc::new(JournalReader::open(dir).await?)),
        StoreKind::Jsonl => Ok(Arc::new(JsonlReader::open(dir).await?)),
        StoreKind::Memory => Err(StoreError::Argument("memory keeps no files".to_owned())),
        #[cfg(feature = "sqlite")]
        StoreKind::Sqlite => Ok(Arc::new(SqliteReader::open(dir).await?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_store_is_made_beside_one_of_another_kind() {
        let on_disk = |kind: &&StoreKind| **kind != StoreKind::Memory;
        for there in StoreKind::ALL.iter().filter(on_disk) {
            let dir = tempfile::tempdir().unwrap();
            StoreConfig::new(*there).open(dir.path()).await.unwrap().close().await.unwrap();
            let journal = JournalStore::open(dir.path(), JournalStoreConfig::default()).await.err();
            let jsonl = JsonlStore::open(dir.path(), JsonlConfig::default()).await.err();
            let mut refused = vec![(StoreKind::Journal, journal), (StoreKind::Jsonl, jsonl)];
            #[cfg(feature = "sqlite")]
            {
                let sqlite = SqliteStore::open(dir.path(), SqliteConfig::default()).await.err();
                refused.push((StoreKind::Sqlite, sqlite));
            }
            for (kind, error) in refused {
                let told = error.map(|error| error.to_string());
                let names = format!("is of the kind {there}, not {kind}");
                assert_eq!(
                    told.is_some_and(|told| told.contains(&names)),
                    kind != *there,
                    "{names}"
                );
            }
            assert_eq!(StoreKind::detect(dir.path()), Ok(*there));
        }
    }

    #[test]
    fn a_directory_that_a_dead_process_had_just_made_is_no_store() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("journal")).unwrap();
        assert_eq!(StoreKind::detect(dir.path()).unwrap_err().code(), "INVALID_ARGUMENT");
        // A segment whose format file is gone is one, and says that it is damaged.
        std::fs::write(dir.path().join("journal/0000000000000001.segment"), b"").unwrap();
        assert_eq!(StoreKind::detect(dir.path()), Ok(StoreKind::Journal));
    }
}
