//! The seam to durable storage.
//!
//! Three words, used everywhere: **accepted** (ordered in the log), **written** (in the store's file:
//! survives `kill -9`), **durable** (synced: survives power loss).

mod check;
mod walk;

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
pub use walk::{all_sessions, all_values};

use playhouse_messages::{
    event::{Event, Seq, SharedEvent},
    header::SessionHeader,
    id::SessionId,
    log::Log,
};

/// Reads what a store keeps, without a claim on anything, also beside its writers. Never changes
/// storage.
///
/// All methods may be called concurrently. A read that starts after an append of the same instance
/// has resolved sees at least that append.
pub trait StoreReader: Send + Sync + 'static {
    /// Names the store in logs and errors: its kind and place.
    fn describe(&self) -> String;

    /// Reads a session.
    fn read<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<StoredSession, StoreError>>;

    /// Reads some of a session's events: those of `range` that are stored, none past the end.
    ///
    /// By default the whole session is read; stores that can seek do better.
    fn read_events<'a>(
        &'a self,
        id: &'a SessionId,
        range: Range<Seq>,
    ) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        async move { Ok(self.read(id).await?.into_events(range)) }.boxed()
    }

    /// What the catalog says of a session; `None` if there is none.
    fn stat<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SessionStat>, StoreError>>;

    /// A page of the catalog, ordered by id. [`all_sessions`] walks all of it.
    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, StoreError>>;

    /// A value put by [`Store::put_value`].
    fn get_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>>;

    /// A page of the keys that have a value, in the order of their bytes. [`all_values`] walks all.
    fn list_values(&self, query: ValueQuery) -> BoxFuture<'_, Result<ValuePage, StoreError>>;
}

/// Keeps sessions. One writer a session, any number of readers.
///
/// All methods may be called concurrently. Dropping a returned future abandons the wait, never the
/// physical operation: what was begun runs to its end.
pub trait Store: StoreReader {
    /// Claims a new session for writing. Lazy: nothing is stored before the first non-empty
    /// [`SessionWriter::append`] or a [`SessionWriter::flush`], and a writer closed before that
    /// leaves no trace and a free id.
    ///
    /// `inherited_event_count` is the length of the prefix that a fork inherits; 0 unless
    /// `header.is_seeded`.
    ///
    /// Fails with [`StoreError::AlreadyExists`] for an id that is stored or claimed.
    fn create<'a>(
        &'a self,
        header: &'a Arc<SessionHeader>,
        inherited_event_count: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn SessionWriter>, StoreError>>;

    /// Claims a stored session for writing and reads it. The claim comes first, so that nobody else
    /// writes between the two; a failed read gives it back.
    fn open_write<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> BoxFuture<'a, Result<OpenedSession, StoreError>>;

    /// Deletes a stored session. Refuses one that has a writer.
    fn delete<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Stores a small value outside any session, replacing the old one. Written when this resolves.
    fn put_value<'a>(&'a self, key: &'a str, value: Bytes)
    -> BoxFuture<'a, Result<(), StoreError>>;

    /// Removes a value. Written when this resolves. A key without one is no error, so it may be tried
    /// again.
    fn remove_value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Makes everything that was appended before durable, for all sessions.
    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Flushes, then releases files, threads and locks. Later calls fail with
    /// [`StoreError::Closed`]. Idempotent.
    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// The right to write one session.
///
/// Held by the session's persistence writer; a successor may re-send what it does not know to be
/// durable, so appending events that are already stored, byte for byte the same, succeeds.
pub trait SessionWriter: Send + Sync + 'static {
    /// Appends events. Resolves once **written**.
    ///
    /// The first new event's seq must be the stored next one. Events that are stored already must
    /// be equal ([`StoreError::Conflict`] if not) and are skipped. An empty batch does nothing, and
    /// one that [`EventBatch::check`] refuses is refused here.
    fn append(&self, batch: EventBatch) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Adds to the session's tail: what has been streamed of a model attempt since the last call,
    /// opaque to the store. Resolves once **written**. The first part of another attempt replaces
    /// all parts of the one before; appending events leaves the tail alone, since a reader can tell
    /// from the log whether its attempt has settled.
    fn tail(&self, attempt: u64, part: Bytes) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Makes everything appended before **durable**, and stores an empty session's header. After a
    /// failed flush the events are still accepted; a later flush tries again.
    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Flushes, then gives the claim back even if that failed. A later call flushes again, what was
    /// appended before, and takes no claim; it succeeds if the store is closed. Later calls of the other
    /// methods fail with [`StoreError::Closed`].
    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>>;
}

/// A claim on a stored session, and the session as it is stored.
pub type OpenedSession = (Arc<dyn SessionWriter>, StoredSession);

/// Events as the JSON text that the log keeps, contiguous from `first_seq`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventBatch {
    /// The seq of the first event.
    pub first_seq: Seq,
    /// One JSON text an event, without line ends.
    pub events: Vec<Bytes>,
}

impl EventBatch {
    /// Encodes committed events; they must be contiguous.
    pub fn encode(events: &[SharedEvent]) -> Self {
        Self {
            first_seq: events.first().map_or(0, |event| event.seq),
            events: events.iter().map(|event| Bytes::from(event.to_json())).collect(),
        }
    }

    /// Payload bytes, for flow control.
    pub fn len_bytes(&self) -> usize {
        self.events.iter().map(Bytes::len).sum()
    }
}

/// A session as it is stored: the valid prefix of its events, and what lies beside them.
#[derive(Debug, Clone)]
pub struct StoredSession {
    /// The header.
    pub header: Arc<SessionHeader>,
    /// How many leading events a fork inherited.
    pub inherited_event_count: u64,
    /// The JSON texts of all events, in order from seq 0.
    pub events: Vec<Bytes>,
    /// The stream of the last attempt that was streamed, as far as it was written.
    pub tail: Option<StoredTail>,
}

impl StoredSession {
    /// Those of its events that are in `range`.
    pub fn into_events(mut self, range: Range<Seq>) -> Vec<Bytes> {
        let at = |seq: Seq| usize::try_from(seq).unwrap_or(usize::MAX).min(self.events.len());
        let (start, end) = (at(range.start), at(range.end));
        self.events.truncate(end);
        self.events.split_off(start.min(end))
    }

    /// The events as a log.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] naming the first event that is none, or that says another seq.
    pub fn log(&self) -> Result<Log, StoreError> {
        let mut log = Log::new();
        for (seq, bytes) in (0..).zip(&self.events) {
            let parsed = std::str::from_utf8(bytes).map_err(|fault| fault.to_string());
            let parsed =
                parsed.and_then(|text| Event::from_json(text).map_err(|fault| fault.to_string()));
            let cause = match parsed {
                Ok(event) if event.seq == seq => {
                    log.push(Arc::new(event));
                    continue;
                }
                Ok(event) => format!("it says seq {}", event.seq),
                Err(cause) => cause,
            };
            let place = format!("event {seq}");
            return Err(StoreError::Corrupt { id: self.header.id.clone(), place, cause });
        }
        Ok(log)
    }
}

/// What was streamed of one model attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTail {
    /// The attempt, by the writer's own count.
    pub attempt: u64,
    /// The parts, in order.
    pub parts: Vec<Bytes>,
}

/// What the catalog knows of a session without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStat {
    /// The header.
    pub header: Arc<SessionHeader>,
    /// How many events are stored.
    pub event_count: u64,
    /// Their payload bytes.
    pub size_bytes: u64,
    /// Changes whenever header or events do.
    pub revision: Revision,
}

/// Says whether a session has changed: equal revisions of one id, from one instance of a store, mean
/// equal header and events; the tail is not counted. Nothing else can be read from it, also no order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Revision(Arc<str>);

impl Revision {
    /// A revision of a store: `life` tells sessions apart that had the same id one after the other.
    pub fn new(life: u64, event_count: u64) -> Self {
        Self(format!("{life}:{event_count}").into())
    }

    /// The revision of a session that is claimed and of which nothing is stored: unlike all others of
    /// this process, since another claim of the id may have another header.
    pub fn unstored() -> Self {
        static CLAIMS: AtomicU64 = AtomicU64::new(0);
        Self(format!("unstored:{}", CLAIMS.fetch_add(1, Ordering::Relaxed)).into())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which part of the catalog to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// List ids after this one; `None` starts at the first.
    pub after: Option<SessionId>,
    /// The most entries of the page; at least 1.
    pub limit: usize,
}

impl Default for ListQuery {
    fn default() -> Self {
        Self { after: None, limit: 256 }
    }
}

/// A page of the catalog.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The entries, ordered by id.
    pub sessions: Vec<SessionStat>,
    /// Where the next page starts; `None` on the last.
    pub next: Option<SessionId>,
}

/// Which keys of values to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueQuery {
    /// List keys after this one; `None` starts at the first.
    pub after: Option<String>,
    /// The most keys of the page; at least 1.
    pub limit: usize,
}

impl Default for ValueQuery {
    fn default() -> Self {
        Self { after: None, limit: 256 }
    }
}

/// A page of the keys of values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValuePage {
    /// The keys, in order.
    pub keys: Vec<String>,
    /// Where the next page starts; `None` on the last.
    pub next: Option<String>,
}

impl ValuePage {
    /// The page of a query, from keys that are in order and behind [`ValueQuery::after`].
    pub fn of(query: &ValueQuery, keys: impl IntoIterator<Item = String>) -> Self {
        let mut behind = keys.into_iter();
        let keys: Vec<_> = behind.by_ref().take(query.limit.max(1)).collect();
        let next = behind.next().and(keys.last().cloned());
        Self { keys, next }
    }
}

/// Why a store refused or failed. Messages name the thing, the cause and the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No such session.
    #[error("no session `{id}` in {store}; `playhouse sessions list` shows what is there")]
    NotFound {
        /// The session.
        id: SessionId,
        /// The store.
        store: String,
    },
    /// The id is taken.
    #[error("session `{id}` already exists; resume it or choose another id")]
    AlreadyExists {
        /// The session.
        id: SessionId,
    },
    /// Somebody writes the session.
    #[error("session `{id}` is being written by another agent; wait for it or fork the session")]
    AlreadyOwned {
        /// The session.
        id: SessionId,
    },
    /// Another process has the store.
    #[error(
        "store {path} is in use by {owner}; stop it, or read the store with `playhouse sessions`"
    )]
    InUse {
        /// The store's directory.
        path: String,
        /// Which process, as far as known.
        owner: String,
    },
    /// The handle or store was closed.
    #[error("the store or session handle is closed")]
    Closed,
    /// An append does not continue the stored log.
    #[error("append seq mismatch for `{id}`: expected {expected}, got {got}")]
    SequenceMismatch {
        /// The session.
        id: SessionId,
        /// The seq that the log continues with.
        expected: Seq,
        /// The batch's first seq.
        got: Seq,
    },
    /// An append differs from what is stored under the same seq.
    #[error("session `{id}` already holds a different event at seq {seq}")]
    Conflict {
        /// The session.
        id: SessionId,
        /// The event.
        seq: Seq,
    },
    /// Stored bytes are damaged beyond a torn end.
    #[error(
        "session `{id}` is damaged at {place}: {cause}; `playhouse sessions verify` lists all damage"
    )]
    Corrupt {
        /// The session.
        id: SessionId,
        /// Segment and offset, or file and line.
        place: String,
        /// What is wrong there.
        cause: String,
    },
    /// A newer build, or an event kind that this build does not know.
    #[error("{what} cannot be read by this version: {cause}")]
    FormatUnsupported {
        /// The store, session or event.
        what: String,
        /// Why, and what helps.
        cause: String,
    },
    /// The disk is full. Accepted events are kept and retried.
    #[error(
        "no space left in {path}: free some space, then flush or send again; nothing accepted was lost"
    )]
    Full {
        /// The store's directory.
        path: String,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    Argument(String),
    /// The operating system failed.
    #[error("{what}: {cause}")]
    Io {
        /// What was attempted, with its path.
        what: String,
        /// The system's words.
        cause: String,
    },
}

impl StoreError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "SESSION_NOT_FOUND",
            Self::AlreadyExists { .. } => "SESSION_ALREADY_EXISTS",
            Self::AlreadyOwned { .. } => "SESSION_ALREADY_OWNED",
            Self::InUse { .. } => "STORE_IN_USE",
            Self::Closed => "STORE_CLOSED",
            Self::SequenceMismatch { .. } => "SEQUENCE_MISMATCH",
            Self::Conflict { .. } => "STORE_CONFLICT",
            Self::Corrupt { .. } => "STORE_CORRUPT",
            Self::FormatUnsupported { .. } => "FORMAT_UNSUPPORTED",
            Self::Full { .. } => "STORE_FULL",
            Self::Argument(_) => "INVALID_ARGUMENT",
            Self::Io { .. } => "STORE_IO",
        }
    }
}
