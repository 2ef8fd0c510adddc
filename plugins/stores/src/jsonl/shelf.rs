//! What lies in a store's directory, read without a claim on anything. Blocks.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::{event::Seq, id::SessionId};
use playhouse_plugin_api::store::{SessionStat, StoreError, StoredSession, ValuePage, ValueQuery};

use super::layout::{Layout, Named, NamedValue, draft, named, named_value};
use super::scan::{Scan, TailScan, beginning, id_of_header, scan, scan_tail, stat, suffix};
use crate::journal::{Disk, DiskFile, JournalError, write_all};
use crate::journal_store::store_error;

/// How often a read is begun anew because a writer cut the file in the middle of it.
const ATTEMPTS: usize = 8;

/// A store's files.
pub(super) struct Shelf {
    disk: Arc<dyn Disk>,
    layout: Layout,
}

/// A session's files, read.
pub(super) struct Loaded {
    pub(super) scan: Scan,
    pub(super) tail: TailScan,
    /// The bytes of the log.
    pub(super) bytes: Vec<u8>,
    /// The bytes of the tail's file, if there is one.
    pub(super) tail_bytes: Option<Vec<u8>>,
}

impl Loaded {
    pub(super) fn into_session(self) -> StoredSession {
        StoredSession {
            header: self.scan.header,
            inherited_event_count: self.scan.inherited,
            events: self.scan.events,
            tail: self.tail.tail,
        }
    }
}

impl Shelf {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: &Path) -> Self {
        Self { disk, layout: Layout::new(dir) }
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        self.disk.as_ref()
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn describe(&self) -> String {
        format!("jsonl store {}", self.layout.dir().display())
    }

    pub(super) fn fail(&self, error: JournalError) -> StoreError {
        store_error(self.layout.dir(), error)
    }

    pub(super) fn not_found(&self, id: &SessionId) -> StoreError {
        StoreError::NotFound { id: id.clone(), store: self.describe() }
    }

    pub(super) fn sync_dir(&self, dir: &Path) -> Result<(), StoreError> {
        let synced = self.disk.sync_dir(dir);
        synced.map_err(|error| self.fail(JournalError::io("sync", dir, error)))
    }

    /// Removes a file, if it is there. Says whether it was.
    pub(super) fn remove(&self, path: &Path) -> Result<bool, StoreError> {
        match self.disk.remove(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.fail(JournalError::io("remove", path, error))),
        }
    }

    /// Writes the draft of a file and syncs it. One that failed is not left behind.
    pub(super) fn draft(&self, path: &Path, bytes: &[u8]) -> Result<Box<dyn DiskFile>, StoreError> {
        let draft = draft(path);
        // Left by a process that died here.
        self.remove(&draft)?;
        let write = || {
            let mut file = self.disk.create(&draft)?;
            write_all(file.as_mut(), bytes)?;
            file.sync()?;
            Ok(file)
        };
        write().map_err(|error| {
            // What matters is the first error; a draft means nothing.
            let _ = self.disk.remove(&draft);
            self.fail(JournalError::io("write", &draft, error))
        })
    }

    /// Names in a directory; none if it is not there.
    pub(super) fn names(&self, dir: &Path) -> Result<Vec<String>, StoreError> {
        match self.disk.list(dir) {
            Ok(names) => Ok(names),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.fail(JournalError::io("list", dir, error))),
        }
    }

    /// A file's bytes; `None` if it is not there.
    pub(super) fn bytes(&self, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
        let read = || {
            let file = self.disk.open(path)?;
            let mut bytes = vec![0; usize::try_from(file.length()?).map_err(io::Error::other)?];
            file.read_at(&mut bytes, 0).map(|()| bytes)
        };
        let mut attempt = 1;
        loop {
            match read() {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error)
                    if error.kind() == io::ErrorKind::UnexpectedEof && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(self.fail(JournalError::io("read", path, error))),
            }
        }
    }

    pub(super) fn has(&self, id: &SessionId) -> Result<bool, StoreError> {
        let path = self.layout.session(id);
        match self.disk.open(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.fail(JournalError::io("open", path, error))),
        }
    }

    /// Reads a session's files; `None` if there is no such session.
    pub(super) fn load(&self, id: &SessionId) -> Result<Option<Loaded>, StoreError> {
        let (path, tail_path) = (self.layout.session(id), self.layout.tail(id));
        // The tail first: the log that is read then has all that the tail is after.
        let mut tail_bytes = self.bytes(&tail_path)?;
        let Some(mut bytes) = self.bytes(&path)? else { return Ok(None) };
        let mut attempt = 1;
        let scan = loop {
            match scan(id, &short(&path), &bytes) {
                Err(error @ StoreError::Corrupt { .. }) if attempt < ATTEMPTS => {
                    // A writer may have cut a torn end and gone on while we read; damage stays.
                    tail_bytes = self.bytes(&tail_path)?;
                    let Some(again) = self.bytes(&path)? else { return Ok(None) };
                    if again == bytes {
                        return Err(error);
                    }
                    (bytes, attempt) = (again, attempt + 1);
                }
                other => break other?,
            }
        };
        let count = scan.events.len() as u64;
        let tail = tail_bytes
            .as_ref()
            .map(|bytes| scan_tail(&short(&tail_path), bytes, scan.salt, count))
            .unwrap_or_default();
        Ok(Some(Loaded { scan, tail, bytes, tail_bytes }))
    }

    /// A session as it is stored.
    pub(super) fn read(&self, id: &SessionId) -> Result<StoredSession, StoreError> {
        self.load(id)?.map(Loaded::into_session).ok_or_else(|| self.not_found(id))
    }

    /// Those events of `range` that are stored. What lies before is not decoded if it need not be. Of a
    /// damaged session, a range before the damage.
    pub(super) fn events(
        &self,
        id: &SessionId,
        range: Range<Seq>,
    ) -> Result<Vec<Bytes>, StoreError> {
        let bytes = self.bytes(&self.layout.session(id))?.ok_or_else(|| self.not_found(id))?;
        if let Some(events) = suffix(id, &bytes, range.clone()) {
            return Ok(events);
        }
        match self.read(id) {
            Ok(session) => Ok(session.into_events(range)),
            Err(damage @ StoreError::Corrupt { .. }) => {
                let begun = self.beginning(id)?.map(|scan| scan.events).unwrap_or_default();
                let wanted = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
                let events = wanted.and_then(|(start, end)| begun.get(start..end));
                events.map(<[Bytes]>::to_vec).ok_or(damage)
            }
            Err(error) => Err(error),
        }
    }

    /// What the catalog says of a session; of a damaged one, that it has all that was durable. Whoever
    /// walks the catalog must not take it for absent, nor what is left for all of it.
    pub(super) fn stat(&self, id: &SessionId) -> Result<Option<SessionStat>, StoreError> {
        match self.load(id) {
            Ok(loaded) => Ok(loaded.map(|loaded| loaded.scan.stat())),
            Err(StoreError::Corrupt { .. }) => Ok(self.beginning(id)?.map(|scan| {
                stat(&scan.header, scan.salt, scan.print, scan.durable, scan.size_bytes())
            })),
            Err(error) => Err(error),
        }
    }

    fn beginning(&self, id: &SessionId) -> Result<Option<Scan>, StoreError> {
        let path = self.layout.session(id);
        let Some(bytes) = self.bytes(&path)? else { return Ok(None) };
        beginning(id, &short(&path), &bytes).map(|(scan, _)| Some(scan))
    }

    /// The ids of all sessions, in order. One whose id only its header could tell, and does not, is
    /// left out.
    pub(super) fn ids(&self) -> Result<Vec<SessionId>, StoreError> {
        let dir = self.layout.sessions();
        let mut ids = Vec::new();
        for name in self.names(&dir)? {
            match named(&name) {
                Named::Session(id) => ids.push(id),
                Named::Long => ids.extend(self.long_id(&dir.join(&name))?),
                Named::Other => {}
            }
        }
        ids.sort();
        Ok(ids)
    }

    /// The id of a session that its file's name does not hold.
    pub(super) fn long_id(&self, path: &Path) -> Result<Option<SessionId>, StoreError> {
        let bytes = self.bytes(path)?.unwrap_or_default();
        Ok(id_of_header(&bytes).filter(|id| self.layout.session(id) == path))
    }

    /// A page of the keys of small values. One that only its damaged file could tell is left out.
    pub(super) fn values(&self, query: &ValueQuery) -> Result<ValuePage, StoreError> {
        let dir = self.layout.values();
        let mut keys = Vec::new();
        for name in self.names(&dir)? {
            keys.extend(match named_value(&name) {
                NamedValue::Key(key) => Some(key),
                NamedValue::Long => {
                    let path = dir.join(&name);
                    let key = self.bytes(&path)?.and_then(|bytes| super::values::key_of(&bytes));
                    key.filter(|key| self.layout.value(key) == path)
                }
                NamedValue::Other => None,
            });
        }
        keys.retain(|key| query.after.as_ref().is_none_or(|after| key > after));
        keys.sort_unstable();
        Ok(ValuePage::of(query, keys))
    }

    /// A small value.
    pub(super) fn value(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        let path = self.layout.value(key);
        let Some(bytes) = self.bytes(&path)? else { return Ok(None) };
        super::values::decode(key, &bytes).map(Some).map_err(|cause| StoreError::Io {
            what: format!("reading value `{key}` from {}", path.display()),
            cause: format!("the file is damaged at {cause}"),
        })
    }
}

/// A path as errors about damage name it: below the store.
pub(super) fn short(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let dir = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    format!("{dir}/{name}")
}
