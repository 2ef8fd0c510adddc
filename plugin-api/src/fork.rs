//! Forks: sessions that begin with the history of another one.

use std::sync::Arc;

use playhouse_messages::{event::Seq, header::SessionHeader, id::SessionId, repair::ForkSeed};

use crate::store::{EventBatch, SessionWriter, Store, StoreError};

/// Where a fork leaves its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkPoint {
    /// The source: live or stored.
    pub session: SessionId,
    /// The last event that is inherited, any of the source's; its last one if absent.
    pub boundary: Option<Seq>,
}

impl ForkPoint {
    /// At this event, which is the last to be inherited.
    pub fn at(session: impl Into<SessionId>, boundary: Seq) -> Self {
        Self { session: session.into(), boundary: Some(boundary) }
    }
}

impl<Id: Into<SessionId>> From<Id> for ForkPoint {
    /// At the end of the source's log as it is then.
    fn from(session: Id) -> Self {
        Self { session: session.into(), boundary: None }
    }
}

/// Stores a fork: claims its id, writes inherited history, marker and closers in one batch, and makes
/// them **durable**.
///
/// Dropping the future may leave the session stored and claimed: run it to its end, and take what is
/// not wanted back with [`take_back`].
///
/// # Errors
///
/// The store's, [`StoreError::AlreadyExists`] among them. What had been stored is taken back.
pub async fn store_fork(
    store: &dyn Store,
    header: &Arc<SessionHeader>,
    seed: &ForkSeed,
) -> Result<Arc<dyn SessionWriter>, StoreError> {
    let writer = store.create(header, seed.inherited).await?;
    let events: Vec<_> = seed.log.iter().cloned().collect();
    let stored = match writer.append(EventBatch::encode(&events)).await {
        Ok(()) => writer.flush().await,
        Err(error) => Err(error),
    };
    match stored {
        Ok(()) => Ok(writer),
        Err(error) => {
            take_back(store, &header.id, &*writer).await;
            Err(error)
        }
    }
}

/// Gives a new session's claim back and removes what is stored of it, as far as the store lets us.
pub async fn take_back(store: &dyn Store, id: &SessionId, writer: &dyn SessionWriter) {
    if let Err(error) = writer.close().await {
        tracing::debug!(session = %id, %error, "a fork that is taken back");
    }
    match store.delete(id).await {
        Ok(()) | Err(StoreError::NotFound { .. }) => {}
        Err(error) => tracing::warn!(session = %id, %error, "a fork that failed is still stored"),
    }
}
