//! Messages: immutable, identified, attributed.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    content::ContentBlock,
    id::{CallId, MessageId},
};

/// Who speaks, as the model sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The system prompt.
    System,
    /// Changes to the tool set.
    Developer,
    /// People, and context on their side of the conversation.
    User,
    /// The model.
    Assistant,
    /// The answer to a tool call.
    Tool,
}

/// Which producer wrote a message: an open record with a `kind`.
///
/// A source attributes; it never grants authority.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Source(Map<String, Value>);

/// A notice summary longer than this many characters is cut, and ends in an ellipsis.
pub const SUMMARY_CHARS_MAX: usize = 120;

impl Source {
    /// A source of this kind without further fields.
    pub fn of_kind(kind: &str) -> Self {
        Self(Map::from_iter([("kind".to_owned(), Value::from(kind))]))
    }

    /// A human.
    pub fn user() -> Self {
        Self::of_kind("user")
    }

    /// The rendered system prompt.
    pub fn system_prompt() -> Self {
        Self::of_kind("system-prompt")
    }

    /// The tool registry, for developer messages.
    pub fn tool_registry() -> Self {
        Self::of_kind("tool-registry")
    }

    /// A model's answer.
    pub fn model(provider: &str, model: &str, replay_state: Option<&Value>) -> Self {
        let mut source = Self::of_kind("model").with("provider", provider).with("model", model);
        if let Some(state) = replay_state {
            source = source.with("replayState", state.clone());
        }
        source
    }

    /// A tool's answer.
    pub fn tool(call: &CallId) -> Self {
        Self::of_kind("tool").with("callId", call.as_str())
    }

    /// A one-off account from a producer; `summary` is cut to [`SUMMARY_CHARS_MAX`] characters.
    pub fn notice(kind: &str, summary: &str) -> Self {
        let summary = if summary.chars().count() > SUMMARY_CHARS_MAX {
            let cut: String = summary.chars().take(SUMMARY_CHARS_MAX - 1).collect();
            format!("{cut}…")
        } else {
            summary.to_owned()
        };
        Self::of_kind(kind).with("form", "notice").with("summary", summary)
    }

    /// A prompt that a parent agent delegates: human-only gestures must not accept it.
    pub fn delegation(sender: &str) -> Self {
        Self::of_kind("delegation").with("senderSessionId", sender)
    }

    /// The same source with one more field.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// The producer's kind; empty if the record has none (which validation refuses).
    pub fn kind(&self) -> &str {
        self.get("kind").unwrap_or_default()
    }

    /// A string field.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(Value::as_str)
    }

    /// All fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Any field.
    pub fn field(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", json!(self.0))
    }
}

/// One message of a conversation. Immutable once logged, and shared behind an [`Arc`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// Stable from inbox to log to wire.
    pub id: MessageId,
    /// Who speaks.
    pub role: Role,
    /// The call that a tool message answers; equal to its source's `callId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<CallId>,
    /// Whether a tool message reports a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
    /// The blocks, in order.
    pub content: Vec<ContentBlock>,
    /// Who produced it.
    pub source: Source,
}

impl Message {
    /// A user-role message of one text block from a human.
    pub fn user(id: impl Into<MessageId>, text: impl Into<String>) -> Self {
        Self::user_from(id, vec![ContentBlock::text(text)], Source::user())
    }

    /// A user-role message.
    pub fn user_from(id: impl Into<MessageId>, content: Vec<ContentBlock>, source: Source) -> Self {
        Self {
            id: id.into(),
            role: Role::User,
            tool_call_id: None,
            is_error: None,
            content,
            source,
        }
    }

    /// A system message; an empty text gives empty content, which reserves the slot.
    pub fn system(id: impl Into<MessageId>, text: &str) -> Self {
        let content = if text.is_empty() { Vec::new() } else { vec![ContentBlock::text(text)] };
        Self {
            id: id.into(),
            role: Role::System,
            tool_call_id: None,
            is_error: None,
            content,
            source: Source::system_prompt(),
        }
    }

    /// A tool message.
    pub fn tool(
        id: impl Into<MessageId>,
        call: &CallId,
        is_error: bool,
        content: Vec<ContentBlock>,
    ) -> Self {
        Self {
            id: id.into(),
            role: Role::Tool,
            tool_call_id: Some(call.clone()),
            is_error: Some(is_error),
            content,
            source: Source::tool(call),
        }
    }

    /// The tool calls in the content, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &crate::content::ToolCallBlock> {
        self.content.iter().filter_map(|block| match block {
            ContentBlock::ToolCall(call) => Some(call),
            _ => None,
        })
    }

    /// All text blocks joined.
    pub fn text(&self) -> String {
        crate::content::joined_text(&self.content)
    }
}

/// A message behind the pointer that log, history and requests share.
pub type SharedMessage = Arc<Message>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back_as_written() {
        for text in [
            r#"{"id":"m","role":"user","content":[{"type":"text","text":"x"}],"source":{"kind":"user"}}"#,
            r#"{"id":"r","role":"tool","toolCallId":"c","isError":false,"content":[],"source":{"kind":"tool","callId":"c"}}"#,
            r#"{"id":"s","role":"system","content":[],"source":{"kind":"system-prompt"}}"#,
            r#"{"id":"a","role":"assistant","content":[],"source":{"kind":"model","provider":"p","model":"m","replayState":{"response":1}}}"#,
        ] {
            let message: Message = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&message).unwrap(), text);
        }
    }

    #[test]
    fn a_long_summary_is_cut_to_119_characters_and_an_ellipsis() {
        let source = Source::notice("x", &"ä".repeat(121));
        let summary = source.get("summary").unwrap();
        assert_eq!(summary.chars().count(), SUMMARY_CHARS_MAX);
        assert!(summary.ends_with('…'));
        assert_eq!(Source::notice("x", "short").get("summary"), Some("short"));
    }
}
