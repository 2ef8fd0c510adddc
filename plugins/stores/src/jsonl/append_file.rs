//! A file that grows at its end, and what to do when the disk refuses.

use std::io;
use std::path::PathBuf;

use crate::journal::{DiskFile, JournalError, write_all};

/// What is written is in the file whole, or not at all; what was synced is durable.
///
/// After a failed sync the operating system may have dropped the bytes and call the next sync a
/// success. So it is not asked again about the same writes: everything that is not known to be durable
/// is kept here, and is written over itself before it is synced anew, which makes the pages dirty
/// again. It is written in place, since a reader, or a process that comes after a `kill -9`, must not
/// meet with less than was there.
pub(super) struct AppendFile {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    /// Bytes that count; there may be more behind them if the file is suspect.
    len: u64,
    /// The last of them, not known to be durable.
    unsynced: Vec<u8>,
    /// Whether something went wrong, here or in an earlier process, that [`Self::mend`] puts right.
    suspect: bool,
}

impl AppendFile {
    /// A file of which the first `len` bytes count, all durable.
    pub(super) fn new(file: Box<dyn DiskFile>, path: PathBuf, len: u64) -> Self {
        Self { file, path, len, unsynced: Vec::new(), suspect: false }
    }

    /// A file that an earlier process has left: the last bytes that count may not be durable, and
    /// what is behind them is cut before the first write.
    pub(super) fn inherit(
        file: Box<dyn DiskFile>,
        path: PathBuf,
        len: u64,
        unsynced: Vec<u8>,
    ) -> Result<Self, JournalError> {
        let length = file.length().map_err(|error| JournalError::io("read", &path, error))?;
        let suspect = length != len || !unsynced.is_empty();
        Ok(Self { file, path, len, unsynced, suspect })
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.suspect || !self.unsynced.is_empty()
    }

    /// Writes bytes at the end.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        if self.suspect {
            self.mend()?;
        }
        match write_all(self.file.as_mut(), bytes) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                self.unsynced.extend_from_slice(bytes);
                Ok(())
            }
            Err(error) => {
                self.suspect = true;
                let error = self.roll_back(error);
                Err(self.fail("write", error))
            }
        }
    }

    /// Takes away what a failed write has left. The next write makes sure of it.
    fn roll_back(&mut self, error: io::Error) -> io::Error {
        match self.file.set_len(self.len) {
            Ok(()) => error,
            Err(second) => io::Error::other(format!(
                "{error}; and cutting it back to {} bytes failed too: {second}",
                self.len
            )),
        }
    }

    /// Makes everything that was written durable.
    pub(super) fn sync(&mut self) -> Result<(), JournalError> {
        if self.suspect {
            return self.mend();
        }
        if self.unsynced.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.sync() {
            self.suspect = true;
            let error = self.fail("sync", error);
            tracing::warn!(%error, "a sync failed; what is not durable is written again");
            return self.mend();
        }
        self.unsynced.clear();
        Ok(())
    }

    /// Writes what may not be durable again, cuts what is behind it, and syncs.
    fn mend(&mut self) -> Result<(), JournalError> {
        let mended = self.rewrite().and_then(|()| self.file.sync());
        mended.map_err(|error| self.fail("rewrite the unsynced end of", error))?;
        self.unsynced.clear();
        self.suspect = false;
        Ok(())
    }

    fn rewrite(&mut self) -> io::Result<()> {
        self.file.seek(self.len - self.unsynced.len() as u64)?;
        write_all(self.file.as_mut(), &self.unsynced)?;
        self.file.set_len(self.len)
    }

    fn fail(&self, action: &'static str, error: io::Error) -> JournalError {
        JournalError::io(action, &self.path, error)
    }
}
