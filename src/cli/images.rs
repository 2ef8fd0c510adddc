//! Images that a prompt shows: read before anything is opened, and stored before it is sent.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use bytes::Bytes;
use playhouse_messages::{chunk::Failure, content::ContentBlock};
use playhouse_plugin_api::{
    agent::Prompt,
    attachment::{AttachmentStore, IMAGE_BYTES_MAX, inspect},
};

use super::exit::CliError;

/// An image from a file.
#[derive(Debug)]
pub(super) struct Image {
    bytes: Bytes,
    name: Option<String>,
}

impl Image {
    /// Reads and checks a file.
    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let refused =
            |cause: String| CliError::Usage(format!("--image {}: {cause}", path.display()));
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            // One more than fits, to tell that it does not.
            File::open(path)?.take(IMAGE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|cause| refused(format!("{cause}; name an existing file")))?;
        let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        inspect(&bytes, name.clone(), IMAGE_BYTES_MAX)
            .map_err(|fault| refused(fault.to_string()))?;
        Ok(Self { bytes: bytes.into(), name })
    }
}

/// A text and the images that it is about.
pub(super) async fn prompt(
    text: String,
    images: Vec<Image>,
    store: &dyn AttachmentStore,
) -> Result<Prompt, CliError> {
    if images.is_empty() {
        return Ok(text.into());
    }
    let mut content = vec![ContentBlock::text(text)];
    for Image { bytes, name } in images {
        let stored = store.put(bytes, name).await;
        content.push(ContentBlock::image(&stored.map_err(Failure::from)?));
    }
    Ok(content.into())
}
