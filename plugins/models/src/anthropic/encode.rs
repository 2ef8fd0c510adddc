//! From messages to the wire's bytes. Pure: the same input gives the same bytes.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use playhouse_messages::{
    chunk::Failure,
    content::{ContentBlock, ToolCallBlock},
    id::CallId,
    message::{Message, Role},
};
use playhouse_plugin_api::llm::LoadedImages;
use serde::Serialize;
use serde_json::{Value, value::RawValue};

use super::{
    replay::{Seal, seal},
    wire::{Block, ImageSource, ToolInput, WireMessage},
};

/// A message's element of `messages`; empty if it has none. The wire joins neighbours of one role.
pub(super) fn message(message: &Message, images: &LoadedImages) -> Result<Bytes, Failure> {
    let (role, content) = match message.role {
        // The system prompt stands in the frame; declarations do too, so changes need no words.
        Role::System | Role::Developer => return Ok(Bytes::new()),
        Role::User => ("user", spoken(message, images, "(empty message)")?),
        Role::Assistant => ("assistant", answered(message)?),
        Role::Tool => ("user", vec![result(message, images)?]),
    };
    if content.is_empty() {
        return Ok(Bytes::new());
    }
    to_bytes(&WireMessage { role, content })
}

/// Text and images; `nothing` if there are none, since the wire refuses messages without content.
fn spoken<'a>(
    message: &'a Message,
    images: &LoadedImages,
    nothing: &'static str,
) -> Result<Vec<Block<'a>>, Failure> {
    let mut blocks = Vec::with_capacity(message.content.len());
    for block in &message.content {
        match block {
            ContentBlock::Text(words) => blocks.extend(text(words)),
            ContentBlock::Image { attachment, offloaded } => {
                blocks.push(image(attachment, *offloaded, images)?);
            }
            _ => {}
        }
    }
    if blocks.is_empty() {
        blocks.push(Block::Text { text: nothing.into() });
    }
    Ok(blocks)
}

/// The wire refuses blank text.
pub(super) fn text(words: &str) -> Option<Block<'_>> {
    (!words.trim().is_empty()).then_some(Block::Text { text: words.into() })
}

fn answered(message: &Message) -> Result<Vec<Block<'_>>, Failure> {
    let mut blocks = Vec::with_capacity(message.content.len());
    for (at, block) in message.content.iter().enumerate() {
        match block {
            ContentBlock::Text(words) => blocks.extend(text(words)),
            // Without its signature thinking is refused.
            ContentBlock::Reasoning(thinking) => {
                blocks.extend(seal(message, at).map(|seal| match seal {
                    Seal::Signature(signature) => Block::Thinking { thinking, signature },
                    Seal::Redacted(data) => Block::RedactedThinking { data },
                }))
            }
            ContentBlock::ToolCall(call) => blocks.push(tool_use(call)),
            ContentBlock::Image { .. } => {
                let message = "assistant messages take no images on this route; remove the image";
                return Err(Failure::new("UNSUPPORTED_CONTENT", message));
            }
            _ => {}
        }
    }
    Ok(blocks)
}

fn tool_use(call: &ToolCallBlock) -> Block<'_> {
    let raw = serde_json::from_str::<&RawValue>(&call.arguments).ok();
    // What is no object would be refused, in every later request.
    let raw = raw.filter(|raw| raw.get().starts_with('{'));
    Block::ToolUse {
        id: wire_name(call.id.as_str()),
        name: wire_name(&call.name),
        input: raw.map_or(ToolInput::Empty {}, ToolInput::Raw),
    }
}

fn result<'a>(message: &'a Message, images: &LoadedImages) -> Result<Block<'a>, Failure> {
    let id = message.tool_call_id.as_ref().map(CallId::as_str).unwrap_or_default();
    Ok(Block::ToolResult {
        tool_use_id: wire_name(id),
        content: spoken(message, images, "(no output)")?,
        is_error: message.is_error == Some(true),
    })
}

/// An id or name as the wire takes it: of letters, digits, `_` and `-`. Any other byte, and then
/// every `_` too, becomes `_` and two digits, so that such ids stay different from each other.
fn wire_name(name: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !name.is_empty() && name.bytes().all(|byte| plain(byte) || byte == b'_') {
        return name.into();
    }
    let mut escaped = String::from("_");
    for byte in name.bytes() {
        if plain(byte) {
            escaped.push(byte.into());
        } else {
            escaped.push_str(&format!("_{byte:02x}"));
        }
    }
    escaped.into()
}

fn image<'a>(
    attachment: &Value,
    offloaded: bool,
    images: &LoadedImages,
) -> Result<Block<'a>, Failure> {
    let id = attachment.get("attachmentId").and_then(Value::as_str).unwrap_or_default();
    if offloaded {
        let text = format!(
            "[Image {id} was dropped from this request: the oldest images go first. Ask for it \
             again if you need it.]"
        );
        return Ok(Block::Text { text: text.into() });
    }
    let unsupported = |reason: &str| {
        Failure::new("UNSUPPORTED_CONTENT", format!("image attachment \"{id}\" {reason}"))
    };
    let bytes = images.get(id).ok_or_else(|| {
        unsupported("was not loaded; attach the image again, or remove it from the message")
    })?;
    let media_type = media_type(bytes).ok_or_else(|| {
        unsupported("is no PNG, JPEG, GIF or WebP, which is all this route takes")
    })?;
    Ok(Block::Image {
        source: ImageSource { r#type: "base64", media_type, data: STANDARD.encode(bytes) },
    })
}

/// From the bytes themselves: the wire compares them with what is declared.
fn media_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xFF, 0xD8, 0xFF, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

pub(super) fn to_bytes(value: &impl Serialize) -> Result<Bytes, Failure> {
    let bytes = serde_json::to_vec(value).map_err(|error| {
        Failure::new("UNSUPPORTED_CONTENT", format!("message does not encode as JSON: {error}"))
    })?;
    Ok(bytes.into())
}

#[cfg(test)]
mod scenario {
    use playhouse_messages::message::Source;
    use serde_json::json;

    use super::*;

    fn encoded(message: &Message) -> String {
        let bytes = super::message(message, &LoadedImages::new()).unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    fn assistant(content: Vec<ContentBlock>, replay: Option<Value>) -> Message {
        let source = Source::model("anthropic", "m", replay.as_ref());
        Message { role: Role::Assistant, content, source, ..Message::user("a", "") }
    }

    fn call(id: &str, arguments: &str) -> ContentBlock {
        let (id, name, arguments) = (id.into(), "read".into(), arguments.into());
        ContentBlock::ToolCall(ToolCallBlock { id, name, arguments })
    }

    fn reasoning(text: &str) -> ContentBlock {
        ContentBlock::Reasoning(text.into())
    }

    #[test]
    fn each_message_is_one_element_and_blank_text_none() {
        let mut user = Message::user("u", "a");
        user.content.extend([ContentBlock::text(" \n"), ContentBlock::text("b")]);
        let both =
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#;
        assert_eq!(encoded(&user), both);
        user.content = vec![ContentBlock::text(" "), ContentBlock::Other(serde_json::Map::new())];
        assert!(encoded(&user).contains("(empty message)"));
        assert_eq!(encoded(&Message::system("s", "x")), "");
        let developer = Message { role: Role::Developer, ..Message::user("d", "x") };
        assert_eq!(encoded(&developer), "");
        for content in [vec![], vec![ContentBlock::text("")], vec![reasoning("unsigned")]] {
            assert_eq!(encoded(&assistant(content, None)), "");
        }
    }

    #[test]
    fn arguments_are_sent_as_they_were_written_or_not_at_all() {
        let input = |arguments: &str| {
            let wire = encoded(&assistant(vec![call("c1", arguments)], None));
            let (_, rest) = wire.split_once(r#""name":"read","input":"#).unwrap();
            rest.strip_suffix("}]}").unwrap().to_owned()
        };
        let raw = "{\"b\": 1e2,  \"a\":\"\\u00e9\",\n\"b\":0.10}";
        assert_eq!(input(raw), raw);
        for broken in ["{\"p\": /broken", "", "[1]", "\"x\"", "null", "{} {}"] {
            assert_eq!(input(broken), "{}", "{broken}");
        }
    }

    #[test]
    fn failure_is_transmitted_and_an_empty_result_says_so() {
        let result = |failed| encoded(&Message::tool("t", &"c1".into(), failed, vec![]));
        let expected = |flag: &str| {
            format!(
                r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c1","content":[{{"type":"text","text":"(no output)"}}]{flag}}}]}}"#
            )
        };
        assert_eq!(result(false), expected(""));
        assert_eq!(result(true), expected(r#","is_error":true"#));
    }

    #[test]
    fn thinking_goes_back_with_its_own_signature_only() {
        let content =
            || vec![reasoning("th"), reasoning(""), reasoning("no"), ContentBlock::text("x")];
        let blocks = json!([{"signature": "s1"}, {"redacted_thinking": "d"}, null, null]);
        let ours = json!({"response": {"kind": "anthropic"}, "blocks": blocks});
        assert_eq!(
            encoded(&assistant(content(), Some(ours))),
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"th","signature":"s1"},{"type":"redacted_thinking","data":"d"},{"type":"text","text":"x"}]}"#
        );
        let bare = r#"{"role":"assistant","content":[{"type":"text","text":"x"}]}"#;
        for state in [
            json!({"response": {"kind": "other"}, "blocks": blocks}),
            json!({"response": {"kind": "anthropic"}, "blocks": [{"signature": "s1"}]}),
            json!({"response": {"kind": "anthropic"}}),
            json!(7),
        ] {
            assert_eq!(encoded(&assistant(content(), Some(state))), bare);
        }
        assert_eq!(encoded(&assistant(content(), None)), bare);
    }

    #[test]
    fn ids_that_the_wire_refuses_are_mapped_alike_for_call_and_result() {
        let seen = |id: &str| {
            let call: Value =
                serde_json::from_str(&encoded(&assistant(vec![call(id, "{}")], None))).unwrap();
            let result = encoded(&Message::tool("t", &id.into(), false, vec![]));
            let result: Value = serde_json::from_str(&result).unwrap();
            let ids = (&call["content"][0]["id"], &result["content"][0]["tool_use_id"]);
            assert_eq!(ids.0, ids.1);
            ids.0.as_str().unwrap().to_owned()
        };
        assert_eq!(seen("toolu_01-Az"), "toolu_01-Az");
        let odd = ["a.b", "a_2eb.", "a:b", "é", "functions.read:0", "", "."].map(seen);
        for (at, id) in odd.iter().enumerate() {
            assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)), "{id}");
            assert!(!id.is_empty() && !odd[..at].contains(id), "{id}");
        }
    }

    #[test]
    fn images_are_sent_by_their_bytes() {
        let image = |offloaded| ContentBlock::Image {
            attachment: json!({"attachmentId": "sha256:00", "mediaType": "image/jpeg"}),
            offloaded,
        };
        let with = |bytes: &'static [u8], offloaded| {
            let mut images = LoadedImages::new();
            images.insert("sha256:00", Bytes::from_static(bytes));
            let message = Message::tool("t", &"c".into(), false, vec![image(offloaded)]);
            super::message(&message, &images)
        };
        let png = String::from_utf8(with(b"\x89PNGx", false).unwrap().to_vec()).unwrap();
        let source = r#""source":{"type":"base64","media_type":"image/png","data":"iVBOR3g="}"#;
        assert!(png.contains(source), "{png}");
        let told = with(b"", true).unwrap();
        assert!(String::from_utf8_lossy(&told).contains("[Image sha256:00 was dropped"));
        let missing = Message::user_from("u", vec![image(false)], Source::user());
        for failure in [
            super::message(&missing, &LoadedImages::new()).unwrap_err(),
            with(b"BM..", false).unwrap_err(),
        ] {
            assert_eq!(failure.code, "UNSUPPORTED_CONTENT");
            assert!(failure.message.contains("sha256:00"), "{failure}");
        }
        let answer = assistant(vec![image(false)], None);
        let failure = super::message(&answer, &LoadedImages::new()).unwrap_err();
        assert_eq!(failure.code, "UNSUPPORTED_CONTENT");
    }

    #[test]
    fn media_types_are_told_by_content() {
        for (bytes, expected) in [
            (&b"\xFF\xD8\xFF\xE0"[..], Some("image/jpeg")),
            (b"GIF89a", Some("image/gif")),
            (b"RIFF\0\0\0\0WEBPVP8 ", Some("image/webp")),
            (b"RIFF\0\0\0\0WAVE", None),
            (b"", None),
        ] {
            assert_eq!(media_type(bytes), expected);
        }
    }
}
