//! The wires that the server speaks.

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use playhouse_messages::chunk::{Failure, StreamChunk};
use serde_json::{Value, json};

use super::{chat_history, chat_wire, messages_history, messages_wire};
use crate::scripted::Conversation;

/// A wire, told by the path of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    ChatCompletions,
    Messages,
}

/// From chunks to events as they stand in a body.
pub(super) trait Encoder: Send {
    /// The events of a chunk.
    fn chunk(&mut self, chunk: &StreamChunk) -> Vec<String>;

    /// The event that stands for a failure.
    fn error(&self, failure: &Failure) -> String;

    /// The event that ends a body.
    fn end(&self) -> String;
}

impl Api {
    pub(super) fn of(path: &str) -> Option<Self> {
        if path.ends_with("/chat/completions") {
            Some(Self::ChatCompletions)
        } else if path.ends_with("/v1/messages") {
            Some(Self::Messages)
        } else {
            None
        }
    }

    /// Whether a request carries the key.
    pub(super) fn admits(self, headers: &HeaderMap, key: &str) -> bool {
        let given = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
        match self {
            Self::ChatCompletions => {
                given(AUTHORIZATION.as_str()) == Some(format!("Bearer {key}").as_bytes())
            }
            Self::Messages => given("x-api-key") == Some(key.as_bytes()),
        }
    }

    /// The conversation in a request, or what a provider would say against it.
    pub(super) fn read(self, headers: &HeaderMap, body: &Value) -> Result<Conversation, String> {
        match self {
            Self::ChatCompletions => {
                chat_history::read(body, headers.contains_key("x-playhouse-compact"))
            }
            Self::Messages if !headers.contains_key("anthropic-version") => {
                Err("anthropic-version: header is required".into())
            }
            Self::Messages => messages_history::read(body),
        }
    }

    pub(super) fn encoder(self) -> Box<dyn Encoder> {
        match self {
            Self::ChatCompletions => Box::new(chat_wire::ChatEncoder::default()),
            Self::Messages => Box::new(messages_wire::MessagesEncoder::default()),
        }
    }

    /// The body of an error response.
    pub(super) fn refusal(self, failure: &Failure) -> Value {
        match self {
            Self::ChatCompletions => json!({ "error": chat_wire::error_object(failure) }),
            Self::Messages => messages_wire::error_body(failure),
        }
    }

    /// The response header that names a request.
    pub(super) fn request_id(self) -> &'static str {
        match self {
            Self::ChatCompletions => "x-request-id",
            Self::Messages => "request-id",
        }
    }
}

/// The status that goes with a failure.
pub(super) fn status_of(failure: &Failure) -> u16 {
    failure.status.unwrap_or(match failure.code.as_str() {
        "RATE_LIMIT" | "QUOTA" => 429,
        "AUTH" => 401,
        "INVALID_REQUEST" | "CONTEXT_WINDOW_EXCEEDED" | "NO_RULE" => 400,
        _ => 500,
    })
}
