//! Content blocks: what a message is made of.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::SerializeMap};
use serde_json::{Map, Value};

use crate::{attachment::Attachment, id::CallId};

/// One block of a message's content.
///
/// The set is open: a block of an unknown `type` is kept as [`ContentBlock::Other`] and written back
/// as it was read.
#[derive(Debug, Clone, PartialEq)]
pub enum ContentBlock {
    /// Text for people and models.
    Text(String),
    /// The model's reasoning, replayed to the provider on later turns.
    Reasoning(String),
    /// An image by reference.
    Image {
        /// The attachment record, opaque here.
        attachment: Value,
        /// The image was dropped from requests, and its reference kept.
        offloaded: bool,
    },
    /// A file by reference.
    File {
        /// The attachment record, opaque here.
        attachment: Value,
    },
    /// The model asks for a tool.
    ToolCall(ToolCallBlock),
    /// A tool became available (developer messages only).
    ToolAddition {
        /// The tool's name; its definition stands in the header that the event names.
        tool_name: String,
    },
    /// A tool is gone (developer messages only).
    ToolRemoval {
        /// The tool's name.
        tool_name: String,
    },
    /// A block of a kind that this build does not know, whole.
    Other(Map<String, Value>),
}

/// A tool call as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallBlock {
    /// The provider's id for the call.
    pub id: CallId,
    /// The tool's name.
    pub name: String,
    /// The raw argument text. Nothing parses, repairs or reserialises it: byte-exactness matters
    /// for prefix caching and for replay.
    pub arguments: String,
}

impl ContentBlock {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// An image that was stored.
    pub fn image(attachment: &Attachment) -> Self {
        Self::Image { attachment: attachment.into(), offloaded: false }
    }

    /// The attachment record of an image that requests carry.
    pub fn shown_image(&self) -> Option<&Value> {
        match self {
            Self::Image { attachment, offloaded: false } => Some(attachment),
            _ => None,
        }
    }

    /// The block's text, if it is a text block.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The `type` tag on the wire.
    pub fn kind(&self) -> &str {
        match self {
            Self::Text(_) => "text",
            Self::Reasoning(_) => "reasoning",
            Self::Image { .. } => "image",
            Self::File { .. } => "file",
            Self::ToolCall(_) => "tool-call",
            Self::ToolAddition { .. } => "tool-addition",
            Self::ToolRemoval { .. } => "tool-removal",
            Self::Other(fields) => fields.get("type").and_then(Value::as_str).unwrap_or_default(),
        }
    }
}

/// All text blocks of `content`, joined without a separator.
pub fn joined_text(content: &[ContentBlock]) -> String {
    content.iter().filter_map(ContentBlock::as_text).collect()
}

impl Serialize for ContentBlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Self::Other(fields) = self {
            return fields.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", self.kind())?;
        match self {
            Self::Text(text) | Self::Reasoning(text) => map.serialize_entry("text", text)?,
            Self::Image { attachment, offloaded } => {
                map.serialize_entry("attachment", attachment)?;
                if *offloaded {
                    map.serialize_entry("offloaded", &true)?;
                }
            }
            Self::File { attachment } => map.serialize_entry("attachment", attachment)?,
            Self::ToolCall(call) => {
                map.serialize_entry("id", &call.id)?;
                map.serialize_entry("name", &call.name)?;
                map.serialize_entry("arguments", &call.arguments)?;
            }
            Self::ToolAddition { tool_name } | Self::ToolRemoval { tool_name } => {
                map.serialize_entry("toolName", tool_name)?;
            }
            Self::Other(_) => {}
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for ContentBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(deserializer)?;
        let kind = match fields.get("type") {
            Some(Value::String(kind)) => kind.clone(),
            _ => return Err(D::Error::custom("content block without a string `type`")),
        };
        let len = fields.len();
        let mut text = |key: &str| match fields.get_mut(key).map(Value::take) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(D::Error::custom(format!("`{kind}` block needs a string `{key}`"))),
        };
        Ok(match kind.as_str() {
            "text" => Self::Text(text("text")?),
            "reasoning" => Self::Reasoning(text("text")?),
            "tool-call" => Self::ToolCall(ToolCallBlock {
                id: text("id")?.into(),
                name: text("name")?,
                arguments: text("arguments")?,
            }),
            // An addition that carries more than a name (an inline `tool`) is kept whole, so that
            // validation can refuse it.
            "tool-addition" if len == 2 => Self::ToolAddition { tool_name: text("toolName")? },
            "tool-removal" if len == 2 => Self::ToolRemoval { tool_name: text("toolName")? },
            "image" => Self::Image {
                attachment: fields.remove("attachment").unwrap_or_default(),
                offloaded: fields.get("offloaded") == Some(&Value::Bool(true)),
            },
            "file" => Self::File { attachment: fields.remove("attachment").unwrap_or_default() },
            _ => Self::Other(fields),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_reads_back_as_written() {
        for block in [
            json!({"type": "text", "text": "hi"}),
            json!({"type": "reasoning", "text": "hm"}),
            json!({"type": "image", "attachment": {"attachmentId": "sha256:00"}}),
            json!({"type": "image", "attachment": {"attachmentId": "a"}, "offloaded": true}),
            json!({"type": "file", "attachment": {"attachmentId": "a"}}),
            json!({"type": "tool-call", "id": "c", "name": "n", "arguments": "{\"p\":\"/a"}),
            json!({"type": "tool-addition", "toolName": "x"}),
            json!({"type": "tool-removal", "toolName": "x"}),
            json!({"type": "tool-addition", "toolName": "x", "tool": {}}),
            json!({"type": "hologram", "depth": 3}),
        ] {
            let text = block.to_string();
            let parsed: ContentBlock = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&parsed).unwrap(), text);
        }
    }

    #[test]
    fn a_block_without_a_type_is_refused() {
        assert!(serde_json::from_str::<ContentBlock>(r#"{"text":"x"}"#).is_err());
    }
}
