//! Verifying a store: every byte of it, whatever its kind.

use std::fmt;
use std::path::{Path, PathBuf};

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{StoreError, StoredSession};

use crate::journal_store::verify_journal;
use crate::jsonl::verify_jsonl;
use crate::kind::StoreKind;

/// How far a long operation has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Sessions that are done.
    pub done: u64,
    /// How many there are.
    pub all: u64,
}

/// What [`verify`] found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The store's kind.
    pub kind: StoreKind,
    /// Its directory.
    pub dir: PathBuf,
    /// What it consists of, by the kind: `("segments", 3)`.
    pub parts: Vec<(&'static str, u64)>,
    /// How many sessions there are that are not deleted.
    pub sessions: u64,
    /// How many of their events were read.
    pub events: u64,
    /// Where a crash has left something half written, which the next writer cuts off. No damage.
    pub torn: Option<String>,
    /// Every damaged place.
    pub damages: Vec<String>,
    /// Sessions that cannot be read whole, and why.
    pub unreadable: Vec<(SessionId, StoreError)>,
}

impl VerifyReport {
    pub(crate) fn new(kind: StoreKind, dir: &Path) -> Self {
        let (parts, damages, unreadable) = (Vec::new(), Vec::new(), Vec::new());
        let dir = dir.to_path_buf();
        Self { kind, dir, parts, sessions: 0, events: 0, torn: None, damages, unreadable }
    }

    /// Whether nothing is damaged.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damages.is_empty() && self.unreadable.is_empty()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.dir.display())?;
        for (name, count) in &self.parts {
            write!(f, "{count} {name}, ")?;
        }
        writeln!(f, "{} sessions, {} events", self.sessions, self.events)?;
        if let Some(place) = &self.torn {
            writeln!(f, "torn: {place}: a crash left it, and the next writer cuts it off")?;
        }
        for damage in &self.damages {
            writeln!(f, "damaged: {damage}")?;
        }
        for (id, error) in &self.unreadable {
            writeln!(f, "unreadable: session {id}: {error}")?;
        }
        if self.is_whole() {
            writeln!(f, "no damage found")?;
        }
        Ok(())
    }
}

/// Reads every byte of the store in `dir`, of whatever kind: checksums where the kind has them, and
/// every event of every session with its sequence number. Takes no lock and changes nothing. Blocks;
/// `progress` is called after each session.
///
/// # Errors
///
/// Only if the store cannot be read at all; damage is in the report.
pub fn verify(
    dir: impl AsRef<Path>,
    mut progress: impl FnMut(Progress),
) -> Result<VerifyReport, StoreError> {
    let dir = dir.as_ref();
    match StoreKind::detect(dir)? {
        StoreKind::Journal => verify_journal(dir, &mut progress),
        StoreKind::Jsonl => verify_jsonl(dir, &mut progress),
        StoreKind::Memory => Err(StoreError::Argument("memory keeps no files".to_owned())),
        #[cfg(feature = "sqlite")]
        StoreKind::Sqlite => crate::sqlite::verify_sqlite(dir, &mut progress),
    }
}

/// Each event must be JSON and say its own place in the log. Returns how many there are.
pub(crate) fn check_events(id: &SessionId, stored: &StoredSession) -> Result<u64, StoreError> {
    #[derive(serde::Deserialize)]
    struct Numbered {
        seq: u64,
    }
    for (seq, event) in (0..).zip(&stored.events) {
        let cause = match serde_json::from_slice::<Numbered>(event) {
            Ok(numbered) if numbered.seq == seq => continue,
            Ok(numbered) => format!("it says that it is event {}", numbered.seq),
            Err(error) => error.to_string(),
        };
        let place = format!("event {seq}");
        return Err(StoreError::Corrupt { id: id.clone(), place, cause });
    }
    Ok(stored.events.len() as u64)
}
