//! An answer's body: steps put on the wire.

use std::{collections::VecDeque, io, sync::Arc};

use bytes::Bytes;
use futures::Stream;
use hyper::body::Frame;
use playhouse_messages::chunk::{Failure, FinishReason, StreamChunk, Usage};
use serde_json::{Value, json};

use super::{Outcome, Shared};
use crate::scripted::{FaultKind, Step, Wire};

/// An answer being sent. What becomes of it is recorded when it is dropped, at the latest.
pub(super) struct Answer {
    shared: Arc<Shared>,
    request: usize,
    steps: VecDeque<Step>,
    wire: Wire,
    encoder: Encoder,
    pending: Bytes,
    chunks_sent: usize,
    outcome: Outcome,
}

impl Answer {
    pub(super) fn new(shared: Arc<Shared>, request: usize, steps: Vec<Step>, wire: Wire) -> Self {
        Self {
            shared,
            request,
            steps: if wire.empty_body { VecDeque::new() } else { steps.into() },
            wire,
            encoder: Encoder::default(),
            pending: Bytes::new(),
            chunks_sent: 0,
            outcome: Outcome::ClientClosed,
        }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
        futures::stream::unfold(self, |mut answer| async move {
            let frame = answer.next().await?;
            Some((frame.map(Frame::data), answer))
        })
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if !self.pending.is_empty() {
                let size = self.wire.split_bytes.unwrap_or(usize::MAX).max(1);
                return Some(Ok(self.pending.split_to(size.min(self.pending.len()))));
            }
            let Some(step) = self.steps.pop_front() else {
                if self.outcome == Outcome::ClientClosed {
                    self.outcome = Outcome::Completed;
                }
                return None;
            };
            match step {
                Step::Wait(duration) => tokio::time::sleep(duration).await,
                Step::Gate(name) => self.shared.stage.gate(&name).pass().await,
                Step::Chunk(chunk) => {
                    self.chunks_sent += usize::from(is_delta(&chunk));
                    let events = self.encoder.chunk(&chunk);
                    self.send(&events);
                }
                Step::Fault(kind, failure) => {
                    if let Some(error) = self.fault(kind, &failure).await {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    async fn fault(&mut self, kind: FaultKind, failure: &Failure) -> Option<io::Error> {
        match kind {
            FaultKind::Stall => {
                self.outcome = Outcome::Stalled;
                std::future::pending().await
            }
            FaultKind::Cut => {}
            FaultKind::Malformed => self.send(&["{oops".to_owned(), "[DONE]".to_owned()]),
            FaultKind::Error => {
                let mut error = error_object(failure);
                if let Some(status) = failure.status {
                    error["status"] = status.into();
                }
                self.send(&[json!({ "error": error }).to_string()]);
            }
            _ => {
                self.outcome = Outcome::Reset;
                // What was sent before should arrive: a pending body lets the connection flush.
                tokio::task::yield_now().await;
                return Some(io::Error::from(io::ErrorKind::ConnectionReset));
            }
        }
        None
    }

    fn send(&mut self, events: &[String]) {
        let mut text = String::new();
        for event in events {
            if self.wire.comments {
                text.push_str(": mock\n\n");
            }
            text.push_str("data: ");
            text.push_str(event);
            text.push_str("\n\n");
        }
        self.pending = text.into();
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let (outcome, chunks_sent) = (self.outcome, self.chunks_sent);
        self.shared.update(self.request, |request| {
            request.outcome = outcome;
            request.chunks_sent = chunks_sent;
        });
    }
}

fn is_delta(chunk: &StreamChunk) -> bool {
    matches!(
        chunk,
        StreamChunk::TextDelta { .. }
            | StreamChunk::ReasoningDelta { .. }
            | StreamChunk::ToolCallDelta { .. }
    )
}

/// From chunks to wire events.
#[derive(Default)]
struct Encoder {
    /// The blocks that are tool calls, in order, and whether they were named on the wire.
    calls: Vec<(u32, bool)>,
    usage: Option<Usage>,
}

impl Encoder {
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
                events.push("[DONE]".to_owned());
                events
            }
        }
    }
}

fn event(delta: Value, finish: Option<&str>) -> String {
    let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
    json!({ "id": "mock", "object": "chat.completion.chunk", "choices": [choice] }).to_string()
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
    json!({ "id": "mock", "object": object, "choices": [], "usage": counts }).to_string()
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
        other => ("server_error", other.to_lowercase()),
    };
    json!({ "message": failure.message, "type": kind, "code": code })
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
