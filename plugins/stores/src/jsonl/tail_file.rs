//! A session's tail: the stream of one model attempt, in a file beside the log.
//!
//! A file of its own, since it is thrown away with the next attempt and the log is only ever added to.
//! The first part of another attempt is a new file that takes the old one's place.

use std::sync::Arc;

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::StoreError;

use super::append_file::AppendFile;
use super::layout::draft;
use super::line::{self, Kind, Stand, TailLine};
use super::shelf::{Loaded, Shelf};
use crate::journal::JournalError;

pub(super) struct TailFile {
    shelf: Arc<Shelf>,
    id: SessionId,
    open: Option<Open>,
    /// Whether something lies there that means nothing, and has to go before the log grows.
    stale: bool,
    /// Whether the directory's entry is durable.
    listed: bool,
}

struct Open {
    file: AppendFile,
    attempt: u64,
    parts: u64,
}

impl TailFile {
    /// The tail of a session that is not stored yet.
    pub(super) fn new(shelf: Arc<Shelf>, id: SessionId) -> Self {
        Self { shelf, id, open: None, stale: true, listed: true }
    }

    /// The tail that an earlier writer has left.
    pub(super) fn inherit(
        shelf: Arc<Shelf>,
        id: SessionId,
        loaded: &Loaded,
    ) -> Result<Self, StoreError> {
        let path = shelf.layout().tail(&id);
        let mut open = None;
        if let (Some(tail), Some(bytes)) = (&loaded.tail.tail, &loaded.tail_bytes) {
            let opened = shelf.disk().open_write(&path);
            let file = opened
                .map_err(|error| JournalError::io("open", &path, error))
                .and_then(|file| {
                    let unsynced = bytes[..loaded.tail.len].to_vec();
                    AppendFile::inherit(file, path, loaded.tail.len as u64, unsynced)
                })
                .map_err(|error| shelf.fail(error))?;
            open = Some(Open { file, attempt: tail.attempt, parts: tail.parts.len() as u64 });
        }
        let stale = loaded.tail_bytes.as_ref().is_some_and(|bytes| bytes.len() != loaded.tail.len);
        Ok(Self { shelf, id, open, stale, listed: false })
    }

    /// Takes away what belongs to nothing that is stored: it would be taken for a part of what comes.
    pub(super) fn clear_stale(&mut self) -> Result<(), StoreError> {
        if self.stale {
            if let Some(open) = &mut self.open {
                open.file.sync().map_err(|error| self.shelf.fail(error))?;
            } else if self.shelf.remove(&self.shelf.layout().tail(&self.id))? {
                self.shelf.sync_dir(&self.shelf.layout().sessions())?;
            }
            self.stale = false;
        }
        Ok(())
    }

    /// Whether a part of the attempt takes the place of what is there.
    pub(super) fn is_new(&self, attempt: u64) -> bool {
        self.open.as_ref().is_none_or(|open| open.attempt != attempt)
    }

    /// Writes a part, behind `after` events of the log; they are durable if the attempt is new.
    pub(super) fn write(
        &mut self,
        salt: u32,
        after: u64,
        attempt: u64,
        part: &[u8],
    ) -> Result<(), StoreError> {
        let seq = match &self.open {
            Some(open) if open.attempt == attempt => open.parts,
            _ => 0,
        };
        let mut bytes = Vec::with_capacity(part.len() + 80);
        let line = TailLine::new(attempt, after, part);
        line::encode_object(&mut bytes, &line, Kind::Tail, Stand { salt, seq })
            .map_err(|error| StoreError::Argument(error.to_string()))?;
        match &mut self.open {
            Some(open) if open.attempt == attempt => {
                open.file.write(&bytes).map_err(|error| self.shelf.fail(error))?;
                open.parts += 1;
            }
            _ => self.replace(attempt, &bytes)?,
        }
        Ok(())
    }

    fn replace(&mut self, attempt: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.shelf.layout().tail(&self.id);
        let file = self.shelf.draft(&path, bytes)?;
        let renamed = self.shelf.disk().rename(&draft(&path), &path);
        renamed.map_err(|error| self.shelf.fail(JournalError::io("write", &path, error)))?;
        let file = AppendFile::new(file, path, bytes.len() as u64);
        self.open = Some(Open { file, attempt, parts: 1 });
        (self.stale, self.listed) = (false, false);
        Ok(())
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.file.is_dirty() || !self.listed)
    }

    /// Makes it durable.
    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        if let Some(open) = &mut self.open {
            open.file.sync().map_err(|error| self.shelf.fail(error))?;
            if !self.listed {
                self.shelf.sync_dir(&self.shelf.layout().sessions())?;
                self.listed = true;
            }
        }
        Ok(())
    }
}
