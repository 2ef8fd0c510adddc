//! A store of readable files: one JSON Lines file a session. The bytes are described in
//! `docs/jsonl.md`.
//!
//! One process writes, and holds the directory's lock; any number read, without it. Each session that
//! is being written has a [`Desk`](desk::Desk): its jobs are done in the order of the calls, on tokio's
//! blocking threads, and different sessions run side by side, each with a write and a sync of its own.
//! What is written is synced when somebody waits for durable, or when a window has ended (200 ms by
//! default) that began with the first write after a sync and that later ones do not extend.
//!
//! - A new session appears whole: header and first events are synced in a draft, which gets its name by
//!   a hard link.
//! - A failed or short write is cut off again. After a failed sync the file is not trusted until what
//!   it may have lost is written again ([`AppendFile`](append_file::AppendFile)).
//! - Each line has a checksum over its text and place, and says how much of the log was durable. So
//!   damage inside of that is found and named, and what a crash tears behind it is cut
//!   ([`scan`](scan::scan)).
//! - A session's **tail** lies in a file of its own. It is the stream of one attempt that the log settles
//!   later, so a bad line ends it and refuses nothing, and so does one that is ahead of its log.
//! - A small value is a file, replaced whole and durably.

mod append_file;
mod desk;
mod format_file;
mod layout;
mod line;
mod office;
mod reader;
mod scan;
mod session_file;
mod session_writer;
mod shelf;
mod tail_file;
mod values;

#[cfg(test)]
mod tests;

use std::iter;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_messages::{event::Seq, header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{
    ListPage, ListQuery, OpenedSession, SessionStat, SessionWriter, Store, StoreError, StoreReader,
    StoredSession, ValuePage, ValueQuery,
};

use crate::StoreKind;
use crate::journal::{Disk, Held, JournalError, LockOutcome, RealDisk};
use crate::journal_store::{blocking, check_key, check_new};
use format_file::Format;
use layout::is_draft;
use office::{Office, Slot};
pub use reader::JsonlReader;
pub(crate) use reader::verify_jsonl;
use session_file::SessionFile;
use session_writer::JsonlSessionWriter;
use shelf::Shelf;

pub use format_file::JSONL_FORMAT_VERSION;
pub(crate) use format_file::{JOURNAL_WORD, WORD, is_ours_without_format};

/// A header of this text as a line, sealed as if it had been stored so.
#[cfg(test)]
pub(crate) fn sealed_header(header: &str) -> Vec<u8> {
    let open = header.strip_suffix(['}', ']']).unwrap_or(header);
    let mut line = open.replacen('{', "{\"type\":\"session\",", 1).into_bytes();
    line.extend_from_slice(b",\"inheritedEventCount\":0,");
    line::seal(&mut line, 0, line::Kind::Header, line::Stand::default());
    line
}

/// How a JSONL store behaves.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct JsonlConfig {
    /// How long written events may stay undurable when nobody waits for them. 200 ms by default.
    pub window: Duration,
}

impl Default for JsonlConfig {
    fn default() -> Self {
        Self { window: Duration::from_millis(200) }
    }
}

/// A store of one file a session, in a directory of its own, for people and tools that read logs.
///
/// It needs a tokio runtime for as long as it lives. Reading a session, and the first listing of it,
/// reads its file whole; every session is synced by itself. [`JournalStore`](crate::JournalStore) is the
/// one for many agents. Dropping it without [`Store::close`] loses nothing that was written.
///
/// Its file system must know hard links.
pub struct JsonlStore {
    office: Arc<Office>,
}

impl JsonlStore {
    /// Opens the store in `dir`, creating it if there is none, and takes its lock.
    ///
    /// Damage is no error here: the sessions that are touched refuse to be read.
    ///
    /// # Errors
    ///
    /// [`StoreError::InUse`] if another process has it, [`StoreError::FormatUnsupported`] if a newer
    /// version wrote it, [`StoreError::Argument`] if it is something else, [`StoreError::Full`] and
    /// [`StoreError::Io`].
    pub async fn open(dir: impl Into<PathBuf>, config: JsonlConfig) -> Result<Self, StoreError> {
        let dir = dir.into();
        let alone = dir.clone();
        blocking(move || StoreKind::Jsonl.check_alone(&alone)).await?;
        Self::open_on(Arc::new(RealDisk), dir, config).await
    }

    /// As [`JsonlStore::open`], on a disk that may refuse.
    pub(crate) async fn open_on(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        config: JsonlConfig,
    ) -> Result<Self, StoreError> {
        let (shelf, held) = blocking(move || open(disk, &dir)).await?;
        Ok(Self { office: Office::new(shelf, held, config.window) })
    }

    /// The store's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.office.shelf.layout().dir()
    }

    /// Runs a read on a blocking thread, if the store is open.
    async fn ask<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Office) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.office.check_open()?;
        let office = Arc::clone(&self.office);
        blocking(move || read(&office)).await
    }
}

fn open(disk: Arc<dyn Disk>, dir: &Path) -> Result<(Shelf, Box<dyn Held>), StoreError> {
    let shelf = Shelf::new(disk, dir);
    let (sessions, values) = (shelf.layout().sessions(), shelf.layout().values());
    // Before anything is made: it may be somebody else's directory.
    format_file::read(&shelf)?;
    for dir in [dir, &sessions, &values] {
        let made = shelf.disk().create_dir_all(dir);
        made.map_err(|error| shelf.fail(JournalError::io("create", dir, error)))?;
    }
    let lock = shelf.layout().lock();
    let held = match shelf.disk().lock(&lock) {
        Ok(LockOutcome::Held(held)) => held,
        Ok(LockOutcome::Busy(pid)) => {
            return Err(shelf.fail(JournalError::StoreInUse { dir: dir.to_path_buf(), pid }));
        }
        Err(error) => return Err(shelf.fail(JournalError::io("lock", lock, error))),
    };
    if format_file::read(&shelf)? != Format::Whole {
        format_file::write(&shelf)?;
    }
    // Each time: who made these names may have died before they were durable.
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    for dir in iter::once(dir).chain(parent) {
        shelf.sync_dir(dir)?;
    }
    for dir in [sessions, values] {
        for name in shelf.names(&dir)?.iter().filter(|name| is_draft(name)) {
            shelf.remove(&dir.join(name))?;
        }
    }
    Ok((shelf, held))
}

impl StoreReader for JsonlStore {
    fn describe(&self) -> String {
        self.office.shelf.describe()
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        let id = id.clone();
        self.ask(move |office| match office.pending_session(&id) {
            Some(session) => Ok(session),
            None => office.shelf.read(&id),
        })
        .boxed()
    }

    fn read_events<'a>(
        &'a self,
        id: &'a SessionId,
        range: Range<Seq>,
    ) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        let id = id.clone();
        self.ask(move |office| match office.pending_session(&id) {
            Some(session) => Ok(session.into_events(range)),
            None => office.shelf.events(&id, range),
        })
        .boxed()
    }

    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>> {
        let id = id.clone();
        self.ask(move |office| stat(office, &id)).boxed()
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>> {
        self.ask(move |office| {
            // Those that are pending first: what is stored in between then has a file.
            let pending = office.pending(query.after.as_ref());
            let mut ids = office.shelf.ids()?;
            ids.extend(pending.into_iter().map(|stat| stat.header.id.clone()));
            ids.sort();
            ids.dedup();
            reader::page(ids, &query, |id| stat(office, id))
        })
        .boxed()
    }

    fn list_values(&self, query: ValueQuery) -> BoxFuture<'_, Result<ValuePage, StoreError>> {
        self.ask(move |office| office.shelf.values(&query)).boxed()
    }

    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let key = key.to_owned();
        self.ask(move |office| office.shelf.value(&key)).boxed()
    }
}

fn stat(office: &Office, id: &SessionId) -> Result<Option<SessionStat>, StoreError> {
    match office.pending_stat(id) {
        Some(stat) => Ok(Some(stat)),
        None => office.stat(id),
    }
}

impl Store for JsonlStore {
    fn create<'a>(
        &'a self,
        header: &'a Arc<SessionHeader>,
        inherited_event_count: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn SessionWriter>, StoreError>> {
        async move {
            self.office.check_open()?;
            check_new(header, inherited_event_count)?;
            let exists = |id| StoreError::AlreadyExists { id };
            let claimed = Arc::new(self.office.claim(&header.id, exists)?);
            let (header, ours) = (Arc::clone(header), Arc::clone(&claimed));
            let made = claimed.desk.submit(move |slot| {
                slot.check()?;
                let shelf = &ours.office.shelf;
                if shelf.has(&header.id)? {
                    return Err(exists(header.id.clone()));
                }
                ours.claim.announce(&header, inherited_event_count);
                let file = SessionFile::new(Arc::clone(shelf), header, inherited_event_count);
                *slot = Slot::Open(Box::new(file));
                Ok(())
            });
            made.await?;
            Ok(Arc::new(JsonlSessionWriter::new(claimed)) as Arc<dyn SessionWriter>)
        }
        .boxed()
    }

    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<OpenedSession, StoreError>> {
        async move {
            let claimed = Arc::new(self.office.claim(id, |id| StoreError::AlreadyOwned { id })?);
            let ours = Arc::clone(&claimed);
            let opened = claimed.desk.submit(move |slot| {
                slot.check()?;
                let (file, session) = SessionFile::open(&ours.office.shelf, &ours.id)?;
                ours.office.record(file.stat());
                *slot = Slot::Open(Box::new(file));
                Ok(session)
            });
            let session = opened.await?;
            let writer = JsonlSessionWriter::new(claimed);
            Ok((Arc::new(writer) as Arc<dyn SessionWriter>, session))
        }
        .boxed()
    }

    fn delete<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            // A claim keeps writers away until it is gone.
            let claimed = Arc::new(self.office.claim(id, |id| StoreError::AlreadyOwned { id })?);
            let ours = Arc::clone(&claimed);
            let deleted = claimed.desk.submit(move |slot| {
                slot.check()?;
                *slot = Slot::Empty;
                ours.office.forget(&ours.id);
                session_file::delete(&ours.office.shelf, &ours.id)
            });
            deleted.await
        }
        .boxed()
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        if let Err(refused) = check_key(key) {
            return async move { Err(refused) }.boxed();
        }
        let (key, office) = (key.to_owned(), Arc::clone(&self.office));
        self.office.values.submit(move |open| match open {
            true => values::put(&office.shelf, &key, &value),
            false => Err(StoreError::Closed),
        })
    }

    fn remove_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        if let Err(refused) = check_key(key) {
            return async move { Err(refused) }.boxed();
        }
        let (key, office) = (key.to_owned(), Arc::clone(&self.office));
        self.office.values.submit(move |open| match open {
            true => values::remove(&office.shelf, &key),
            false => Err(StoreError::Closed),
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            self.office.check_open()?;
            self.office.sync().await
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.office.close().boxed()
    }
}
