//! Projections of sessions that nobody has open: from the cache, and what the log has beyond it.

use std::sync::Arc;

use playhouse_messages::{event::Seq, header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{SessionStat, Store, StoreError, StoreReader};

use super::{
    cache,
    cell::Cell,
    checkpoint::{Checkpoint, RestoreError},
    error::ProjectionError,
    registry::{Projections, Snapshot, saved, shown},
};

/// Cells at the end of a stored log.
struct Cold {
    header: Arc<SessionHeader>,
    cells: Vec<Cell>,
    end: Seq,
    /// What the cache had.
    cached: Checkpoint,
}

impl Projections {
    /// What all projections show of a stored session: from its cached states and the events after
    /// them, or from the whole log where those do not fit it. `write_back` keeps what was found;
    /// a store that refuses it changes nothing. Dropping the future is free.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such session, also without any projection; what the
    /// store says if it cannot be read.
    pub async fn stored_snapshot(
        &self,
        reader: &dyn StoreReader,
        write_back: Option<&dyn Store>,
        id: &SessionId,
    ) -> Result<Snapshot, ProjectionError> {
        let cold = self.cold(reader, id).await?;
        let found = saved(&cold.cells);
        if let Some(store) = write_back
            && found != cold.cached
            && let Err(error) = cache::save(store, &cold.header, found).await
        {
            tracing::warn!(session = %id, %error, "projections could not be cached");
        }
        Ok(shown(&cold.cells, cold.end))
    }

    /// A projection's state over a stored session, as [`Projections::stored_snapshot`].
    ///
    /// # Errors
    ///
    /// As [`Projections::stored_snapshot`] and [`Projections::state_of`].
    pub async fn stored_state<S: Clone + 'static>(
        &self,
        reader: &dyn StoreReader,
        id: &SessionId,
        key: &str,
    ) -> Result<S, ProjectionError> {
        let cold = self.cold(reader, id).await?;
        let cell = cold.cells.iter().find(|cell| cell.of.unit.name() == key);
        cell.ok_or_else(|| ProjectionError::Unknown { key: key.to_owned() })?.state()
    }

    /// What the cache has of a stored session, without a look at its log: it may be behind, and
    /// `as_of_seq` says how far it is. `None` if it has nothing of use.
    ///
    /// # Errors
    ///
    /// As [`Projections::stored_snapshot`].
    pub async fn cached_snapshot(
        &self,
        reader: &dyn StoreReader,
        id: &SessionId,
    ) -> Result<Option<Snapshot>, ProjectionError> {
        let stat = stat(reader, id).await?;
        if self.all().is_empty() {
            return Ok(Some(shown(&[], stat.event_count)));
        }
        Ok(self.view_checkpoint(&cache::load(reader, &stat.header).await))
    }

    async fn cold(&self, reader: &dyn StoreReader, id: &SessionId) -> Result<Cold, StoreError> {
        let SessionStat { header, event_count, .. } = stat(reader, id).await?;
        let units = self.all();
        if units.is_empty() {
            let (cells, cached) = (Vec::new(), Checkpoint::default());
            return Ok(Cold { header, cells, end: event_count, cached });
        }
        let cached = cache::load(reader, &header).await;
        let mut base = cached.floor(&units);
        loop {
            let events = reader.read_events(id, base..Seq::MAX).await?;
            let end = base + events.len() as u64;
            match cached.restore(&units, id, base, &events) {
                Ok(cells) => return Ok(Cold { header, cells, end, cached }),
                Err(RestoreError::Reread) if base > 0 => base = 0,
                Err(RestoreError::Damaged(error)) => return Err(error),
                Err(RestoreError::Reread) => unreachable!("from 0 every unit can start anew"),
            }
        }
    }
}

async fn stat(reader: &dyn StoreReader, id: &SessionId) -> Result<SessionStat, StoreError> {
    let missing = || StoreError::NotFound { id: id.clone(), store: reader.describe() };
    reader.stat(id).await?.ok_or_else(missing)
}
