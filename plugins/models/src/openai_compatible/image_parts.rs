//! Images on the wire: inline, each after words that name it.
//!
//! A tool message holds only text, and all tool messages of an answer must follow it at once. So a
//! tool message names its images, and the images of consecutive tool messages follow the last of
//! them in one user message. Which message is the last never changes once a request was sent: an
//! answer's results are complete before the next request.

use base64::{Engine, prelude::BASE64_STANDARD};
use playhouse_messages::{
    chunk::Failure,
    content::ContentBlock,
    message::{Message, SharedMessage},
};
use playhouse_plugin_api::llm::{LoadedImages, image_handle, offloaded_image};
use serde_json::Value;

use super::wire::{WireImage, WirePart};

/// What stands before the images of tool messages.
const OF_RESULTS: &str = "The images of the tool results above:";

/// A user's message in the order of its blocks.
pub(super) fn user(message: &Message, images: &LoadedImages) -> Result<Vec<WirePart>, Failure> {
    let mut parts = Vec::with_capacity(2 * message.content.len());
    for block in &message.content {
        match block {
            ContentBlock::Text(text) if !text.is_empty() => {
                parts.push(WirePart::Text { text: text.clone() });
            }
            ContentBlock::Image { attachment, offloaded: true } => {
                name(&mut parts, offloaded_image(attachment));
            }
            ContentBlock::Image { attachment, offloaded: false } => {
                show(&mut parts, message, attachment, images)?;
            }
            _ => {}
        }
    }
    Ok(parts)
}

/// The images of consecutive tool messages.
pub(super) fn of_results(
    results: &[SharedMessage],
    images: &LoadedImages,
) -> Result<Vec<WirePart>, Failure> {
    let mut parts = vec![WirePart::Text { text: OF_RESULTS.to_owned() }];
    for message in results {
        for record in message.content.iter().filter_map(ContentBlock::shown_image) {
            show(&mut parts, message, record, images)?;
        }
    }
    Ok(parts)
}

fn show(
    parts: &mut Vec<WirePart>,
    message: &Message,
    record: &Value,
    images: &LoadedImages,
) -> Result<(), Failure> {
    let bytes = images.of(&message.id, record)?;
    let media_type = record.get("mediaType").and_then(Value::as_str).ok_or_else(|| {
        let text = format!("an image of message \"{}\" does not say its media type", message.id);
        Failure::new("UNSUPPORTED_CONTENT", text)
    })?;
    name(parts, image_handle(record));
    let url = format!("data:{media_type};base64,{}", BASE64_STANDARD.encode(bytes));
    parts.push(WirePart::ImageUrl { image_url: WireImage { url } });
    Ok(())
}

/// Adds words of ours, on a line of their own.
fn name(parts: &mut Vec<WirePart>, words: String) {
    let text = if parts.is_empty() { words } else { format!("\n{words}") };
    parts.push(WirePart::Text { text });
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use playhouse_messages::message::Role;
    use serde_json::json;

    use super::*;
    use crate::openai_compatible::{Config, KeySource, encode};

    fn image(id: &str, offloaded: bool) -> ContentBlock {
        let attachment =
            json!({"attachmentId": id, "mediaType": "image/png", "width": 640, "height": 480});
        ContentBlock::Image { attachment, offloaded }
    }

    fn loaded() -> LoadedImages {
        let mut images = LoadedImages::new();
        images.insert("sha256:a", Bytes::from_static(b"abc"));
        images.insert("sha256:b", Bytes::from_static(b"xyz!"));
        images
    }

    fn encoded(message: &Message) -> Result<Value, Failure> {
        let dialect = Config::new("p", "http://x", KeySource::None).dialect;
        let bytes = encode::message(&dialect, message, &loaded())?;
        Ok(serde_json::from_slice(&bytes).unwrap())
    }

    fn user(content: Vec<ContentBlock>) -> Message {
        Message { content, ..Message::user("u", "") }
    }

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    fn url(url: &str) -> Value {
        json!({"type": "image_url", "image_url": {"url": url}})
    }

    #[test]
    fn a_user_message_with_images_is_parts_in_block_order() {
        let look = ContentBlock::text("look");
        let both = user(vec![look, image("sha256:a", false), image("sha256:b", true)]);
        let wire = encoded(&both).unwrap();
        let offloaded = format!("\n{}", offloaded_image(&json!({"attachmentId": "sha256:b"})));
        let expected = json!({"role": "user", "content": [
            text("look"),
            text("\n[Image sha256:a, 640x480 px]"),
            url("data:image/png;base64,YWJj"),
            text(&offloaded),
        ]});
        assert_eq!(wire, expected);
        let wire = encoded(&user(vec![ContentBlock::text(""), image("sha256:b", false)])).unwrap();
        let first = [text("[Image sha256:b, 640x480 px]"), url("data:image/png;base64,eHl6IQ==")];
        assert_eq!(wire["content"], json!(first));
    }

    #[test]
    fn an_offloaded_image_alone_leaves_a_text() {
        let wire =
            encoded(&user(vec![ContentBlock::text("see"), image("sha256:a", true)])).unwrap();
        let words = offloaded_image(&json!({"attachmentId": "sha256:a"}));
        assert_eq!(wire["content"], format!("see\n{words}"));
        assert!(words.contains("oldest") && words.contains("see it again"), "{words}");
    }

    #[test]
    fn tool_messages_name_their_images_and_one_user_message_shows_them() {
        let tool = |id: &str, content| Message::tool(id, &id.into(), false, content);
        let first = tool("c1", vec![ContentBlock::text("done"), image("sha256:a", false)]);
        let second = tool("c2", vec![image("sha256:b", false)]);
        let wire = encoded(&first).unwrap();
        assert_eq!(wire["content"], "done\n[Image sha256:a, 640x480 px]");
        assert_eq!(encoded(&second).unwrap()["content"], "[Image sha256:b, 640x480 px]");
        let bytes = encode::result_images(&[first.into(), second.into()], &loaded()).unwrap();
        let wire: Value = serde_json::from_slice(&bytes).unwrap();
        let expected = json!({"role": "user", "content": [
            text(OF_RESULTS),
            text("\n[Image sha256:a, 640x480 px]"),
            url("data:image/png;base64,YWJj"),
            text("\n[Image sha256:b, 640x480 px]"),
            url("data:image/png;base64,eHl6IQ=="),
        ]});
        assert_eq!(wire, expected);
    }

    #[test]
    fn what_cannot_be_shown_is_refused() {
        for role in [Role::System, Role::Assistant] {
            let message = Message { role, ..user(vec![image("sha256:a", false)]) };
            assert_eq!(encoded(&message).unwrap_err().code, "UNSUPPORTED_CONTENT");
        }
        let failure = encoded(&user(vec![image("sha256:c", false)])).unwrap_err();
        assert_eq!(failure.code, "MISSING_ATTACHMENT");
        assert!(failure.message.contains("\"sha256:c\"") && failure.message.contains("\"u\""));
        let bare = ContentBlock::Image {
            attachment: json!({"attachmentId": "sha256:a"}),
            offloaded: false,
        };
        assert_eq!(encoded(&user(vec![bare])).unwrap_err().code, "UNSUPPORTED_CONTENT");
    }
}
