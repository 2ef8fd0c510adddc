//! Connections that read, for as long as the store is open.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use playhouse_plugin_api::store::StoreError;
use rusqlite::Connection;

use super::failure::Fault;
use super::rows::Seal;
use super::schema::{FILE, connect_to_wreck};
use super::view::View;

/// How many connections are kept for the next read.
const IDLE_MAX: usize = 4;

pub(crate) struct Reads {
    file: PathBuf,
    busy: Duration,
    pub(crate) seal: Seal,
    idle: Mutex<Vec<Connection>>,
    idle_max: usize,
    /// Reads hold it shared; whoever ends them takes it alone.
    is_open: RwLock<bool>,
}

impl Reads {
    pub(crate) fn new(dir: &Path, busy: Duration, seal: Seal) -> Self {
        let (file, is_open) = (dir.join(FILE), RwLock::new(true));
        Self { file, busy, seal, idle: Mutex::default(), idle_max: IDLE_MAX, is_open }
    }

    /// Reads that keep no connection when they are done, for those who must not be in a writer's way.
    pub(crate) fn fleeting(dir: &Path, busy: Duration, seal: Seal) -> Self {
        Self { idle_max: 0, ..Self::new(dir, busy, seal) }
    }

    /// Reads as of one moment. Blocks.
    pub(crate) fn with<T>(
        &self,
        read: impl FnOnce(View<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        // Poison says that a read panicked, which breaks nothing here.
        let is_open = self.is_open.read().unwrap_or_else(PoisonError::into_inner);
        if !*is_open {
            return Err(StoreError::Closed.into());
        }
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle().pop();
        let connection = match kept {
            Some(connection) => connection,
            None => connect_to_wreck(&self.file, self.busy)?,
        };
        let snapshot = connection.unchecked_transaction()?;
        let found = read(View { connection: &snapshot, seal: self.seal })?;
        // There is nothing to commit. On damaged pages the end may fail too, which takes nothing from
        // what was read, but ends the connection.
        let is_sound = snapshot.rollback().is_ok();
        let mut idle = idle();
        if is_sound && idle.len() < self.idle_max {
            idle.push(connection);
        }
        Ok(found)
    }

    /// Waits for the reads that are under way; later ones find the store closed.
    pub(crate) fn shut(&self) {
        *self.is_open.write().unwrap_or_else(PoisonError::into_inner) = false;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
