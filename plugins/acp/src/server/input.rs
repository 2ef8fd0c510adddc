//! What a client's prompt is to an agent.

use agent_client_protocol::v1::schema as acp;
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use playhouse_messages::{chunk::Failure, content::ContentBlock};
use playhouse_plugin_api::attachment::{AttachmentStore, IMAGE_BYTES_MAX, inspect};

/// A part of a prompt, checked.
#[derive(Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    Image(Bytes),
}

/// Checks a whole prompt. Texts and links that stand side by side become one text.
pub(super) fn parts(blocks: Vec<acp::ContentBlock>, images: bool) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for block in blocks {
        match block {
            acp::ContentBlock::Text(text) => push_text(&mut parts, &text.text),
            acp::ContentBlock::ResourceLink(link) => push_text(&mut parts, &reference(&link)),
            acp::ContentBlock::Image(_) if !images => {
                return Err("the model of this session takes no images; leave them out".to_owned());
            }
            acp::ContentBlock::Image(image) => parts.push(Part::Image(decoded(&image)?)),
            acp::ContentBlock::Audio(_) => return Err("audio is not taken".to_owned()),
            acp::ContentBlock::Resource(_) => {
                return Err("embedded resources are not taken; send a link".to_owned());
            }
            _ => return Err("a block of an unknown type is not taken".to_owned()),
        }
    }
    let is_blank = |part: &Part| matches!(part, Part::Text(text) if text.trim().is_empty());
    if parts.iter().all(is_blank) {
        return Err("the prompt is empty; say what to do".to_owned());
    }
    parts.retain(|part| !is_blank(part));
    Ok(parts)
}

fn push_text(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        Some(Part::Text(last)) => last.push_str(text),
        _ => parts.push(Part::Text(text.to_owned())),
    }
}

fn reference(link: &acp::ResourceLink) -> String {
    format!("[resource {}: {}]", link.title.as_ref().unwrap_or(&link.name), link.uri)
}

fn decoded(image: &acp::ImageContent) -> Result<Bytes, String> {
    let bytes = BASE64_STANDARD.decode(&image.data);
    let bytes = bytes.map_err(|fault| format!("an image's data is not base64: {fault}"))?;
    let found = inspect(&bytes, None, IMAGE_BYTES_MAX).map_err(|fault| fault.to_string())?;
    if found.media_type != image.mime_type {
        return Err(format!(
            "an image is said to be {}, but its bytes are {}; correct its mimeType",
            image.mime_type, found.media_type
        ));
    }
    Ok(bytes.into())
}

/// Stores the images, all of which were found good before.
pub(super) async fn content(
    parts: Vec<Part>,
    store: &dyn AttachmentStore,
) -> Result<Vec<ContentBlock>, Failure> {
    let mut content = Vec::with_capacity(parts.len());
    for part in parts {
        content.push(match part {
            Part::Text(text) => ContentBlock::Text(text),
            Part::Image(bytes) => ContentBlock::image(&store.put(bytes, None).await?),
        });
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use playhouse_plugin_api::attachment::MemoryAttachments;

    use super::*;

    const GIF: &[u8] = b"GIF89a\x03\0\x02\0\0\0\0;";

    fn gif(mime_type: &str) -> acp::ContentBlock {
        let data = BASE64_STANDARD.encode(GIF);
        acp::ContentBlock::Image(acp::ImageContent::new(data, mime_type))
    }

    #[tokio::test]
    async fn texts_and_links_are_joined_and_images_are_stored() {
        let link = acp::ContentBlock::ResourceLink(acp::ResourceLink::new("a.rs", "file:///a.rs"));
        let blocks = vec!["Read ".into(), link, " and".into(), gif("image/gif"), "?".into()];
        let parts = parts(blocks, true).unwrap();
        assert_eq!(parts[0], Part::Text("Read [resource a.rs: file:///a.rs] and".into()));
        assert_eq!(parts[1..], [Part::Image(GIF.into()), Part::Text("?".into())]);
        let content = content(parts, &MemoryAttachments::new()).await.unwrap();
        let kinds: Vec<_> = content.iter().map(ContentBlock::kind).collect();
        assert_eq!(kinds, ["text", "image", "text"]);
    }

    #[test]
    fn what_is_not_taken_refuses_the_whole_prompt() {
        let audio = acp::ContentBlock::Audio(acp::AudioContent::new("", "audio/wav"));
        let broken = acp::ContentBlock::Image(acp::ImageContent::new("R0l", "image/gif"));
        let embedded = acp::EmbeddedResourceResource::TextResourceContents(
            acp::TextResourceContents::new("text", "file:///a"),
        );
        let embedded = acp::ContentBlock::Resource(acp::EmbeddedResource::new(embedded));
        for (blocks, images, hint) in [
            (vec![], true, "empty"),
            (vec![" ".into(), "\n".into()], true, "empty"),
            (vec!["a".into(), audio], true, "audio"),
            (vec!["a".into(), embedded], true, "embedded"),
            (vec!["a".into(), gif("image/gif")], false, "no images"),
            (vec!["a".into(), gif("image/png")], true, "image/gif"),
            (vec!["a".into(), broken], true, "base64"),
        ] {
            let refused = parts(blocks, images).unwrap_err();
            assert!(refused.contains(hint), "{refused}");
        }
    }
}
