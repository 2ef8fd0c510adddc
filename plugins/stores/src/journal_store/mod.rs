//! The default store: a journal with an index over it.
//!
//! The **journal** is the truth. All writing goes through one `Committer`, an actor in front of one
//! thread that owns the file: it writes what is ready for all sessions with one write, and syncs
//! when somebody waits for durable, or when a window has ended (200 ms by default) that began with
//! the first write after a sync and that later events do not extend. At most one batch is written
//! and not synced, so a write that follows another syncs that one first.
//!
//! When the committer dies, a `Keeper` starts the next one, which gets all jobs that are unanswered;
//! so an append may be done twice, which is why equal events are no error.
//!
//! The **index** (sled) is a cache, written when a segment is sealed, when many records are not in it,
//! and on [`Store::close`]. It is believed after a clean close; otherwise it is compared with the journal and corrected.
//!
//! Bytes that are with the committer and not written are bounded
//! ([`JournalStoreConfig::waiting_bytes`]): calls beyond wait their turn, in the order of the calls.

mod claim;
mod committer;
mod compaction;
mod config;
pub(crate) mod core;
mod desk;
mod failure;
mod job;
mod keeper;
mod listing;
mod office;
mod open;
mod reading;
mod session_writer;
mod tray;
mod wreck;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_messages::{event::Seq, header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{
    ListPage, ListQuery, SessionStat, SessionWriter, Store, StoreError, StoreReader, StoredSession,
    ValuePage, ValueQuery,
};
use ractor::{Actor, ActorCell};

#[cfg(feature = "sqlite")]
pub(crate) use self::core::parse_header;
use crate::StoreKind;
use crate::journal::{Damage, Disk, RealDisk};
use claim::{Claim, Stored};
pub(crate) use claim::{check_key, check_new};
pub use compaction::{CompactReport, compact};
pub use config::{JournalStoreConfig, OnProgress, OpenProgress, OpenStep};
use core::Core;
pub(crate) use failure::store_error;
use job::Job;
use keeper::{Keeper, KeeperArgs};
use office::Office;
#[cfg(feature = "sqlite")]
pub(crate) use open::fresh_id;
pub use reading::JournalReader;
pub(crate) use reading::verify_journal;
use session_writer::JournalSessionWriter;
#[cfg(feature = "sqlite")]
pub(crate) use session_writer::done_if_closed;
use tray::Tray;
pub(crate) use wreck::open_wreck;

/// A store in a directory of its own. See the module's text.
///
/// It needs a tokio runtime for as long as it lives. Dropping it without [`Store::close`] loses
/// nothing that was written, and costs a check when it is opened next; its files and lock are let go
/// of a moment later, when its thread has ended.
pub struct JournalStore {
    office: Arc<Office>,
}

impl JournalStore {
    /// Opens the store in `dir`, creating it if there is none, and takes its lock.
    ///
    /// Damage is no error: the sessions that are touched refuse to be read, and
    /// [`JournalStore::damages`] tells the places.
    ///
    /// # Errors
    ///
    /// [`StoreError::InUse`] if another process has it, [`StoreError::FormatUnsupported`] if a newer
    /// version wrote it, [`StoreError::Argument`] if a store of another kind lies there,
    /// [`StoreError::Full`] and [`StoreError::Io`].
    pub async fn open(
        dir: impl Into<PathBuf>,
        config: JournalStoreConfig,
    ) -> Result<Self, StoreError> {
        let dir = dir.into();
        let alone = dir.clone();
        blocking(move || StoreKind::Journal.check_alone(&alone)).await?;
        Self::open_on(Arc::new(RealDisk), dir, config).await
    }

    /// As [`JournalStore::open`], on another disk: one that refuses, or that keeps account. Only the
    /// journal is on it; the index, if there is one, is where the directory is.
    ///
    /// # Errors
    ///
    /// As [`JournalStore::open`].
    pub async fn open_on(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        config: JournalStoreConfig,
    ) -> Result<Self, StoreError> {
        let opening = config.clone();
        let core = blocking(move || open::open(disk, &dir, &opening)).await?;
        let core = Arc::new(core);
        let tray = Arc::new(Tray::new(config.waiting_bytes));
        let args = KeeperArgs {
            core: Arc::clone(&core),
            window: config.window,
            tray: Arc::clone(&tray),
            deaths_max: config.deaths_max,
            deaths_within: config.deaths_within,
        };
        let spawned = Actor::spawn(None, Keeper, args).await;
        let (keeper, _) = spawned.map_err(|error| StoreError::Io {
            what: format!("starting the committer of {}", core.describe()),
            cause: error.to_string(),
        })?;
        let store = Self { office: Arc::new(Office { core, tray, keeper }) };
        for damage in store.damages() {
            tracing::error!(store = %store.describe(), "the store is damaged: {damage}");
        }
        Ok(store)
    }

    /// The actor that supervises the store's committer, for linking it below another.
    #[must_use]
    pub fn keeper(&self) -> ActorCell {
        self.office.keeper.get_cell()
    }

    /// Every damaged place that was found when the store was opened.
    #[must_use]
    pub fn damages(&self) -> Vec<Damage> {
        self.office.core.ledger().damages.clone()
    }

    /// The store's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.office.core.dir
    }

    /// Runs a read on a blocking thread, if the store is open.
    async fn ask<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Core) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.check_open()?;
        let core = Arc::clone(&self.office.core);
        blocking(move || read(&core)).await
    }

    fn check_open(&self) -> Result<(), StoreError> {
        match self.office.tray.abolished() {
            Some(StoreError::Closed) => Err(StoreError::Closed),
            // Whatever else ended the committer, reading still works.
            _ => Ok(()),
        }
    }

    /// Enters a claim, if nobody has one.
    fn enter(
        &self,
        claim: Arc<Claim>,
        taken: impl FnOnce(SessionId) -> StoreError,
    ) -> Result<Entered, StoreError> {
        let mut ledger = self.office.core.ledger();
        if ledger.claims.contains_key(&claim.id) {
            return Err(taken(claim.id.clone()));
        }
        ledger.claims.insert(claim.id.clone(), Arc::clone(&claim));
        drop(ledger);
        Ok(Entered { office: Arc::clone(&self.office), claim: Some(claim) })
    }
}

/// A claim that is given back unless it is taken out: an abandoned or failed open holds nothing.
struct Entered {
    office: Arc<Office>,
    claim: Option<Arc<Claim>>,
}

impl Entered {
    fn keep(mut self) -> Option<Arc<Claim>> {
        self.claim.take()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(claim) = &self.claim {
            self.office.release(claim);
        }
    }
}

/// Runs blocking work on tokio's threads for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(StoreError::Io { what: "a store's blocking task".to_owned(), cause: error.to_string() })
    })
}

impl StoreReader for JournalStore {
    fn describe(&self) -> String {
        self.office.core.describe()
    }

    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>> {
        let id = id.clone();
        self.ask(move |core| core.read(&id).map(|(session, _)| session)).boxed()
    }

    fn read_events<'a>(
        &'a self,
        id: &'a SessionId,
        range: Range<Seq>,
    ) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        let id = id.clone();
        self.ask(move |core| core.read_events(&id, range)).boxed()
    }

    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>> {
        let id = id.clone();
        self.ask(move |core| core.stat(&id)).boxed()
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>> {
        self.ask(move |core| core.list(&query)).boxed()
    }

    fn list_values(&self, query: ValueQuery) -> BoxFuture<'_, Result<ValuePage, StoreError>> {
        self.ask(move |core| core.values(&query)).boxed()
    }

    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let key = key.as_bytes().to_vec();
        self.ask(move |core| core.value(&key)).boxed()
    }
}

impl Store for JournalStore {
    fn create<'a>(
        &'a self,
        header: &'a Arc<SessionHeader>,
        inherited_event_count: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn SessionWriter>, StoreError>> {
        async move {
            self.check_open()?;
            check_new(header, inherited_event_count)?;
            let claim = Claim::new(Arc::clone(header), inherited_event_count, Stored::default());
            let exists = |id| StoreError::AlreadyExists { id };
            let entered = self.enter(Arc::new(claim), exists)?;
            let id = header.id.clone();
            // Jobs of an earlier writer of the id may still be queued.
            self.office.submit(Job::Barrier).await?;
            let found = self.ask(move |core| core.find(&id)).await?;
            if found.is_some() {
                return Err(exists(header.id.clone()));
            }
            let claim = entered.keep().ok_or(StoreError::Closed)?;
            let writer = JournalSessionWriter::new(Arc::clone(&self.office), claim);
            Ok(Arc::new(writer) as Arc<dyn SessionWriter>)
        }
        .boxed()
    }

    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<(Arc<dyn SessionWriter>, StoredSession), StoreError>> {
        async move {
            self.check_open()?;
            // The claim comes first and is filled in when the session is read.
            let entered =
                self.enter(Arc::new(Claim::placeholder(id)), |id| StoreError::AlreadyOwned { id })?;
            self.office.submit(Job::Barrier).await?;
            let asked = id.clone();
            let (session, stored) = self
                .ask(move |core| match core.find(&asked)? {
                    Some(_) => core.read(&asked),
                    None => Err(StoreError::NotFound { id: asked.clone(), store: core.describe() }),
                })
                .await?;
            let header = Arc::clone(&session.header);
            let claim = Arc::new(Claim::new(header, session.inherited_event_count, stored));
            drop(entered.keep());
            self.office.core.ledger().claims.insert(id.clone(), Arc::clone(&claim));
            let writer = JournalSessionWriter::new(Arc::clone(&self.office), claim);
            Ok((Arc::new(writer) as Arc<dyn SessionWriter>, session))
        }
        .boxed()
    }

    fn delete<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            self.check_open()?;
            // A claim keeps writers away until the tombstone is durable.
            let entered =
                self.enter(Arc::new(Claim::placeholder(id)), |id| StoreError::AlreadyOwned { id })?;
            self.office.submit(Job::Barrier).await?;
            let asked = id.clone();
            let number = self
                .ask(move |core| core.find(&asked))
                .await?
                .ok_or_else(|| StoreError::NotFound { id: id.clone(), store: self.describe() })?;
            self.office.submit(Job::Delete { number }).await?;
            self.office.submit(Job::Sync).await?;
            drop(entered);
            Ok(())
        }
        .boxed()
    }

    fn put_value<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            check_key(key)?;
            let key = Bytes::copy_from_slice(key.as_bytes());
            self.office.submit(Job::Put { key, value: Some(value) }).await
        }
        .boxed()
    }

    fn remove_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            check_key(key)?;
            let key = Bytes::copy_from_slice(key.as_bytes());
            self.office.submit(Job::Put { key, value: None }).await
        }
        .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.office.submit(Job::Sync)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            if self.check_open().is_err() {
                return Ok(());
            }
            let closed = self.office.submit(Job::Close).await;
            self.office.tray.abolish(StoreError::Closed);
            self.office.keeper.stop(None);
            match closed {
                // Somebody else closed it meanwhile.
                Err(StoreError::Closed) | Ok(()) => Ok(()),
                Err(error) => {
                    let core = Arc::clone(&self.office.core);
                    blocking(move || {
                        core.abandon();
                        Ok(())
                    })
                    .await?;
                    Err(error)
                }
            }
        }
        .boxed()
    }
}
