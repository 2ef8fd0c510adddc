//! Images that a client sends: stored, and named by their attachment from then on.

use base64::{Engine, prelude::BASE64_STANDARD};
use playhouse_messages::{attachment::Attachment, chunk::Failure, content::ContentBlock};
use playhouse_plugin_api::attachment::AttachmentStore;
use serde::Deserialize;
use serde_json::Value;

use super::wire::RpcError;

/// An image as a client sends it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct InlineImage {
    /// Base64.
    data: String,
    media_type: Option<String>,
    name: Option<String>,
}

impl InlineImage {
    /// Stores the image; what it is, its bytes say.
    pub(super) async fn put(self, store: &dyn AttachmentStore) -> Result<Attachment, RpcError> {
        let bytes = BASE64_STANDARD
            .decode(&self.data)
            .map_err(|fault| RpcError::invalid_params(format!("`data` is not base64: {fault}")))?;
        let attachment = store.put(bytes.into(), self.name).await.map_err(Failure::from)?;
        match self.media_type.filter(|said| *said != attachment.media_type) {
            None => Ok(attachment),
            Some(said) => Err(RpcError::invalid_params(format!(
                "`mediaType` says {said}, but the bytes are {}; correct it or leave it out",
                attachment.media_type
            ))),
        }
    }
}

/// A message's blocks. Images whose bytes are in them are stored first, which is the only wait here.
pub(super) async fn blocks(
    store: &dyn AttachmentStore,
    blocks: Vec<Value>,
) -> Result<Vec<ContentBlock>, RpcError> {
    let invalid =
        |fault: serde_json::Error| RpcError::invalid_params(format!("`content`: {fault}"));
    let mut content = Vec::with_capacity(blocks.len());
    for mut block in blocks {
        let inline = block["type"] == "image" && block.get("data").is_some();
        content.push(match block.as_object_mut().filter(|_| inline) {
            Some(fields) => {
                fields.remove("type");
                let image: InlineImage = serde_json::from_value(block).map_err(invalid)?;
                ContentBlock::image(&image.put(store).await?)
            }
            None => serde_json::from_value(block).map_err(invalid)?,
        });
    }
    let nameless = |block: &ContentBlock| {
        block.shown_image().is_some_and(|record| Attachment::read(record).is_none())
    };
    if content.iter().any(nameless) {
        let text = "an image needs `data` (base64), or the `attachment` that attachment/put gave";
        return Err(RpcError::invalid_params(text));
    }
    Ok(content)
}
