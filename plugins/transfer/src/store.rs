//! Imported sessions into a store.

use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::{
    attachment::{AttachmentError, AttachmentStore},
    store::{EventBatch, SessionWriter, Store, StoreError, StoredTail},
};

use crate::{
    error::TransferError,
    import::{Imported, ImportedAttachment},
    report::Report,
};

/// What was stored of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// The session.
    pub id: SessionId,
    /// How many events.
    pub events: u64,
    /// How many images.
    pub attachments: u64,
    /// How many images were left out, since there is no store for them.
    pub left_out: u64,
    /// What the import met and did.
    pub report: Report,
}

/// Stores an imported session under its id, all of it or nothing: its events are one append, and a
/// failure takes back what was written. **Durable** when this returns. A crash, or dropping the future,
/// may leave the session without its tail, or images that nothing names.
///
/// # Errors
///
/// [`StoreError::AlreadyExists`] if the id is taken, and whatever either store says.
pub async fn store(
    store: &dyn Store,
    attachments: Option<&dyn AttachmentStore>,
    imported: Imported,
) -> Result<Stored, TransferError> {
    let Imported { header, inherited_event_count, events, tail, attachments: images, report } =
        imported;
    let id = header.id.clone();
    let mut stored =
        Stored { id: id.clone(), events: events.len() as u64, attachments: 0, left_out: 0, report };
    // First, so that no image is written for a session that is refused.
    let writer = store.create(&header, inherited_event_count).await?;
    let kept = keep(attachments, images, &mut stored).await;
    let written = match kept {
        Ok(()) => write(&*writer, events, tail).await.map_err(TransferError::from),
        Err(error) => Err(error),
    };
    let closed = writer.close().await;
    if let Err(error) = written.and(closed.map_err(TransferError::from)) {
        match store.delete(&id).await {
            // Nothing had been written.
            Ok(()) | Err(StoreError::NotFound { .. }) => return Err(error),
            Err(left) => return Err(left.into()),
        }
    }
    Ok(stored)
}

async fn write(
    writer: &dyn SessionWriter,
    events: Vec<Bytes>,
    tail: Option<StoredTail>,
) -> Result<(), StoreError> {
    writer.append(EventBatch { first_seq: 0, events }).await?;
    if let Some(tail) = tail {
        for part in tail.parts {
            writer.tail(tail.attempt, part).await?;
        }
    }
    writer.flush().await
}

async fn keep(
    store: Option<&dyn AttachmentStore>,
    images: Vec<ImportedAttachment>,
    stored: &mut Stored,
) -> Result<(), TransferError> {
    let Some(store) = store else {
        stored.left_out = images.len() as u64;
        return Ok(());
    };
    for ImportedAttachment { id, bytes } in images {
        let kept = store.put(bytes, None).await?;
        if kept.attachment_id != id {
            let place = store.describe();
            return Err(AttachmentError::Corrupt { id, place }.into());
        }
        stored.attachments += 1;
    }
    Ok(())
}

impl Imported {
    /// The same session under another id.
    #[must_use]
    pub fn renamed(mut self, id: SessionId) -> Self {
        Arc::make_mut(&mut self.header).id = id;
        self
    }
}
