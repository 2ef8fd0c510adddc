//! Reading a store without its lock, also beside the process that writes it; and verifying one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{ListPage, ListQuery, SessionStat, StoreError, StoredSession};

use super::core::{Core, Ledger};
use super::failure::store_error;
use crate::journal::{Damage, Depth, Disk, RealDisk, Recovered, read_format, recover};

/// A view of a store as it was when the view was opened. Changes nothing, takes no lock, and may run
/// beside a live writer, of which it sees a prefix. Every call blocks.
pub struct JournalReader {
    core: Core,
}

impl JournalReader {
    /// Reads the footers of the journal in `dir`, and what is not sealed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Argument`] if there is no store, [`StoreError::FormatUnsupported`] if a newer
    /// version wrote it, [`StoreError::Io`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, StoreError> {
        let dir = dir.as_ref();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let (core, _) = view(&disk, dir, Depth::Footers)?;
        Ok(Self { core })
    }

    /// Reads a session.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`], [`StoreError::Corrupt`], [`StoreError::FormatUnsupported`],
    /// [`StoreError::Io`].
    pub fn read(&self, id: &SessionId) -> Result<StoredSession, StoreError> {
        self.core.read(id).map(|(session, _)| session)
    }

    /// What the catalog says of a session; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] if its header is damaged, [`StoreError::Io`].
    pub fn stat(&self, id: &SessionId) -> Result<Option<SessionStat>, StoreError> {
        self.core.stat(id)
    }

    /// A page of the catalog, ordered by id. Sessions whose header cannot be read are left out.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    pub fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        self.core.list(query)
    }

    /// A small value.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    pub fn value(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        self.core.value(key.as_bytes())
    }

    /// Every damaged place that the view met with. [`verify`] looks for all.
    #[must_use]
    pub fn damages(&self) -> Vec<Damage> {
        self.core.ledger().damages.clone()
    }
}

fn view(disk: &Arc<dyn Disk>, dir: &Path, depth: Depth) -> Result<(Core, Recovered), StoreError> {
    let fail = |error| store_error(dir, error);
    let store = read_format(disk.as_ref(), dir).map_err(fail)?.store;
    let found = recover(disk.as_ref(), dir, &store, depth).map_err(fail)?;
    let ledger = Ledger {
        recent: found.map.clone(),
        damages: found.damages.clone(),
        last_session: found.map.last_session,
        ..Ledger::default()
    };
    Ok((Core::reading(Arc::clone(disk), dir, &store, ledger), found))
}

/// What [`verify`] found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The store's directory.
    pub dir: PathBuf,
    /// How many segments there are.
    pub segments: usize,
    /// How many batches there should be.
    pub batches: u64,
    /// How many sessions there are that are not deleted.
    pub sessions: usize,
    /// How many of their events were read.
    pub events: u64,
    /// A torn batch at the end, which a crash leaves and the next writer cuts off: the segment, and
    /// the offset in bytes. No damage.
    pub torn_tail: Option<(u64, u64)>,
    /// Every damaged place.
    pub damages: Vec<Damage>,
    /// Sessions that cannot be read whole, and why.
    pub unreadable: Vec<(String, StoreError)>,
}

impl VerifyReport {
    /// Whether nothing is damaged.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damages.is_empty() && self.unreadable.is_empty()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} segments, {} batches, {} sessions, {} events",
            self.dir.display(),
            self.segments,
            self.batches,
            self.sessions,
            self.events
        )?;
        if let Some((segment, offset)) = self.torn_tail {
            writeln!(f, "torn: segment {segment} offset {offset}: cut off by the next writer")?;
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

/// Reads every byte of the store in `dir`: checksums, batch numbers, footers against batches, and
/// every event of every session with its sequence number. Takes no lock and changes nothing. Blocks.
///
/// # Errors
///
/// Only if the store cannot be read at all; damage is in the report.
pub fn verify(dir: impl AsRef<Path>) -> Result<VerifyReport, StoreError> {
    let dir = dir.as_ref();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let (core, found) = view(&disk, dir, Depth::Full)?;
    let mut report = VerifyReport {
        dir: dir.to_path_buf(),
        segments: found.segments,
        batches: found.next_batch - 1,
        sessions: found.map.sessions.len(),
        events: 0,
        torn_tail: found.torn,
        damages: found.damages,
        unreadable: Vec::new(),
    };
    for (number, session) in &found.map.sessions {
        if session.id.is_empty() {
            let (id, place) = (SessionId::from(format!("number {number}")), "its record");
            let (place, cause) =
                (place.to_owned(), "its id is lost with its own record".to_owned());
            let error = StoreError::Corrupt { id: id.clone(), place, cause };
            report.unreadable.push((id.to_string(), error));
            continue;
        }
        let id = SessionId::from(session.id.as_str());
        match core.read(&id).and_then(|(stored, _)| check_events(&id, &stored)) {
            Ok(events) => report.events += events,
            Err(error) => report.unreadable.push((session.id.clone(), error)),
        }
    }
    Ok(report)
}

/// Each event must be JSON and say its own place in the log.
fn check_events(id: &SessionId, stored: &StoredSession) -> Result<u64, StoreError> {
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
