//! Answers in the words of chat completions.

use playhouse_messages::chunk::{Failure, FinishReason, StreamChunk, Usage};
use serde_json::{Value, json};

use super::wire::Encoder;

/// From chunks to wire events.
#[derive(Default)]
pub(super) struct ChatEncoder {
    /// The blocks that are tool calls, in order, and whether they were named on the wire.
    calls: Vec<(u32, bool)>,
    usage: Option<Usage>,
}

impl Encoder for ChatEncoder {
    fn chunk(&mut self, chunk: &StreamChunk) -> Vec<String> {
        let delta = |delta: Value| vec![event(delta, None)];
        match chunk {
            StreamChunk::TextDelta { text, .. } => delta(json!({ "content": text })),
            StreamChunk::ReasoningDelta { text, .. } => delta(json!({ "reasoning_content": text })),
            StreamChunk::BlockStart { index, block_type } => {
                if block_type == "tool-call" {
                    self.calls.push((*index, false));
                }
                Vec::new()
            }
            StreamChunk::ToolCallDelta { index, id, name, arguments_delta } => {
                let place = self.calls.iter().position(|(call, _)| call == index).unwrap_or(0);
                let named = self
                    .calls
                    .get_mut(place)
                    .is_some_and(|call| std::mem::replace(&mut call.1, true));
                let call = if named {
                    json!({ "index": place, "function": { "arguments": arguments_delta } })
                } else {
                    let function = json!({ "name": name, "arguments": arguments_delta });
                    json!({ "index": place, "id": id, "type": "function", "function": function })
                };
                delta(json!({ "tool_calls": [call] }))
            }
            StreamChunk::BlockEnd { .. } => Vec::new(),
            StreamChunk::Usage { usage } => {
                self.usage = Some(*usage);
                Vec::new()
            }
            StreamChunk::Finish { reason, .. } => {
                let reason = match reason {
                    FinishReason::Stop => "stop".to_owned(),
                    FinishReason::ToolCalls => "tool_calls".to_owned(),
                    FinishReason::MaxTokens => "length".to_owned(),
                    FinishReason::Error { failure } | FinishReason::Aborted { failure } => {
                        failure.code.to_lowercase()
                    }
                };
                let mut events = vec![event(json!({}), Some(&reason))];
                events.extend(self.usage.as_ref().map(usage_event));
                events.push(self.end());
                events
            }
        }
    }

    fn error(&self, failure: &Failure) -> String {
        let mut error = error_object(failure);
        if let Some(status) = failure.status {
            error["status"] = status.into();
        }
        data(&json!({ "error": error }))
    }

    fn end(&self) -> String {
        "data: [DONE]\n\n".to_owned()
    }
}

fn data(event: &Value) -> String {
    format!("data: {event}\n\n")
}

fn event(delta: Value, finish: Option<&str>) -> String {
    let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
    data(&json!({ "id": "mock", "object": "chat.completion.chunk", "choices": [choice] }))
}

fn usage_event(usage: &Usage) -> String {
    let prompt = usage.input_tokens + usage.cache_read_tokens.unwrap_or(0);
    let mut counts = json!({
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
    });
    if let Some(cached) = usage.cache_read_tokens {
        counts["prompt_tokens_details"] = json!({ "cached_tokens": cached });
    }
    if let Some(reasoning) = usage.reasoning_tokens {
        counts["completion_tokens_details"] = json!({ "reasoning_tokens": reasoning });
    }
    let object = "chat.completion.chunk";
    data(&json!({ "id": "mock", "object": object, "choices": [], "usage": counts }))
}

/// A failure in a provider's words.
pub(super) fn error_object(failure: &Failure) -> Value {
    let (kind, code) = match failure.code.as_str() {
        "RATE_LIMIT" => ("rate_limit_error", "rate_limit_exceeded".to_owned()),
        "QUOTA" => ("insufficient_quota", "insufficient_quota".to_owned()),
        "AUTH" => ("authentication_error", "invalid_api_key".to_owned()),
        "CONTEXT_WINDOW_EXCEEDED" => {
            ("invalid_request_error", "context_length_exceeded".to_owned())
        }
        "INVALID_REQUEST" => ("invalid_request_error", "invalid_request_error".to_owned()),
        "MOCK_SCRIPT_EXHAUSTED" => ("server_error", failure.code.clone()),
        other => ("server_error", other.to_lowercase()),
    };
    json!({ "message": failure.message, "type": kind, "code": code })
}
