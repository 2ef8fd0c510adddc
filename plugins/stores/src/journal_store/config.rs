//! How a journal store behaves, and what it tells while it is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::journal::JournalConfig;

/// How a journal store behaves. The defaults suit a machine of 24 GiB; `docs/config.md` has a table
/// for a small one.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct JournalStoreConfig {
    /// Sizes of the journal.
    pub journal: JournalConfig,
    /// How long written events may stay undurable when nobody waits for them. 200 ms by default.
    pub window: Duration,
    /// How many payload bytes may be with the committer and not written. 64 MiB by default.
    pub waiting_bytes: usize,
    /// Whether to keep an index. Without one every session's blocks are kept in memory.
    pub index: bool,
    /// The index's cache, in bytes of pages as they are stored; in memory they take some times as much.
    /// 4 MiB by default, and at least 64 KiB.
    pub cache_bytes: u64,
    /// How often the committer may die within [`JournalStoreConfig::deaths_within`] and be replaced. At
    /// the next death the store gives up: all that waits and all that comes fails, until it is closed
    /// and opened anew. 8 by default.
    pub deaths_max: usize,
    /// 10 s by default.
    pub deaths_within: Duration,
    /// Is told how far the opening of a store has got that was not closed cleanly.
    pub on_progress: Option<OnProgress>,
}

impl Default for JournalStoreConfig {
    fn default() -> Self {
        Self {
            journal: JournalConfig::default(),
            window: Duration::from_millis(200),
            waiting_bytes: 64 << 20,
            index: true,
            cache_bytes: 4 << 20,
            deaths_max: 8,
            deaths_within: Duration::from_secs(10),
            on_progress: None,
        }
    }
}

impl JournalStoreConfig {
    /// The same with another window. Each write but the first syncs the one before, so a longer
    /// window only matters to a store that is idle in between.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// The same with segments of about so many bytes.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.journal.segment_bytes = bytes;
        self
    }

    /// The same with so many bytes set aside for a full disk; 0 for none.
    #[must_use]
    pub fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.journal.reserve_bytes = bytes;
        self
    }

    /// The same with so many bytes that may be with the committer and not written.
    #[must_use]
    pub fn waiting_bytes(mut self, bytes: usize) -> Self {
        self.waiting_bytes = bytes;
        self
    }

    /// The same with or without an index.
    #[must_use]
    pub fn index(mut self, index: bool) -> Self {
        self.index = index;
        self
    }

    /// The same, with so many deaths of the committer in such a time that are no reason to give up.
    #[must_use]
    pub fn deaths(mut self, max: usize, within: Duration) -> Self {
        (self.deaths_max, self.deaths_within) = (max, within);
        self
    }

    /// The same with a cache of so many bytes for the index.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// The same, telling how far an opening has got. Called on the threads that open, so it should
    /// return soon.
    #[must_use]
    pub fn on_progress(mut self, tell: impl Fn(OpenProgress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(OnProgress(Arc::new(tell)));
        self
    }

    pub(crate) fn tell(&self, step: OpenStep, done: u64, all: u64) {
        if let Some(OnProgress(tell)) = &self.on_progress {
            tell(OpenProgress { step, done, all });
        }
    }
}

/// What an opening is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenStep {
    /// It reads the journal's segments: footers, and whole what is not sealed.
    Segments,
    /// It compares the index with them, row by row, and corrects it.
    IndexRows,
}

/// How far an opening has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenProgress {
    /// At what.
    pub step: OpenStep,
    /// How much of it is done.
    pub done: u64,
    /// How much there is.
    pub all: u64,
}

/// Who is told. Equal to its clones only.
#[derive(Clone)]
pub struct OnProgress(Arc<dyn Fn(OpenProgress) + Send + Sync>);

impl PartialEq for OnProgress {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for OnProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnProgress")
    }
}
