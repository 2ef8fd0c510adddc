//! What one route gets to see of a message.

use std::sync::Arc;

use playhouse_messages::{
    content::ContentBlock,
    message::{Message, SharedMessage},
};
use serde_json::Value;

/// Whether images must be replaced for a model of these modalities. Unknown modalities leave the
/// decision to the adapter.
pub(super) fn hides_images(modalities: Option<&[String]>) -> bool {
    modalities.is_some_and(|modalities| !modalities.iter().any(|modality| modality == "image"))
}

/// The message without what the route cannot use: images under a text-only model, and replay state
/// of another adapter instance. The same pointer if nothing is left out.
pub(super) fn project(
    message: &SharedMessage,
    hide_images: bool,
    strip_replay_state: bool,
) -> SharedMessage {
    let image = |block: &ContentBlock| matches!(block, ContentBlock::Image { .. });
    let hide = hide_images && message.content.iter().any(image);
    let strip = strip_replay_state && message.source.field("replayState").is_some();
    if !hide && !strip {
        return message.clone();
    }
    let mut projected = Message::clone(message);
    if hide {
        for block in &mut projected.content {
            if let ContentBlock::Image { attachment, .. } = block {
                *block = ContentBlock::text(omitted(attachment));
            }
        }
    }
    if strip {
        let source = &message.source;
        projected.source = playhouse_messages::message::Source::model(
            source.get("provider").unwrap_or_default(),
            source.get("model").unwrap_or_default(),
            None,
        );
    }
    Arc::new(projected)
}

fn omitted(attachment: &Value) -> String {
    let id = attachment.get("attachmentId").and_then(Value::as_str).unwrap_or_default();
    let digits: String = id.trim_start_matches("sha256:").chars().take(8).collect();
    format!("[Image {digits} omitted: this model takes text only.]")
}
