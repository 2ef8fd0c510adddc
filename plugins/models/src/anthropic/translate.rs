//! From wire events to chunks. Pure.

use std::collections::VecDeque;

use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk, Usage},
    content::{ContentBlock, ToolCallBlock},
};
use serde_json::Value;

use super::{
    errors,
    replay::{self, Seal},
    wire::{WireBlock, WireDelta, WireEnd, WireEvent, WireUsage},
};

/// How much of a malformed payload an error quotes, in characters.
const QUOTE_CHARS: usize = 120;

/// Follows one streamed answer. Blocks are numbered as they open, those of unknown kinds left out,
/// and each ends where the wire ends it.
#[derive(Debug, Default)]
pub(super) struct Translator {
    id: Option<String>,
    blocks: Vec<Block>,
    usage: Option<WireUsage>,
    end: Option<WireEnd>,
    done: bool,
}

#[derive(Debug)]
struct Block {
    wire_index: u64,
    open: bool,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Text(String),
    Thinking {
        text: String,
        signature: String,
    },
    Redacted(String),
    /// `given` is the input that the block opened with, for blocks that no delta follows.
    Call {
        call: ToolCallBlock,
        given: Option<Value>,
    },
}

impl Translator {
    /// Takes one event's data.
    ///
    /// # Errors
    ///
    /// `MALFORMED_RESPONSE` if it is not an event, or what an error event says.
    pub(super) fn event(
        &mut self,
        data: &str,
        out: &mut VecDeque<StreamChunk>,
    ) -> Result<(), Failure> {
        match serde_json::from_str(data).map_err(|_| malformed(data))? {
            WireEvent::MessageStart { message } => {
                self.id = message.id;
                self.count(message.usage);
            }
            WireEvent::ContentBlockStart { index, content_block } => {
                self.start(index, content_block, out);
            }
            WireEvent::ContentBlockDelta { index, delta } => self.delta(index, delta, out),
            WireEvent::ContentBlockStop { index } => {
                let same = |block: &Block| block.open && block.wire_index == index;
                if let Some(at) = self.blocks.iter().position(same) {
                    self.stop(at, out);
                }
            }
            WireEvent::MessageDelta { delta, usage } => {
                self.count(usage);
                if delta.stop_reason.is_some() {
                    self.end = Some(delta);
                }
            }
            WireEvent::MessageStop => self.finish(out),
            WireEvent::Error { error } => return Err(errors::in_stream(&error)),
            WireEvent::Other => {}
        }
        Ok(())
    }

    /// Whether the message has stopped.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Counts are running totals; what an event leaves out stays as it was.
    fn count(&mut self, usage: Option<WireUsage>) {
        let Some(new) = usage else { return };
        let old = self.usage.unwrap_or_default();
        self.usage = Some(WireUsage {
            input_tokens: new.input_tokens.or(old.input_tokens),
            output_tokens: new.output_tokens.or(old.output_tokens),
            cache_read_input_tokens: new.cache_read_input_tokens.or(old.cache_read_input_tokens),
            cache_creation_input_tokens: new
                .cache_creation_input_tokens
                .or(old.cache_creation_input_tokens),
            output_tokens_details: new.output_tokens_details.or(old.output_tokens_details),
        });
    }

    fn start(&mut self, wire_index: u64, block: WireBlock, out: &mut VecDeque<StreamChunk>) {
        let index = self.blocks.len() as u32;
        let (block_type, content, first) = match block {
            WireBlock::Text { text } => {
                let first = StreamChunk::TextDelta { index, text: text.clone() };
                ("text", Content::Text(text), first)
            }
            WireBlock::Thinking { thinking: text, signature } => {
                let first = StreamChunk::ReasoningDelta { index, text: text.clone() };
                ("reasoning", Content::Thinking { text, signature }, first)
            }
            WireBlock::RedactedThinking { data } => {
                let first = StreamChunk::ReasoningDelta { index, text: String::new() };
                ("reasoning", Content::Redacted(data), first)
            }
            WireBlock::ToolUse { id, name, input: given } => {
                let call = ToolCallBlock { id: id.into(), name, arguments: String::new() };
                let first = call_delta(index, &call, String::new());
                ("tool-call", Content::Call { call, given }, first)
            }
            WireBlock::Other => return,
        };
        out.push_back(StreamChunk::BlockStart { index, block_type: block_type.to_owned() });
        out.extend(first.is_token().then_some(first));
        self.blocks.push(Block { wire_index, open: true, content });
    }

    fn delta(&mut self, wire_index: u64, delta: WireDelta, out: &mut VecDeque<StreamChunk>) {
        let mut blocks = (0..).zip(&mut self.blocks);
        let open = blocks.find(|(_, block)| block.open && block.wire_index == wire_index);
        let Some((index, block)) = open else { return };
        match (&mut block.content, delta) {
            (Content::Text(so_far), WireDelta::TextDelta { text }) if !text.is_empty() => {
                so_far.push_str(&text);
                out.push_back(StreamChunk::TextDelta { index, text });
            }
            (
                Content::Thinking { text: so_far, .. },
                WireDelta::ThinkingDelta { thinking: text },
            ) if !text.is_empty() => {
                so_far.push_str(&text);
                out.push_back(StreamChunk::ReasoningDelta { index, text });
            }
            (
                Content::Thinking { signature: so_far, .. },
                WireDelta::SignatureDelta { signature },
            ) => {
                so_far.push_str(&signature);
            }
            (Content::Call { call, .. }, WireDelta::InputJsonDelta { partial_json })
                if !partial_json.is_empty() =>
            {
                call.arguments.push_str(&partial_json);
                out.push_back(call_delta(index, call, partial_json));
            }
            // Nothing new, or of a kind that is for others, such as citations.
            _ => {}
        }
    }

    fn stop(&mut self, at: usize, out: &mut VecDeque<StreamChunk>) {
        let index = at as u32;
        let block = &mut self.blocks[at];
        block.open = false;
        let block = match &mut block.content {
            Content::Text(text) => ContentBlock::Text(text.clone()),
            Content::Thinking { text, .. } => ContentBlock::Reasoning(text.clone()),
            Content::Redacted(_) => ContentBlock::Reasoning(String::new()),
            Content::Call { call, given } => {
                if let Some(given) = given.take().filter(|_| call.arguments.is_empty()) {
                    call.arguments = given.to_string();
                    out.push_back(call_delta(index, call, call.arguments.clone()));
                }
                ContentBlock::ToolCall(call.clone())
            }
        };
        out.push_back(StreamChunk::BlockEnd { index, block });
    }

    /// The message is complete: what is still open, its usage, and why it ended.
    fn finish(&mut self, out: &mut VecDeque<StreamChunk>) {
        self.done = true;
        for at in 0..self.blocks.len() {
            if self.blocks[at].open {
                self.stop(at, out);
            }
        }
        out.extend(self.usage.as_ref().map(|usage| StreamChunk::Usage { usage: counts(usage) }));
        let seals: Vec<_> = self.blocks.iter().map(|block| block.content.seal()).collect();
        let reason = reason(self.end.as_ref(), self.blocks.is_empty());
        let replay_state = replay::state(self.id.as_deref(), &seals);
        out.push_back(StreamChunk::Finish { reason, replay_state });
    }
}

impl Content {
    fn seal(&self) -> Option<Seal<String>> {
        match self {
            Self::Thinking { signature, .. } if !signature.is_empty() => {
                Some(Seal::Signature(signature.clone()))
            }
            Self::Redacted(data) => Some(Seal::Redacted(data.clone())),
            _ => None,
        }
    }
}

fn call_delta(index: u32, call: &ToolCallBlock, arguments_delta: String) -> StreamChunk {
    let (id, name) = (call.id.clone(), Some(call.name.clone()).filter(|name| !name.is_empty()));
    StreamChunk::ToolCallDelta { index, id, name, arguments_delta }
}

fn reason(end: Option<&WireEnd>, empty: bool) -> FinishReason {
    let failed = |code: String, message: String| FinishReason::Error {
        failure: Failure::new(code, message),
    };
    match end.and_then(|end| end.stop_reason.as_deref()) {
        None | Some("end_turn" | "stop_sequence") if empty => {
            let message = "model returned a completed response with no content";
            failed("EMPTY_RESPONSE".to_owned(), message.to_owned())
        }
        None | Some("end_turn" | "stop_sequence") => FinishReason::Stop,
        Some("tool_use") => FinishReason::ToolCalls,
        Some("max_tokens" | "model_context_window_exceeded") => FinishReason::MaxTokens,
        Some(other) => {
            let details = end.and_then(|end| end.stop_details.as_ref());
            let why = details.and_then(|details| details.get("explanation")?.as_str());
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            failed(other.to_uppercase(), format!("model stopped: {other}{why}"))
        }
    }
}

/// A payload that is no event.
fn malformed(data: &str) -> Failure {
    let quote: String = data.chars().take(QUOTE_CHARS).collect();
    Failure::new("MALFORMED_RESPONSE", format!("malformed SSE payload: {quote}"))
}

fn counts(usage: &WireUsage) -> Usage {
    Usage {
        input_tokens: usage.input_tokens.unwrap_or(0),
        output_tokens: usage.output_tokens.unwrap_or(0),
        total_tokens: None,
        cache_read_tokens: usage.cache_read_input_tokens,
        cache_write_tokens: usage.cache_creation_input_tokens,
        reasoning_tokens: usage.output_tokens_details.and_then(|details| details.thinking_tokens),
    }
}
