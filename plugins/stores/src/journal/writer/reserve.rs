//! Space set aside for what must be written on a full disk.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::super::error::JournalError;
use super::{Urgency, Writer, write_all};

fn reserve_path(dir: &Path) -> PathBuf {
    dir.join("reserve")
}

impl Writer {
    /// Gives back what is set aside, if `error` is a full disk and the batch may take it; else the
    /// error stands.
    pub(super) fn release_reserve(
        &mut self,
        error: JournalError,
        urgency: Urgency,
    ) -> Result<(), JournalError> {
        let full = matches!(error, JournalError::StoreFull { .. });
        if !full || urgency < Urgency::Closing || !self.reserve {
            return Err(error);
        }
        (self.reserve, self.spent) = (false, true);
        let removed = self.disk.remove(&reserve_path(&self.dir));
        removed.map_err(|_| error)
    }

    /// Refuses what does not close anything while closers live on what was set aside: else it would
    /// take that too, and the next turn could not be closed.
    pub(super) fn check_reserve(&mut self, urgency: Urgency) -> Result<(), JournalError> {
        if urgency < Urgency::Closing && self.spent {
            self.set_reserve_aside();
        }
        if urgency < Urgency::Closing && self.spent {
            return Err(JournalError::StoreFull { path: reserve_path(&self.dir) });
        }
        Ok(())
    }

    /// Writes the reserve file, if it is wanted and there is room. A full disk is no error here.
    pub(super) fn set_reserve_aside(&mut self) {
        let path = reserve_path(&self.dir);
        let wanted = self.config.reserve_bytes;
        if let Ok(file) = self.disk.open(&path) {
            if wanted > 0 && file.length().is_ok_and(|length| length == wanted) {
                (self.reserve, self.spent) = (true, false);
                return;
            }
            drop(file);
            let _ = self.disk.remove(&path);
        }
        if wanted == 0 {
            return;
        }
        // Real zeros: a file with holes sets nothing aside.
        let zeros = vec![0; usize::try_from(wanted).unwrap_or(0)];
        let made = self.disk.create(&path).and_then(|mut file| {
            write_all(file.as_mut(), &zeros)?;
            file.sync()
        });
        self.reserve = made.is_ok();
        let full = |error: &io::Error| {
            matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
        };
        self.spent = self.spent && made.as_ref().is_err_and(full);
        if made.is_err() {
            let _ = self.disk.remove(&path);
        }
    }
}
