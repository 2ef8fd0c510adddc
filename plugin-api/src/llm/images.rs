//! The bytes of a message's images.

use std::collections::HashMap;

use bytes::Bytes;

/// Images that were read before a message is encoded, by attachment id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadedImages(HashMap<String, Bytes>);

impl LoadedImages {
    /// No images.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an image.
    pub fn insert(&mut self, attachment_id: impl Into<String>, bytes: Bytes) {
        self.0.insert(attachment_id.into(), bytes);
    }

    /// The bytes of an image.
    pub fn get(&self, attachment_id: &str) -> Option<&Bytes> {
        self.0.get(attachment_id)
    }
}
