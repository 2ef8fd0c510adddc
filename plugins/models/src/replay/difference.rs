//! What the first difference between a recorded request and a new one is.

use std::{collections::BTreeSet, sync::Arc};

use playhouse_messages::{
    config::{Header, ToolSchema},
    history::History,
    message::{Message, Role},
};
use playhouse_plugin_api::llm::LlmRequest;
use serde_json::{Value, json};

/// How much is shown of what differs, in characters.
const SHOWN: usize = 60;

/// A request as the log tells it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Recorded {
    pub(super) header: Option<Arc<Header>>,
    pub(super) messages: History,
}

/// The first difference, if any.
///
/// Ids, attribution and the route are no part of what is said, developer messages are a matter of the
/// route, and messages whose source is of an `ignored` kind are left aside.
pub(super) fn first(
    recorded: &Recorded,
    request: &LlmRequest,
    ignored: &BTreeSet<String>,
) -> Option<String> {
    let counts = |message: &&Message| {
        message.role != Role::Developer && !ignored.contains(message.source.kind())
    };
    let before = recorded.messages.messages().map(|message| &**message).filter(counts);
    let now = request.messages.iter().map(|message| &**message).filter(counts);
    let messages = list("message", before.map(message), now.map(message));
    let Some(header) = recorded.header.as_deref() else { return messages };
    messages
        .or_else(|| {
            let before = header.tools.iter().map(|tool| schema(tool));
            list("tool", before, request.tools.iter().map(|tool| schema(tool)))
        })
        .or_else(|| {
            let (before, now) = (json!(header.config), json!(request.config));
            let mut fields = ["reasoningEffort", "temperature", "maxTokens", "stop"].into_iter();
            fields.find(|field| before.get(field) != now.get(field)).map(|field| {
                let shown = |config: &Value| config.get(field).unwrap_or(&Value::Null).clone();
                format!("`{field}` was {}, now {}", shown(&before), shown(&now))
            })
        })
}

fn list(
    what: &str,
    mut before: impl Iterator<Item = String>,
    mut now: impl Iterator<Item = String>,
) -> Option<String> {
    let mut number = 1;
    loop {
        match (before.next(), now.next()) {
            (None, None) => return None,
            (Some(before), Some(now)) if before == now => {}
            (Some(before), Some(now)) => {
                let at = before.chars().zip(now.chars()).take_while(|(a, b)| a == b).count();
                let (before, now) = (excerpt(&before, at), excerpt(&now, at));
                return Some(format!("{what} {number} was {before}, now {now}"));
            }
            (Some(gone), None) => {
                return Some(format!("{what} {number} is missing: {}", excerpt(&gone, 0)));
            }
            (None, Some(new)) => {
                return Some(format!("{what} {number} is new: {}", excerpt(&new, 0)));
            }
        }
        number += 1;
    }
}

/// What a message says, as one line of JSON.
fn message(message: &Message) -> String {
    let Message { role, tool_call_id, is_error, content, .. } = message;
    json!([role, content, tool_call_id, is_error]).to_string()
}

fn schema(tool: &ToolSchema) -> String {
    json!([tool.name, tool.description, tool.parameters]).to_string()
}

/// The text around a character.
fn excerpt(text: &str, at: usize) -> String {
    let from = at.saturating_sub(SHOWN / 2);
    let shown: String = text.chars().skip(from).take(SHOWN).collect();
    let (head, tail) = (from > 0, text.chars().count() > from + SHOWN);
    format!("{}{shown}{}", if head { "…" } else { "" }, if tail { "…" } else { "" })
}
