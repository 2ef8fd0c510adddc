//! From a reply to the steps that perform it. Pure.

use std::time::Duration;

use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk, Usage},
    content::{ContentBlock, ToolCallBlock},
};
use serde_json::Value;

use super::{Arguments, Chunking, Conversation, Fault, FaultKind, Reply, template};

/// One step of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    Wait(Duration),
    Gate(String),
    Chunk(StreamChunk),
    /// Ends the answer this way.
    Fault(FaultKind, Failure),
}

/// What to do, in order, to give this reply. Unless a fault ends it, the last step is a finish.
pub(crate) fn plan(reply: &Reply, captures: &[String], conversation: &Conversation) -> Vec<Step> {
    let value = |name: &str| lookup(name, captures, conversation);
    let fill = |text: &str| template::fill(text, value);
    let mut planner = Planner { reply, steps: Vec::new(), deltas: 0, faulted: false };
    if let Some(gate) = &reply.gate {
        planner.steps.push(Step::Gate(gate.clone()));
    }
    planner.trip(false);

    let mut output = 0;
    let mut index = 0;
    if let Some(text) = &reply.reasoning {
        let text = fill(text);
        output += text.len();
        planner.block(index, ContentBlock::Reasoning(text));
        index += 1;
    }
    if let Some(text) = &reply.text {
        let text = fill(text);
        output += text.len();
        planner.block(index, ContentBlock::Text(text));
        index += 1;
    }
    for (call, number) in reply.calls.iter().zip(conversation.next_call..) {
        let id = call.id.clone().unwrap_or_else(|| format!("call-{number}"));
        let arguments = match &call.arguments {
            Arguments::Raw(text) => fill(text),
            Arguments::Json(value) => fill_json(value, &fill).to_string(),
        };
        output += call.name.len() + arguments.len();
        let call = ToolCallBlock { id: id.into(), name: call.name.clone(), arguments };
        planner.block(index, ContentBlock::ToolCall(call));
        index += 1;
    }
    planner.trip(true);
    let usage = match reply.usage {
        Some(usage) => Usage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            total_tokens: None,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: None,
            reasoning_tokens: usage.reasoning_tokens,
        },
        // Four bytes a token, as a meter without a tokenizer would guess.
        None => Usage {
            input_tokens: (conversation.bytes as u64).div_ceil(4),
            output_tokens: (output as u64).div_ceil(4),
            ..Usage::default()
        },
    };
    // A total as a provider would report it, so that a script costs the same over every wire.
    let total = usage.input_tokens + usage.cache_read_tokens.unwrap_or(0) + usage.output_tokens;
    planner.chunk(StreamChunk::Usage { usage: Usage { total_tokens: Some(total), ..usage } });
    let reason = match reply.finish.as_deref() {
        None if reply.calls.is_empty() => FinishReason::Stop,
        None | Some("tool_calls") => FinishReason::ToolCalls,
        Some("stop") => FinishReason::Stop,
        Some("length") => FinishReason::MaxTokens,
        Some(other) => FinishReason::Error {
            failure: Failure::new(other.to_uppercase(), format!("model stopped: {other}")),
        },
    };
    planner.chunk(StreamChunk::Finish { reason, replay_state: None });
    planner.steps
}

struct Planner<'a> {
    reply: &'a Reply,
    steps: Vec<Step>,
    deltas: usize,
    faulted: bool,
}

impl Planner<'_> {
    fn chunk(&mut self, chunk: StreamChunk) {
        if !self.faulted {
            self.steps.push(Step::Chunk(chunk));
        }
    }

    fn delta(&mut self, chunk: StreamChunk) {
        if self.faulted {
            return;
        }
        let delay = if self.deltas == 0 { self.reply.ttft_ms } else { self.reply.chunk_delay_ms };
        if delay > 0 {
            self.steps.push(Step::Wait(Duration::from_millis(delay)));
        }
        self.steps.push(Step::Chunk(chunk));
        self.deltas += 1;
        self.trip(false);
    }

    /// Ends the plan if the fault is due here: after this many deltas, or at the end of them all.
    fn trip(&mut self, end: bool) {
        let Some(fault) = &self.reply.fault else { return };
        let early = matches!(fault.kind, FaultKind::Error | FaultKind::Stall | FaultKind::Reset);
        let due = match fault.after_chunks {
            Some(after) => self.deltas >= after,
            None => early,
        };
        if !self.faulted && (due || end) {
            self.faulted = true;
            self.steps.push(Step::Fault(fault.kind, failure(fault)));
        }
    }

    fn block(&mut self, index: u32, block: ContentBlock) {
        self.chunk(StreamChunk::BlockStart { index, block_type: block.kind().to_owned() });
        match &block {
            ContentBlock::Text(text) => {
                for text in pieces(text, self.reply.chunking) {
                    self.delta(StreamChunk::TextDelta { index, text });
                }
            }
            ContentBlock::Reasoning(text) => {
                for text in pieces(text, self.reply.chunking) {
                    self.delta(StreamChunk::ReasoningDelta { index, text });
                }
            }
            ContentBlock::ToolCall(call) => {
                // Cut in the middle, so that nobody relies on whole arguments.
                let middle = call.arguments.chars().count() / 2;
                let cut = call.arguments.char_indices().nth(middle).map_or(0, |(at, _)| at);
                let (head, tail) = call.arguments.split_at(cut);
                for part in [head, tail] {
                    self.delta(StreamChunk::ToolCallDelta {
                        index,
                        id: call.id.clone(),
                        name: Some(call.name.clone()),
                        arguments_delta: part.to_owned(),
                    });
                }
            }
            _ => {}
        }
        self.chunk(StreamChunk::BlockEnd { index, block });
    }
}

fn failure(fault: &Fault) -> Failure {
    let (code, message) = match fault.kind {
        FaultKind::Error => ("SERVER", "scripted failure"),
        FaultKind::Stall => ("TIMEOUT", "scripted stall"),
        FaultKind::Cut => ("STREAM_CLOSED", "scripted cut"),
        FaultKind::Disconnect => ("TRANSPORT", "scripted disconnect"),
        FaultKind::Reset => ("TRANSPORT", "scripted connection reset"),
        FaultKind::Malformed => ("MALFORMED_RESPONSE", "malformed SSE payload: {oops"),
    };
    Failure {
        status: fault.status,
        provider_retry_after_ms: fault.retry_after_ms,
        offload_images: fault.offload_images,
        ..Failure::new(
            fault.code.as_deref().unwrap_or(code),
            fault.message.as_deref().unwrap_or(message),
        )
    }
}

fn pieces(text: &str, chunking: Chunking) -> Vec<String> {
    match chunking {
        _ if text.is_empty() => Vec::new(),
        Chunking::Whole => vec![text.to_owned()],
        Chunking::Words => text.split_inclusive([' ', '\n']).map(str::to_owned).collect(),
        Chunking::Chars(size) => {
            let chars: Vec<char> = text.chars().collect();
            chars.chunks(size.max(1)).map(|piece| piece.iter().collect()).collect()
        }
    }
}

fn lookup(name: &str, captures: &[String], conversation: &Conversation) -> Option<String> {
    let results = || conversation.results.iter().map(|result| result.text.as_str());
    match name {
        "prompt" => Some(conversation.prompt.clone()),
        "images" => Some(conversation.images.to_string()),
        "results" => Some(results().collect::<Vec<_>>().join("\n\n")),
        _ => {
            let number = |text: &str| text.parse::<usize>().ok()?.checked_sub(1);
            match name.strip_prefix("result.") {
                Some(text) => Some(results().nth(number(text)?).unwrap_or_default().to_owned()),
                None => captures.get(number(name)?).cloned(),
            }
        }
    }
}

fn fill_json(value: &Value, fill: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(fill(text)),
        Value::Array(items) => items.iter().map(|item| fill_json(item, fill)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, item)| (key.clone(), fill_json(item, fill))).collect()
        }
        other => other.clone(),
    }
}
