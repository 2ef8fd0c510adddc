//! A session's files, as the one who has the claim writes them. Blocks.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::{header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{EventBatch, SessionStat, StoreError, StoredSession};

use super::append_file::AppendFile;
use super::layout::draft;
use super::line::{Stand, encode_event};
use super::scan::{self, encode_header, fold_print};
use super::shelf::Shelf;
use super::tail_file::TailFile;
use crate::journal::JournalError;

pub(super) struct SessionFile {
    shelf: Arc<Shelf>,
    header: Arc<SessionHeader>,
    inherited: u64,
    /// The log; `None` while nothing is stored.
    log: Option<AppendFile>,
    /// Whether the directory's entry of the log is durable.
    listed: bool,
    tail: TailFile,
    at: At,
}

/// How far the log goes.
#[derive(Debug, Clone, Copy, Default)]
struct At {
    salt: u32,
    print: u32,
    count: u64,
    durable: u64,
    size_bytes: u64,
}

impl At {
    /// Encodes events behind it, and says where the log ends then. With `atomic`, nobody can read
    /// the lines before they all are durable.
    fn encode(
        mut self,
        id: &SessionId,
        events: &[Bytes],
        atomic: bool,
        out: &mut Vec<u8>,
    ) -> Result<Self, StoreError> {
        let durable = if atomic { self.count + events.len() as u64 } else { self.durable };
        for event in events {
            let stand = Stand { salt: self.salt, seq: self.count };
            let crc = encode_event(out, stand, durable, event).map_err(|error| {
                let seq = self.count;
                StoreError::Argument(format!("event {seq} of session `{id}` is not UTF-8: {error}"))
            })?;
            self.print = fold_print(self.print, crc);
            self.count += 1;
            self.size_bytes += event.len() as u64;
        }
        self.durable = durable;
        Ok(self)
    }
}

impl SessionFile {
    /// A session of which nothing is stored.
    pub(super) fn new(shelf: Arc<Shelf>, header: Arc<SessionHeader>, inherited: u64) -> Self {
        let tail = TailFile::new(Arc::clone(&shelf), header.id.clone());
        Self { shelf, header, inherited, log: None, listed: false, tail, at: At::default() }
    }

    /// Opens a stored session. What a crash has left half written is cut before the next write.
    pub(super) fn open(
        shelf: &Arc<Shelf>,
        id: &SessionId,
    ) -> Result<(Self, StoredSession), StoreError> {
        let loaded = shelf.load(id)?.ok_or_else(|| shelf.not_found(id))?;
        let path = shelf.layout().session(id);
        let file = shelf.disk().open_write(&path);
        let file = file.map_err(|error| shelf.fail(JournalError::io("open", &path, error)))?;
        let read = &loaded.scan;
        let unsynced = loaded.bytes[read.durable_len..read.len].to_vec();
        let log = AppendFile::inherit(file, path, read.len as u64, unsynced);
        let file = Self {
            shelf: Arc::clone(shelf),
            header: Arc::clone(&read.header),
            inherited: read.inherited,
            log: Some(log.map_err(|error| shelf.fail(error))?),
            listed: false,
            tail: TailFile::inherit(Arc::clone(shelf), id.clone(), &loaded)?,
            at: At {
                salt: read.salt,
                print: read.print,
                count: read.events.len() as u64,
                durable: read.durable,
                size_bytes: read.size_bytes(),
            },
        };
        if let Some(torn) = &read.torn {
            tracing::warn!(session = %id, "{torn}: a crash left it; the next write cuts it off");
        }
        Ok((file, loaded.into_session()))
    }

    pub(super) fn is_stored(&self) -> bool {
        self.log.is_some()
    }

    pub(super) fn is_dirty(&self) -> bool {
        let unlisted = self.log.is_some() && !self.listed;
        unlisted || self.log.as_ref().is_some_and(AppendFile::is_dirty) || self.tail.is_dirty()
    }

    pub(super) fn stat(&self) -> SessionStat {
        let At { salt, print, count, size_bytes, .. } = self.at;
        scan::stat(&self.header, salt, print, count, size_bytes)
    }

    /// Appends events: they are written when this returns.
    pub(super) fn append(&mut self, batch: &EventBatch) -> Result<(), StoreError> {
        let expected = self.at.count;
        if batch.first_seq > expected {
            let (id, got) = (self.header.id.clone(), batch.first_seq);
            return Err(StoreError::SequenceMismatch { id, expected, got });
        }
        let known = usize::try_from(expected - batch.first_seq).unwrap_or(usize::MAX);
        let (known, new) = batch.events.split_at(known.min(batch.events.len()));
        self.compare(batch.first_seq, known)?;
        if new.is_empty() {
            return Ok(());
        }
        self.tail.clear_stale()?;
        let Some(log) = &mut self.log else { return self.publish(new) };
        let mut bytes = Vec::new();
        let at = self.at.encode(&self.header.id, new, false, &mut bytes)?;
        log.write(&bytes).map_err(|error| self.shelf.fail(error))?;
        self.at = at;
        Ok(())
    }

    /// Events that are sent again must be the ones that are stored.
    fn compare(&self, first_seq: u64, events: &[Bytes]) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        let stored = self.shelf.read(&self.header.id)?.events;
        for (seq, event) in (first_seq..).zip(events) {
            if usize::try_from(seq).ok().and_then(|at| stored.get(at)) != Some(event) {
                return Err(StoreError::Conflict { id: self.header.id.clone(), seq });
            }
        }
        Ok(())
    }

    /// Stores the header, if it is not.
    pub(super) fn materialize(&mut self) -> Result<(), StoreError> {
        if self.log.is_none() {
            self.tail.clear_stale()?;
            self.publish(&[])?;
        }
        Ok(())
    }

    /// Stores header and first events: whole or not at all, and never over something else.
    fn publish(&mut self, events: &[Bytes]) -> Result<(), StoreError> {
        let id = &self.header.id;
        let mut bytes = Vec::new();
        let salt = encode_header(&mut bytes, &self.header, self.inherited)
            .map_err(|error| StoreError::Argument(format!("header: {error}")))?;
        let at = At { salt, ..At::default() }.encode(id, events, true, &mut bytes)?;
        let path = self.shelf.layout().session(id);
        let file = self.shelf.draft(&path, &bytes)?;
        let linked = self.shelf.disk().link(&draft(&path), &path);
        // A draft means nothing, and the store's next opening removes those that are left.
        let _ = self.shelf.disk().remove(&draft(&path));
        linked.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => StoreError::AlreadyExists { id: id.clone() },
            _ => self.shelf.fail(JournalError::io("link", &path, error)),
        })?;
        self.log = Some(AppendFile::new(file, path, bytes.len() as u64));
        self.at = at;
        // It is written now, and durable with its directory: a flush tries that again.
        if let Err(error) = self.list() {
            tracing::warn!(session = %self.header.id, %error, "a new session is not durable yet");
        }
        Ok(())
    }

    fn list(&mut self) -> Result<(), StoreError> {
        if self.log.is_some() && !self.listed {
            self.shelf.sync_dir(&self.shelf.layout().sessions())?;
            self.listed = true;
        }
        Ok(())
    }

    /// Adds to the tail.
    pub(super) fn tail(&mut self, attempt: u64, part: &[u8]) -> Result<(), StoreError> {
        self.materialize()?;
        self.tail.clear_stale()?;
        if self.tail.is_new(attempt) {
            // Else a power cut could leave a tail that is ahead of its log in the old one's place.
            self.sync_log()?;
        }
        self.tail.write(self.at.salt, self.at.count, attempt, part)
    }

    fn sync_log(&mut self) -> Result<(), StoreError> {
        self.list()?;
        if let Some(log) = &mut self.log {
            log.sync().map_err(|error| self.shelf.fail(error))?;
            self.at.durable = self.at.count;
        }
        Ok(())
    }

    /// Makes everything that was written durable.
    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        self.sync_log()?;
        self.tail.sync()
    }
}

/// Deletes a session: its log first, so that what is left of it after a crash is no session.
pub(super) fn delete(shelf: &Shelf, id: &SessionId) -> Result<(), StoreError> {
    if !shelf.remove(&shelf.layout().session(id))? {
        return Err(shelf.not_found(id));
    }
    shelf.sync_dir(&shelf.layout().sessions())?;
    if shelf.remove(&shelf.layout().tail(id))? {
        shelf.sync_dir(&shelf.layout().sessions())?;
    }
    Ok(())
}
