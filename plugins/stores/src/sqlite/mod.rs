//! A store in one SQLite database.
//!
//! One thread owns the one connection that writes. It takes all jobs that wait and commits them in
//! one transaction, which is synced (`synchronous=FULL`), so here **written is durable**: an append
//! resolves when it survives the loss of power, and a flush only waits for what was appended before.
//!
//! Every row has a checksum over what it is and what it holds, and the counts and sums of rows are
//! stored too, since SQLite takes damaged pages for data. The file is described in `docs/sqlite.md`.
//!
//! What is not yet in a transaction waits with its caller, in the order of the calls.

mod claims;
mod committer;
mod compaction;
mod failure;
mod open;
mod queue;
mod reader;
mod reads;
mod rows;
mod schema;
mod session_writer;
mod verify;
mod view;
mod wal;
mod write;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_messages::event::Seq;
use playhouse_messages::{header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{
    ListPage, ListQuery, OpenedSession, SessionStat, SessionWriter, Store, StoreError, StoreReader,
    StoredSession, ValuePage, ValueQuery,
};

use crate::StoreKind;
use crate::journal_store::{blocking, check_key, check_new};
use claims::{Claim, Claims};
use committer::Committer;
pub use compaction::compact_sqlite;
use failure::Fault;
use queue::{Job, Outcome, Queue};
pub use reader::SqliteReader;
use reads::Reads;
use session_writer::SqliteSessionWriter;
pub(crate) use verify::verify_sqlite;
use view::View;

/// How a SQLite store behaves.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// The size of a page of a database that is made: a power of two from 512 to 65536. 4096 by
    /// default.
    pub page_bytes: u32,
    /// How long to wait for other processes that use the database. 5 s by default.
    pub busy_timeout: Duration,
    /// The payload at which a transaction takes no further jobs. 1 MiB by default.
    pub commit_bytes: usize,
    /// The most pages that the database may have, in place of a full disk.
    #[cfg(test)]
    pub(crate) pages_max: Option<u32>,
}

impl Default for SqliteConfig {
    fn default() -> Self {
        Self {
            page_bytes: 4096,
            busy_timeout: Duration::from_secs(5),
            commit_bytes: 1 << 20,
            #[cfg(test)]
            pages_max: None,
        }
    }
}

/// A store in a directory of its own, in one file. See the module's text.
///
/// It needs a tokio runtime for reads. Dropping it, with its writers, without [`Store::close`] loses
/// nothing; its files and lock are let go of a moment later, when its thread has ended.
pub struct SqliteStore {
    office: Arc<Office>,
}

/// What a store and its session writers share. When the last of them is gone, the thread ends.
struct Office {
    dir: PathBuf,
    queue: Arc<Queue>,
    reads: Arc<Reads>,
    claims: Arc<Claims>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Office {
    fn describe(&self) -> String {
        describe(&self.dir)
    }

    /// Queues a job now; the future resolves when it is done.
    fn submit(self: &Arc<Self>, job: Job) -> BoxFuture<'static, Outcome> {
        let done = self.queue.submit(job);
        let office = Arc::clone(self);
        Box::pin(async move {
            let outcome = done.await;
            drop(office);
            outcome
        })
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.queue.end();
    }
}

fn describe(dir: &Path) -> String {
    format!("the SQLite store at {}", dir.display())
}

fn not_found(dir: &Path, id: &SessionId) -> StoreError {
    StoreError::NotFound { id: id.clone(), store: describe(dir) }
}

impl SqliteStore {
    /// Opens the store in `dir`, creating it if there is none, and takes its lock.
    ///
    /// Damage of a session's events is found when it is read, and that session refuses; a database
    /// whose catalog, schema or log is damaged is not opened, since writing could make it worse.
    ///
    /// # Errors
    ///
    /// [`StoreError::InUse`] if another process writes it, [`StoreError::Argument`] for a file that
    /// is no store's or a store of another kind, [`StoreError::FormatUnsupported`] if a newer version made it,
    /// [`StoreError::Full`], and [`StoreError::Io`], which also names damage.
    pub async fn open(dir: impl Into<PathBuf>, config: SqliteConfig) -> Result<Self, StoreError> {
        let dir = dir.into();
        blocking(move || Self::open_now(dir, config)).await
    }

    fn open_now(dir: PathBuf, config: SqliteConfig) -> Result<Self, StoreError> {
        let (512..=65536, true) = (config.page_bytes, config.page_bytes.is_power_of_two()) else {
            let text = "page_bytes must be a power of two from 512 to 65536";
            return Err(StoreError::Argument(text.to_owned()));
        };
        StoreKind::Sqlite.check_alone(&dir)?;
        let lock = open::prepare(&dir, &config)?;
        let fail = |fault: Fault| fault.of_store(&dir);
        let connection = open::begin_writing(&dir, &config).map_err(fail)?;
        let store = open::check_catalog(&connection).map_err(fail)?;
        let reads = Arc::new(Reads::new(&dir, config.busy_timeout, store.seal()));
        let queue = Arc::new(Queue::new());
        let committer = Committer {
            dir: dir.clone(),
            config,
            connection: Some(connection),
            reads: Arc::clone(&reads),
            lock,
        };
        let jobs = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("playhouse-sqlite".to_owned())
            .spawn(move || committer.run(&jobs))
            .map_err(|error| StoreError::Io {
                what: format!("starting the thread of {}", describe(&dir)),
                cause: error.to_string(),
            })?;
        let thread = Mutex::new(Some(thread));
        let office = Office { dir, queue, reads, claims: Arc::default(), thread };
        Ok(Self { office: Arc::new(office) })
    }

    /// The store's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.office.dir
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.office.queue.has_ended() { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Runs a read on a blocking thread, if the store is open.
    async fn ask<T: Send + 'static>(
        &self,
        read: impl FnOnce(View<'_>) -> Result<T, Fault> + Send + 'static,
        fail: impl FnOnce(Fault) -> StoreError + Send + 'static,
    ) -> Result<T, StoreError> {
        self.check_open()?;
        let reads = Arc::clone(&self.office.reads);
        blocking(move || reads.with(read).map_err(fail)).await
    }

    /// Reads about one session.
    async fn ask_of<T: Send + 'static>(
        &self,
        id: &SessionId,
        read: impl FnOnce(View<'_>, &SessionId) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (asked, named, dir) = (id.clone(), id.clone(), self.office.dir.clone());
        let fail = move |fault: Fault| fault.of_session(&dir, &named);
        self.ask(move |view| read(view, &asked), fail).await
    }

    async fn is_stored(&self, id: &SessionId) -> Result<bool, StoreError> {
        self.ask_of(id, |view, id| Ok(view.row(id)?.is_some())).await
    }
}

impl StoreReader for SqliteStore {
    fn describe(&self) -> String {
        self.office.describe()
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        async move {
            let claim = self.office.claims.new_session(id);
            let read = |view: View<'_>, id: &SessionId| {
                view.row(id)?.map(|row| view.session(&row)).transpose()
            };
            let found = self.ask_of(id, read).await?;
            found
                .or_else(|| claim.map(|claim| claim.session()))
                .ok_or_else(|| not_found(&self.office.dir, id))
        }
        .boxed()
    }

    fn read_events<'a>(
        &'a self,
        id: &'a SessionId,
        range: std::ops::Range<Seq>,
    ) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        async move {
            let claim = self.office.claims.new_session(id);
            let read = |view: View<'_>, id: &SessionId| {
                view.row(id)?.map(|row| view.events(&row, range)).transpose()
            };
            let found = self.ask_of(id, read).await?;
            found
                .or_else(|| claim.map(|_| Vec::new()))
                .ok_or_else(|| not_found(&self.office.dir, id))
        }
        .boxed()
    }

    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>> {
        async move {
            let claim = self.office.claims.new_session(id);
            let read = |view: View<'_>, id: &SessionId| {
                view.row(id)?.map(|row| view.stat(&row)).transpose()
            };
            let found = self.ask_of(id, read).await?;
            Ok(found.or_else(|| claim.map(|claim| claim.stat())))
        }
        .boxed()
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>> {
        async move {
            // The claims first: what is stored in between is then in the database.
            let claims = self.office.claims.unstored();
            let dir = self.office.dir.clone();
            let fail = move |fault: Fault| fault.of_store(&dir);
            self.ask(move |view| Ok(page(view, &query, claims)), fail).await
        }
        .boxed()
    }

    fn list_values(&self, query: ValueQuery) -> BoxFuture<'_, Result<ValuePage, StoreError>> {
        let dir = self.office.dir.clone();
        let fail = move |fault: Fault| fault.of_store(&dir);
        self.ask(move |view| view.values(&query), fail).boxed()
    }

    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let (key, dir) = (key.to_owned(), self.office.dir.clone());
        let fail = move |fault: Fault| fault.of_store(&dir);
        self.ask(move |view| view.value(&key), fail).boxed()
    }
}

/// A page of what is stored and of what is only claimed. A session whose header cannot be read is
/// left out: `stat`, `read` and `verify` say what is wrong with it.
fn page(view: View<'_>, query: &ListQuery, claims: Vec<Arc<Claim>>) -> ListPage {
    let limit = query.limit.max(1);
    let after = query.after.as_ref().map_or("", SessionId::as_str);
    let mut entries: BTreeMap<String, Option<SessionStat>> = claims
        .iter()
        .filter(|claim| claim.id.as_str() > after)
        .map(|claim| (claim.id.as_str().to_owned(), Some(claim.stat())))
        .collect();
    let stored = view.page(after, limit);
    for row in stored.rows {
        let stat = view.stat(&row).ok();
        entries.insert(row.id, stat);
    }
    let more = stored.more || entries.len() > limit;
    let page: Vec<_> = entries.into_iter().take(limit).collect();
    let last = page.last().map(|(id, _)| SessionId::from(id.as_str()));
    let sessions = page.into_iter().filter_map(|(_, stat)| stat).collect();
    ListPage { sessions, next: last.filter(|_| more) }
}

impl Store for SqliteStore {
    fn create<'a>(
        &'a self,
        header: &'a Arc<SessionHeader>,
        inherited_event_count: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn SessionWriter>, StoreError>> {
        async move {
            self.check_open()?;
            check_new(header, inherited_event_count)?;
            let exists = |id| StoreError::AlreadyExists { id };
            let claim = Claim::new(Arc::clone(header), inherited_event_count);
            let entered = self.office.claims.enter(claim, exists)?;
            // Jobs of an earlier writer of the id may still be queued.
            self.office.submit(Job::Barrier).await?;
            if self.is_stored(&header.id).await? {
                return Err(exists(header.id.clone()));
            }
            let writer = SqliteSessionWriter::new(Arc::clone(&self.office), entered);
            Ok(Arc::new(writer) as Arc<dyn SessionWriter>)
        }
        .boxed()
    }

    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<OpenedSession, StoreError>> {
        async move {
            self.check_open()?;
            let owned = |id| StoreError::AlreadyOwned { id };
            let entered = self.office.claims.enter(Claim::held(id), owned)?;
            self.office.submit(Job::Barrier).await?;
            let session = self.read(id).await?;
            let writer = SqliteSessionWriter::new(Arc::clone(&self.office), entered);
            Ok((Arc::new(writer) as Arc<dyn SessionWriter>, session))
        }
        .boxed()
    }

    fn delete<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            self.check_open()?;
            // A claim keeps writers away until the session is gone.
            let owned = |id| StoreError::AlreadyOwned { id };
            let _entered = self.office.claims.enter(Claim::held(id), owned)?;
            self.office.submit(Job::Barrier).await?;
            if !self.is_stored(id).await? {
                return Err(not_found(&self.office.dir, id));
            }
            self.office.submit(Job::Delete { id: id.clone() }).await
        }
        .boxed()
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        match check_key(key) {
            Ok(()) => self.office.submit(Job::Put { key: key.to_owned(), value }),
            Err(refused) => futures::future::ready(Err(refused)).boxed(),
        }
    }

    fn remove_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        match check_key(key) {
            Ok(()) => self.office.submit(Job::Remove { key: key.to_owned() }),
            Err(refused) => futures::future::ready(Err(refused)).boxed(),
        }
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.office.submit(Job::Barrier)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let closed = self.office.submit(Job::Close);
        async move {
            match closed.await {
                // Somebody else closes it, or has.
                Err(StoreError::Closed) | Ok(()) => {}
                Err(error) => return Err(error),
            }
            let thread = self.office.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(thread) = thread else { return Ok(()) };
            blocking(move || {
                thread.join().map_err(|_| StoreError::Io {
                    what: "closing a SQLite store".to_owned(),
                    cause: "its thread panicked".to_owned(),
                })
            })
            .await
        }
        .boxed()
    }
}
