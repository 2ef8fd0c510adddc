//! Reading a store without its lock, also beside the process that writes it; and verifying one.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_messages::{event::Seq, id::SessionId};
use playhouse_plugin_api::store::{
    ListPage, ListQuery, SessionStat, StoreError, StoreReader, StoredSession, ValuePage, ValueQuery,
};

use super::blocking;
use super::core::{Core, Ledger};
use super::failure::store_error;
use crate::journal::{Damage, Depth, Disk, RealDisk, Recovered, read_format, recover};
use crate::kind::StoreKind;
use crate::verify::{Progress, VerifyReport, check_events};

/// A view of a store as it was when the view was opened. Changes nothing, takes no lock, and may run
/// beside a live writer, of which it sees a prefix.
pub struct JournalReader {
    core: Arc<Core>,
}

impl JournalReader {
    /// Reads the footers of the journal in `dir`, and what is not sealed. Sessions whose header cannot
    /// be read are left out of lists.
    ///
    /// # Errors
    ///
    /// [`StoreError::Argument`] if there is no store, [`StoreError::FormatUnsupported`] if a newer
    /// version wrote it, [`StoreError::Io`].
    pub async fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let (disk, dir): (Arc<dyn Disk>, _) = (Arc::new(RealDisk), dir.into());
        let (core, _) = blocking(move || view(&disk, &dir, Depth::Footers)).await?;
        Ok(Self { core: Arc::new(core) })
    }

    /// Every damaged place that the view met with. [`verify`](crate::verify()) looks for all.
    #[must_use]
    pub fn damages(&self) -> Vec<Damage> {
        self.core.ledger().damages.clone()
    }

    /// Runs a read on a blocking thread.
    fn ask<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Core) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let core = Arc::clone(&self.core);
        blocking(move || read(&core)).boxed()
    }
}

impl StoreReader for JournalReader {
    fn describe(&self) -> String {
        self.core.describe()
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        let id = id.clone();
        self.ask(move |core| core.read(&id).map(|(session, _)| session))
    }

    fn read_events<'a>(
        &'a self,
        id: &'a SessionId,
        range: Range<Seq>,
    ) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        let id = id.clone();
        self.ask(move |core| core.read_events(&id, range))
    }

    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>> {
        let id = id.clone();
        self.ask(move |core| core.stat(&id))
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>> {
        self.ask(move |core| core.list(&query))
    }

    fn list_values(&self, query: ValueQuery) -> BoxFuture<'_, Result<ValuePage, StoreError>> {
        self.ask(move |core| core.values(&query))
    }

    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let key = key.as_bytes().to_vec();
        self.ask(move |core| core.value(&key))
    }
}

pub(crate) fn view(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    depth: Depth,
) -> Result<(Core, Recovered), StoreError> {
    let fail = |error| store_error(dir, error);
    let store = read_format(disk.as_ref(), dir).map_err(fail)?.store;
    let found = recover(disk.as_ref(), dir, &store, depth).map_err(fail)?;
    let ledger = Ledger {
        recent: found.map.clone().into(),
        damages: found.damages.clone(),
        last_session: found.map.last_session,
        ..Ledger::default()
    };
    Ok((Core::reading(Arc::clone(disk), dir, &store, ledger), found))
}

/// Reads every byte of the journal in `dir`: checksums, batch numbers, footers against batches, and
/// every event of every session with its sequence number.
pub(crate) fn verify_journal(
    dir: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<VerifyReport, StoreError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let (core, found) = view(&disk, dir, Depth::Full)?;
    let mut report = VerifyReport::new(StoreKind::Journal, dir);
    report.sessions = found.map.sessions.len() as u64;
    report.parts = vec![("segments", found.segments as u64), ("batches", found.next_batch - 1)];
    report.torn = torn_place(&found);
    report.damages = found.damages.iter().map(Damage::to_string).collect();
    for (done, (number, session)) in (1..).zip(&found.map.sessions) {
        let id = SessionId::from(session.id.as_str());
        let read = if session.id.is_empty() {
            Err(nameless(*number).1)
        } else {
            core.read(&id).and_then(|(stored, _)| check_events(&id, &stored))
        };
        match read {
            Ok(events) => report.events += events,
            Err(error) => report.unreadable.push((id, error)),
        }
        progress(Progress { done, all: report.sessions });
    }
    Ok(report)
}

/// Where the journal ends in something half written: in a batch, or in a segment without any.
pub(crate) fn torn_place(found: &Recovered) -> Option<String> {
    let empty = found.empty.last().map(|segment| (*segment, 0));
    let (segment, offset) = found.torn.or(empty)?;
    Some(format!("segment {segment} offset {offset}"))
}

/// A session whose own record is lost, and its id with it.
pub(crate) fn nameless(number: u64) -> (SessionId, StoreError) {
    let cause = "its id is lost with its own record".to_owned();
    let (id, place) = (SessionId::from(format!("number {number}")), "its record".to_owned());
    (id.clone(), StoreError::Corrupt { id, place, cause })
}
