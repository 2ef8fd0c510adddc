//! The bytes of a message's images, and what wires say of them.

use std::collections::HashMap;

use bytes::Bytes;
use playhouse_messages::{attachment::AttachmentId, chunk::Failure, id::MessageId};
use serde_json::Value;

use crate::attachment::AttachmentStore;

/// Images that were read before a message is encoded, by attachment id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadedImages(HashMap<String, Bytes>);

impl LoadedImages {
    /// No images.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the images of these messages, each once. Safe to drop.
    ///
    /// # Errors
    ///
    /// `MISSING_ATTACHMENT`, naming image and message, or what the store reports.
    pub async fn load(
        store: &dyn AttachmentStore,
        images: impl IntoIterator<Item = (&MessageId, &Value)>,
    ) -> Result<Self, Failure> {
        let mut loaded = Self::new();
        for (message, record) in images {
            let id = id_of(record);
            if loaded.get(id).is_some() {
                continue;
            }
            let found = match AttachmentId::try_from(id.to_owned()) {
                Ok(id) => store.get(&id).await?,
                Err(_) => None,
            };
            let bytes = found.ok_or_else(|| missing(id, message))?;
            loaded.insert(id, bytes);
        }
        Ok(loaded)
    }

    /// Adds an image.
    pub fn insert(&mut self, attachment_id: impl Into<String>, bytes: Bytes) {
        self.0.insert(attachment_id.into(), bytes);
    }

    /// The bytes of an image.
    pub fn get(&self, attachment_id: &str) -> Option<&Bytes> {
        self.0.get(attachment_id)
    }

    /// The bytes of an image that a message shows.
    ///
    /// # Errors
    ///
    /// `MISSING_ATTACHMENT`, naming image and message.
    pub fn of(&self, message: &MessageId, record: &Value) -> Result<&Bytes, Failure> {
        let id = id_of(record);
        self.get(id).ok_or_else(|| missing(id, message))
    }
}

/// What a wire says before an image, so that the model can name it.
pub fn image_handle(record: &Value) -> String {
    let side = |key: &str| record.get(key).and_then(Value::as_u64);
    match (side("width"), side("height")) {
        (Some(width), Some(height)) => {
            format!("[Image {}, {width}x{height} px]", id_of(record))
        }
        _ => format!("[Image {}]", id_of(record)),
    }
}

/// What a wire says in place of an image that was offloaded.
pub fn offloaded_image(record: &Value) -> String {
    format!(
        "[Image {} is not shown any more: the oldest images go first. To see it again, repeat what \
         showed it, or ask for it.]",
        id_of(record)
    )
}

fn id_of(record: &Value) -> &str {
    record.get("attachmentId").and_then(Value::as_str).unwrap_or_default()
}

fn missing(id: &str, message: &MessageId) -> Failure {
    let text = format!(
        "the attachment store has no image \"{id}\", which message \"{message}\" shows; put its \
         bytes there again, or offload the image from the message"
    );
    Failure::new("MISSING_ATTACHMENT", text)
}
