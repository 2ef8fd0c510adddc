//! The sessions that there are: live ones and stored ones, as one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt, stream};
use playhouse_messages::{event::Seq, header::SessionHeader, id::SessionId, log::Log};
use playhouse_plugin_api::{
    cancel::CancelToken,
    registry::AgentRegistry,
    scope::Scope,
    session::Session,
    store::{Revision, SessionStat, StoreError, StoreReader, all_sessions},
};

use super::{QueryError, SessionFilter, filter};
use crate::{
    projection::{ProjectionError, Projections},
    title::{TitleProjection, Titled},
};

/// Titles that are read at once.
const TITLES: usize = 4;

/// Answers questions about sessions. Clones share what it reads from; cursors are good for the
/// instance that gave them and its clones.
///
/// A live session is read where it lives, without the store. Every method can be cancelled, and
/// dropping its future is free.
#[derive(Clone)]
pub struct SessionQuery {
    agents: Option<AgentRegistry>,
    pub(super) store: Option<Arc<dyn StoreReader>>,
    titles: Projections,
    pub(super) keys: RandomState,
}

/// A session as a list shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRecord {
    /// The header.
    pub header: Arc<SessionHeader>,
    /// Whether an agent drives it in this process.
    pub live: bool,
    /// Whether the store has it.
    pub persisted: bool,
    /// How many events it has: the live ones if it is live.
    pub event_count: u64,
    /// The payload bytes of its stored events, if it is stored.
    pub size_bytes: Option<u64>,
    pub(super) revision: Option<Revision>,
}

/// A session's whole log, detached.
#[derive(Debug, Clone)]
pub struct SessionLog {
    /// The header.
    pub header: Arc<SessionHeader>,
    /// Whether it was read from a live session.
    pub live: bool,
    /// The log.
    pub log: Log,
}

/// What a session is called, or why that cannot be told.
pub type TitleSnapshot = Result<Option<Titled>, QueryError>;

impl SessionQuery {
    /// Over the live agents of a harness and the sessions of a store, of which either may be absent.
    pub fn new(agents: Option<AgentRegistry>, store: Option<Arc<dyn StoreReader>>) -> Self {
        let titles = Projections::new();
        let scope = Scope::root("session-query");
        titles
            .register(&scope, TitleProjection)
            .unwrap_or_else(|error| unreachable!("the first of an open scope: {error}"));
        Self { agents, store, titles, keys: RandomState::new() }
    }

    /// Sessions, newest first, then by id. All filters must hold; without any, every session.
    ///
    /// # Errors
    ///
    /// [`QueryError::PersistenceFailed`], [`QueryError::SourceConflict`],
    /// [`QueryError::InvalidFilter`], [`QueryError::Aborted`].
    pub async fn list(
        &self,
        filters: &[SessionFilter],
        cancel: &CancelToken,
    ) -> Result<Vec<SessionRecord>, QueryError> {
        filter::check(filters)?;
        let mut records = self.records(cancel).await?;
        records.retain(|record| filters.iter().all(|filter| filter.admits(record)));
        records.sort_by(|a, b| {
            let newest = b.header.created_at.cmp(&a.header.created_at);
            newest.then_with(|| a.header.id.cmp(&b.header.id))
        });
        Ok(records)
    }

    /// A session's whole log.
    ///
    /// # Errors
    ///
    /// [`QueryError::SessionNotFound`], [`QueryError::CorruptSession`],
    /// [`QueryError::PersistenceFailed`], [`QueryError::Aborted`].
    pub async fn read(
        &self,
        id: &SessionId,
        cancel: &CancelToken,
    ) -> Result<SessionLog, QueryError> {
        if let Some(session) = self.live(id) {
            return Ok(SessionLog::of(&session));
        }
        let missing = || QueryError::SessionNotFound { id: id.clone() };
        let store = self.store.as_ref().ok_or_else(missing)?;
        let read = race(cancel, store.read(id)).await?;
        // It may have come to life meanwhile, and be further.
        if let Some(session) = self.live(id) {
            return Ok(SessionLog::of(&session));
        }
        let stored = read.map_err(QueryError::of)?;
        let log = stored.log().map_err(QueryError::of)?;
        Ok(SessionLog { header: stored.header, live: false, log })
    }

    /// What sessions are called, each by itself: one that cannot be read leaves the others alone. A
    /// stored title comes from the projections' cache as far as that goes.
    ///
    /// # Errors
    ///
    /// [`QueryError::Aborted`].
    pub async fn titles(
        &self,
        ids: impl IntoIterator<Item = SessionId>,
        cancel: &CancelToken,
    ) -> Result<BTreeMap<SessionId, TitleSnapshot>, QueryError> {
        let ids: BTreeSet<_> = ids.into_iter().collect();
        let title = |id: SessionId| async move {
            let title = self.title(&id).await;
            (id, title)
        };
        race(cancel, stream::iter(ids).map(title).buffer_unordered(TITLES).collect()).await
    }

    async fn title(&self, id: &SessionId) -> TitleSnapshot {
        let of = |error| match error {
            ProjectionError::Store(error) => QueryError::of(error),
            error => QueryError::PersistenceFailed(StoreError::Argument(error.to_string())),
        };
        if let Some(session) = self.live(id) {
            return self.titles.state_of(&session, TitleProjection::KEY).map_err(of);
        }
        let missing = || QueryError::SessionNotFound { id: id.clone() };
        let store = self.store.as_ref().ok_or_else(missing)?;
        self.titles.stored_state(&**store, id, TitleProjection::KEY).await.map_err(of)
    }

    pub(super) fn live(&self, id: &SessionId) -> Option<Session> {
        Some(self.agents.as_ref()?.get(id)?.session().clone())
    }

    pub(super) async fn records(
        &self,
        cancel: &CancelToken,
    ) -> Result<Vec<SessionRecord>, QueryError> {
        let mut records = BTreeMap::new();
        if let Some(store) = &self.store {
            let listed = all_sessions(&**store).map_ok(|stat| {
                let record = SessionRecord::stored(stat);
                (record.header.id.clone(), record)
            });
            let listed = race(cancel, listed.try_collect()).await?;
            records = listed.map_err(QueryError::PersistenceFailed)?;
        }
        for agent in self.agents.iter().flat_map(AgentRegistry::list) {
            let session = agent.session();
            let stored = records.remove(session.id());
            if let Some(stored) = &stored
                && let Some(field) = differing(session.header(), &stored.header)
            {
                return Err(QueryError::SourceConflict { id: session.id().clone(), field });
            }
            records.insert(session.id().clone(), SessionRecord::live(session, stored));
        }
        Ok(records.into_values().collect())
    }

    /// A number that is another one whenever what these records stand for is.
    pub(super) fn generation(&self, records: &[SessionRecord]) -> u64 {
        let marks = records.iter().map(|record| {
            let revision = record.revision.as_ref().filter(|_| !record.live);
            (&record.header.id, record.live, record.event_count, revision)
        });
        self.keys.hash_one(marks.collect::<Vec<_>>())
    }

    /// A record of one session.
    pub(super) async fn record(
        &self,
        id: &SessionId,
        cancel: &CancelToken,
    ) -> Result<SessionRecord, QueryError> {
        if let Some(session) = self.live(id) {
            return Ok(SessionRecord::live(&session, None));
        }
        let missing = || QueryError::SessionNotFound { id: id.clone() };
        let store = self.store.as_ref().ok_or_else(missing)?;
        let stat = race(cancel, store.stat(id)).await?.map_err(QueryError::of)?;
        stat.map(SessionRecord::stored).ok_or_else(missing)
    }
}

impl SessionRecord {
    /// What the store's catalog says of it, if it is stored and not live.
    pub fn stat(&self) -> Option<SessionStat> {
        Some(SessionStat {
            header: self.header.clone(),
            event_count: self.event_count,
            size_bytes: self.size_bytes?,
            revision: self.revision.clone()?,
        })
    }

    fn stored(stat: SessionStat) -> Self {
        let SessionStat { header, event_count, size_bytes, revision } = stat;
        let (size_bytes, revision) = (Some(size_bytes), Some(revision));
        Self { header, live: false, persisted: true, event_count, size_bytes, revision }
    }

    fn live(session: &Session, stored: Option<Self>) -> Self {
        Self {
            header: session.header().clone(),
            live: true,
            persisted: stored.is_some(),
            event_count: session.log().len(),
            size_bytes: stored.as_ref().and_then(|stored| stored.size_bytes),
            revision: stored.and_then(|stored| stored.revision),
        }
    }
}

impl SessionLog {
    fn of(session: &Session) -> Self {
        Self { header: session.header().clone(), live: true, log: session.log() }
    }

    pub(super) fn len(&self) -> Seq {
        self.log.len()
    }
}

/// A field in which two headers of one id differ, if they are not of one session.
fn differing(live: &SessionHeader, stored: &SessionHeader) -> Option<&'static str> {
    [
        ("version", live.version == stored.version),
        ("createdAt", live.created_at == stored.created_at),
        ("cwd", live.cwd == stored.cwd),
        ("parentSession", live.parent_session == stored.parent_session),
        ("isSeeded", live.is_seeded == stored.is_seeded),
        ("delegationDepth", live.delegation_depth == stored.delegation_depth),
    ]
    .into_iter()
    .find_map(|(field, same)| (!same).then_some(field))
}

/// Waits for `future`, unless the query is cancelled.
pub(super) async fn race<T>(
    cancel: &CancelToken,
    future: impl Future<Output = T>,
) -> Result<T, QueryError> {
    cancel.race(future).await.ok_or_else(|| QueryError::Aborted(cancel.cause()))
}

impl fmt::Debug for SessionQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.store.as_ref().map(|store| store.describe());
        let live = self.agents.as_ref().map(|agents| agents.list().len());
        f.debug_struct("SessionQuery").field("store", &store).field("live", &live).finish()
    }
}
