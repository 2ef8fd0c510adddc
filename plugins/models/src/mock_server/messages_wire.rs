//! Answers in the words of the Messages API.

use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk, Usage},
    content::ContentBlock,
};
use serde_json::{Value, json};

use super::wire::Encoder;

/// From chunks to wire events.
#[derive(Default)]
pub(super) struct MessagesEncoder {
    begun: bool,
    /// The block that is open on the wire.
    open: Option<u32>,
    usage: Option<Usage>,
}

impl MessagesEncoder {
    fn open(&mut self, index: u32, block: Value) -> String {
        self.open = Some(index);
        event("content_block_start", json!({ "index": index, "content_block": block }))
    }

    fn body(&mut self, chunk: &StreamChunk) -> Vec<String> {
        let delta = |index: &u32, delta: Value| {
            event("content_block_delta", json!({ "index": index, "delta": delta }))
        };
        match chunk {
            StreamChunk::BlockStart { index, block_type } => match block_type.as_str() {
                "text" => vec![self.open(*index, json!({ "type": "text", "text": "" }))],
                "reasoning" => {
                    let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                    vec![self.open(*index, block)]
                }
                // A call opens with its name, which comes with its first delta.
                _ => Vec::new(),
            },
            StreamChunk::TextDelta { index, text } => {
                vec![delta(index, json!({ "type": "text_delta", "text": text }))]
            }
            StreamChunk::ReasoningDelta { index, text } => {
                vec![delta(index, json!({ "type": "thinking_delta", "thinking": text }))]
            }
            StreamChunk::ToolCallDelta { index, id, name, arguments_delta } => {
                let mut events = Vec::new();
                if self.open != Some(*index) {
                    let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                    events.push(self.open(*index, block));
                }
                let part = json!({ "type": "input_json_delta", "partial_json": arguments_delta });
                events.push(delta(index, part));
                events
            }
            StreamChunk::BlockEnd { index, block } => {
                let mut events = Vec::new();
                if let ContentBlock::Reasoning(text) = block {
                    let signature = signature(text);
                    let seal = json!({ "type": "signature_delta", "signature": signature });
                    events.push(delta(index, seal));
                }
                events.push(event("content_block_stop", json!({ "index": index })));
                self.open = None;
                events
            }
            StreamChunk::Usage { usage } => {
                self.usage = Some(*usage);
                Vec::new()
            }
            StreamChunk::Finish { reason, .. } => {
                let reason = match reason {
                    FinishReason::Stop => "end_turn".to_owned(),
                    FinishReason::ToolCalls => "tool_use".to_owned(),
                    FinishReason::MaxTokens => "max_tokens".to_owned(),
                    FinishReason::Error { failure } | FinishReason::Aborted { failure } => {
                        failure.code.to_lowercase()
                    }
                };
                let delta = json!({ "stop_reason": reason, "stop_sequence": null });
                let usage = self.usage.as_ref().map(counts).unwrap_or_default();
                vec![event("message_delta", json!({ "delta": delta, "usage": usage })), self.end()]
            }
        }
    }
}

impl Encoder for MessagesEncoder {
    fn chunk(&mut self, chunk: &StreamChunk) -> Vec<String> {
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            let usage = json!({ "input_tokens": 0, "output_tokens": 0 });
            let message = json!({
                "id": "msg_mock", "type": "message", "role": "assistant", "content": [],
                "stop_reason": null, "usage": usage,
            });
            events.push(event("message_start", json!({ "message": message })));
            events.push(event("ping", json!({})));
        }
        events.extend(self.body(chunk));
        events
    }

    fn error(&self, failure: &Failure) -> String {
        format!("event: error\ndata: {}\n\n", error_body(failure))
    }

    fn end(&self) -> String {
        event("message_stop", json!({}))
    }
}

/// What the wire would need to see again with this thinking.
pub(super) fn signature(thinking: &str) -> String {
    format!("signed-{}", thinking.len())
}

fn event(kind: &str, fields: Value) -> String {
    let mut event = json!({ "type": kind });
    if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
        event.extend(fields);
    }
    format!("event: {kind}\ndata: {event}\n\n")
}

fn counts(usage: &Usage) -> Value {
    let mut counts =
        json!({ "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens });
    if let Some(cached) = usage.cache_read_tokens {
        counts["cache_read_input_tokens"] = cached.into();
    }
    if let Some(reasoning) = usage.reasoning_tokens {
        counts["output_tokens_details"] = json!({ "thinking_tokens": reasoning });
    }
    counts
}

/// A failure in a provider's words.
pub(super) fn error_body(failure: &Failure) -> Value {
    let kind = match failure.code.as_str() {
        "RATE_LIMIT" => "rate_limit_error",
        "QUOTA" => "billing_error",
        "AUTH" => "authentication_error",
        "INVALID_REQUEST" | "CONTEXT_WINDOW_EXCEEDED" => "invalid_request_error",
        _ => "api_error",
    };
    let message = match failure.code.as_str() {
        // The wire has no code for it, only these words.
        "CONTEXT_WINDOW_EXCEEDED" => format!("prompt is too long: {}", failure.message),
        "MOCK_SCRIPT_EXHAUSTED" => format!("{}: {}", failure.code, failure.message),
        _ => failure.message.clone(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}
