//! From wire events to chunks. Pure.

use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk, Usage},
    content::{ContentBlock, ToolCallBlock},
    id::CallId,
};

use super::{
    errors,
    wire::{Choice, ToolDelta, WireEvent, WireUsage},
};

/// How much of a malformed payload an error quotes, in characters.
const QUOTE_CHARS: usize = 120;

/// Follows one streamed answer. All its text is one block and all its reasoning another, however
/// they alternate; blocks are numbered as they first appear, and all end at the end.
#[derive(Debug, Default)]
pub(super) struct Translator {
    response_id: Option<String>,
    blocks: Vec<Block>,
    usage: Option<WireUsage>,
    finish: Option<String>,
}

#[derive(Debug)]
enum Block {
    Reasoning(String),
    Text(String),
    Call { wire_index: u64, id: CallId, name: String, arguments: String },
}

impl Translator {
    /// Takes one event's data.
    ///
    /// # Errors
    ///
    /// `MALFORMED_RESPONSE` if it is not an event, or what an `error` object in it says.
    pub(super) fn event(&mut self, data: &str, out: &mut Vec<StreamChunk>) -> Result<(), Failure> {
        let event: WireEvent = serde_json::from_str(data).map_err(|_| malformed(data))?;
        if let Some(error) = &event.error {
            return Err(errors::in_stream(error));
        }
        if event.object.as_deref() == Some("error") {
            let error = serde_json::from_str(data).map_err(|_| malformed(data))?;
            return Err(errors::in_stream(&error));
        }
        if let Some(id) = event.id.filter(|id| !id.is_empty()) {
            self.response_id.get_or_insert(id);
        }
        for choice in event.choices.unwrap_or_default() {
            self.choice(choice, out);
        }
        if event.usage.is_some() {
            self.usage = event.usage;
        }
        Ok(())
    }

    fn choice(&mut self, choice: Choice, out: &mut Vec<StreamChunk>) {
        let delta = choice.delta.unwrap_or_default();
        let filled = |text: &String| !text.is_empty();
        let reasoning = delta.reasoning_content.filter(filled).or(delta.reasoning);
        if let Some(text) = reasoning.filter(filled) {
            let reasoning = |block: &Block| matches!(block, Block::Reasoning(_));
            let index = self.open(reasoning, || Block::Reasoning(String::new()), out);
            if let Block::Reasoning(all) = &mut self.blocks[index as usize] {
                all.push_str(&text);
            }
            out.push(StreamChunk::ReasoningDelta { index, text });
        }
        if let Some(text) = delta.content.filter(filled) {
            let is_text = |block: &Block| matches!(block, Block::Text(_));
            let index = self.open(is_text, || Block::Text(String::new()), out);
            if let Block::Text(all) = &mut self.blocks[index as usize] {
                all.push_str(&text);
            }
            out.push(StreamChunk::TextDelta { index, text });
        }
        // Before the finish reason is looked at: some providers send both at once.
        for (position, tool) in delta.tool_calls.unwrap_or_default().into_iter().enumerate() {
            self.tool(position as u64, tool, out);
        }
        // Some send an empty reason with every event.
        if let Some(reason) = choice.finish_reason.filter(filled) {
            self.finish = Some(reason);
        }
    }

    fn tool(&mut self, position: u64, tool: ToolDelta, out: &mut Vec<StreamChunk>) {
        let wanted = tool.index.unwrap_or(position);
        let same = |block: &Block| matches!(block, Block::Call { wire_index, .. } if *wire_index == wanted);
        // Some providers give calls no id; results could not be matched without one.
        let minted = match &self.response_id {
            Some(response) => format!("{response}-{wanted}"),
            None => String::new(),
        };
        let new = || Block::Call {
            wire_index: wanted,
            id: minted.into(),
            name: String::new(),
            arguments: String::new(),
        };
        let index = self.open(same, new, out);
        let Block::Call { id, name, arguments, .. } = &mut self.blocks[index as usize] else {
            return;
        };
        let function = tool.function.unwrap_or_default();
        let filled = |text: &String| !text.is_empty();
        if let Some(new) = tool.id.filter(filled) {
            *id = new.into();
        }
        if let Some(new) = function.name.filter(filled) {
            *name = new;
        }
        let arguments_delta = function.arguments.unwrap_or_default();
        arguments.push_str(&arguments_delta);
        let name = Some(name.clone()).filter(filled);
        out.push(StreamChunk::ToolCallDelta { index, id: id.clone(), name, arguments_delta });
    }

    /// The index of the block that `is` it, opened now if there is none.
    fn open(
        &mut self,
        is: impl Fn(&Block) -> bool,
        new: impl FnOnce() -> Block,
        out: &mut Vec<StreamChunk>,
    ) -> u32 {
        if let Some(index) = self.blocks.iter().position(is) {
            return index as u32;
        }
        let index = self.blocks.len() as u32;
        let block = new();
        let block_type = match block {
            Block::Reasoning(_) => "reasoning",
            Block::Text(_) => "text",
            Block::Call { .. } => "tool-call",
        };
        out.push(StreamChunk::BlockStart { index, block_type: block_type.to_owned() });
        self.blocks.push(block);
        index
    }

    /// The answer is complete: its blocks, its usage, and why it ended.
    pub(super) fn finish(self, out: &mut Vec<StreamChunk>) {
        let empty = self.blocks.is_empty();
        for (index, block) in (0..).zip(self.blocks) {
            let block = match block {
                Block::Reasoning(text) => ContentBlock::Reasoning(text),
                Block::Text(text) => ContentBlock::Text(text),
                Block::Call { id, name, arguments, .. } => {
                    ContentBlock::ToolCall(ToolCallBlock { id, name, arguments })
                }
            };
            out.push(StreamChunk::BlockEnd { index, block });
        }
        if let Some(usage) = &self.usage {
            out.push(StreamChunk::Usage { usage: counts(usage) });
        }
        let failed = |code: String, message: String| FinishReason::Error {
            failure: Failure::new(code, message),
        };
        let reason = match self.finish.as_deref() {
            None | Some("stop") if empty => {
                let message = "model returned a completed response with no content";
                failed("EMPTY_RESPONSE".to_owned(), message.to_owned())
            }
            None | Some("stop") => FinishReason::Stop,
            Some("tool_calls") => FinishReason::ToolCalls,
            Some("length") => FinishReason::MaxTokens,
            Some(other) => failed(other.to_uppercase(), format!("model stopped: {other}")),
        };
        out.push(StreamChunk::Finish { reason, replay_state: None });
    }
}

/// A payload that is no event.
fn malformed(data: &str) -> Failure {
    let quote: String = data.chars().take(QUOTE_CHARS).collect();
    Failure::new("MALFORMED_RESPONSE", format!("malformed SSE payload: {quote}"))
}

fn counts(usage: &WireUsage) -> Usage {
    let details = usage.prompt_tokens_details.as_ref();
    let cached = details.and_then(|d| d.cached_tokens).or(usage.prompt_cache_hit_tokens);
    Usage {
        input_tokens: usage.prompt_tokens.unwrap_or(0).saturating_sub(cached.unwrap_or(0)),
        output_tokens: usage.completion_tokens.unwrap_or(0),
        total_tokens: usage.total_tokens,
        cache_read_tokens: cached,
        cache_write_tokens: None,
        reasoning_tokens: usage
            .completion_tokens_details
            .as_ref()
            .and_then(|details| details.reasoning_tokens),
    }
}
