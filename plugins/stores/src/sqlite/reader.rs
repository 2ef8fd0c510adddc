//! Reading a store without its lock, also beside the process that writes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_messages::event::Seq;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{
    ListPage, ListQuery, SessionStat, StoreError, StoreReader, StoredSession, ValuePage, ValueQuery,
};
use rusqlite::Connection;

use super::failure::Fault;
use super::open::check_files;
use super::reads::Reads;
use super::rows::StoreRow;
use super::schema::{FILE, check, connect, connect_to_wreck};
use super::view::View;
use super::{SqliteConfig, describe, not_found, page};
use crate::journal_store::blocking;

/// Reads a store, each time as it is then. Takes no lock of the store's, and may run beside a live
/// writer. Each read has a connection of its own, so that none stands in a writer's way for longer.
///
/// It never changes the database. Beside a writer, or after one that was killed, SQLite keeps what
/// its processes share in `sessions.sqlite-shm`, which a reader may have to make.
pub struct SqliteReader {
    shared: Arc<Shared>,
}

struct Shared {
    dir: PathBuf,
    reads: Reads,
    damages: Vec<String>,
}

impl SqliteReader {
    /// Looks through the catalog of the store in `dir`. A damaged one is opened too: what is whole
    /// can be read, and what cannot be found is refused instead of called absent.
    ///
    /// # Errors
    ///
    /// [`StoreError::Argument`] if there is no store, [`StoreError::FormatUnsupported`] if a newer
    /// version made it, [`StoreError::Io`], also for a database whose schema or log is damaged.
    pub async fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let dir = dir.into();
        let shared = blocking(move || Shared::open(dir)).await?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Every damaged place of the catalog. [`verify`](crate::verify()) looks for all damage.
    #[must_use]
    pub fn damages(&self) -> &[String] {
        &self.shared.damages
    }

    async fn ask<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        blocking(move || read(&shared)).await
    }

    /// Reads about one session, if it is there.
    async fn ask_of<T: Send + 'static>(
        &self,
        id: &SessionId,
        read: impl FnOnce(View<'_>, &SessionId) -> Result<Option<T>, Fault> + Send + 'static,
    ) -> Result<Option<T>, StoreError> {
        let id = id.clone();
        self.ask(move |shared| {
            let found = shared.reads.with(|view| read(view, &id));
            match found.map_err(|fault| fault.of_session(&shared.dir, &id))? {
                None => shared.absent().map_err(|fault| fault.of_session(&shared.dir, &id)),
                found => Ok(found),
            }
        })
        .await
    }
}

impl Shared {
    fn open(dir: PathBuf) -> Result<Self, StoreError> {
        let busy = SqliteConfig::default().busy_timeout;
        let looked = connect_to_read(&dir, busy).and_then(|connection| {
            let snapshot = connection.unchecked_transaction()?;
            look(&dir, &snapshot, busy)
        });
        let (store, damages) = looked.map_err(|fault| fault.of_store(&dir))?;
        for damage in &damages {
            tracing::error!(dir = %dir.display(), %damage, "the store is damaged");
        }
        let reads = Reads::fleeting(&dir, busy, store.seal());
        Ok(Self { dir, reads, damages })
    }

    /// What is not found, if that means that it is not there.
    fn absent<T>(&self) -> Result<Option<T>, Fault> {
        match self.damages.first() {
            None => Ok(None),
            Some(damage) => {
                Err(Fault::damaged("its catalog", format!("it may be what is lost: {damage}")))
            }
        }
    }
}

/// A connection that reads, to files that were looked at.
pub(super) fn connect_to_read(dir: &Path, busy: Duration) -> Result<Connection, Fault> {
    check_files(dir)?;
    Ok(connect_to_wreck(&dir.join(FILE), busy)?)
}

/// The store's row, and all damage of the catalog and of the file's length.
pub(super) fn look(
    dir: &Path,
    snapshot: &Connection,
    busy: Duration,
) -> Result<(StoreRow, Vec<String>), Fault> {
    check(snapshot, dir)?;
    let store = StoreRow::read(snapshot)?;
    let view = View { connection: snapshot, seal: store.seal() };
    let mut damages = view.catalog_damages(&store);
    damages.extend(cut(dir, busy)?);
    Ok((store, damages.into_iter().map(|fault| fault.words(dir)).collect()))
}

/// Whether SQLite refuses the whole of a database of which something can be read.
fn cut(dir: &Path, busy: Duration) -> Result<Option<Fault>, Fault> {
    let strict = connect(&dir.join(FILE), false, busy)?;
    let looked = strict.query_row("PRAGMA schema_version", [], |_| Ok(()));
    match looked.map_err(Fault::from) {
        Ok(()) => Ok(None),
        Err(fault) if fault.is_damage() => {
            Ok(Some(Fault::damaged("file end", "pages are missing: the file is cut short")))
        }
        Err(fault) => Err(fault),
    }
}

impl StoreReader for SqliteReader {
    fn describe(&self) -> String {
        describe(&self.shared.dir)
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        async move {
            let read = |view: View<'_>, id: &SessionId| {
                view.row(id)?.map(|row| view.session(&row)).transpose()
            };
            let found = self.ask_of(id, read).await?;
            found.ok_or_else(|| not_found(&self.shared.dir, id))
        }
        .boxed()
    }

    fn read_events<'a>(
        &'a self,
        id: &'a SessionId,
        range: std::ops::Range<Seq>,
    ) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        async move {
            let read = |view: View<'_>, id: &SessionId| {
                view.row(id)?.map(|row| view.events(&row, range)).transpose()
            };
            let found = self.ask_of(id, read).await?;
            found.ok_or_else(|| not_found(&self.shared.dir, id))
        }
        .boxed()
    }

    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>> {
        async move {
            let read = |view: View<'_>, id: &SessionId| {
                view.row(id)?.map(|row| view.stat(&row)).transpose()
            };
            self.ask_of(id, read).await
        }
        .boxed()
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>> {
        self.ask(move |shared| {
            let found = shared.reads.with(|view| Ok(page(view, &query, Vec::new())));
            found.map_err(|fault| fault.of_store(&shared.dir))
        })
        .boxed()
    }

    fn list_values(&self, query: ValueQuery) -> BoxFuture<'_, Result<ValuePage, StoreError>> {
        self.ask(move |shared| {
            let found = shared.reads.with(|view| view.values(&query));
            found.map_err(|fault| fault.of_store(&shared.dir))
        })
        .boxed()
    }

    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let key = key.to_owned();
        self.ask(move |shared| {
            let found = shared.reads.with(|view| view.value(&key));
            let found =
                found.and_then(|value| value.map_or_else(|| shared.absent(), |v| Ok(Some(v))));
            found.map_err(|fault| fault.of_store(&shared.dir))
        })
        .boxed()
    }
}
