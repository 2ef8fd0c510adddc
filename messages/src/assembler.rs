//! From chunks to content: one accumulator for everyone who needs a message out of a stream.
//!
//! Assembly is pure: the same chunks give the same blocks, whether they stream or are replayed from
//! a log.

use crate::{
    chunk::{FinishReason, ReplayState, StreamChunk, Usage},
    content::{ContentBlock, ToolCallBlock},
    id::CallId,
    packed::{StreamRecord, expand},
};

/// What a complete stream says.
#[derive(Debug, Clone, PartialEq)]
pub struct Assembled {
    /// The blocks, in the order in which they were first seen.
    pub content: Vec<ContentBlock>,
    /// The adapter's private data; its `blocks`, if any, pair with `content`.
    pub replay_state: Option<ReplayState>,
}

/// Why a stream gives no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// A block that only its end could have filled was left open.
    #[error("cannot assemble incomplete block of type \"{kind}\"")]
    Incomplete {
        /// The block's type.
        kind: String,
    },
}

impl AssembleError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Incomplete { .. } => "INCOMPLETE_BLOCK",
        }
    }
}

/// Accumulates a stream's chunks into content blocks.
#[derive(Debug, Clone, Default)]
pub struct BlockAssembler {
    blocks: Vec<(u32, Slot)>,
    finish: Option<FinishReason>,
    replay_state: Option<ReplayState>,
    usage: Option<Usage>,
}

#[derive(Debug, Clone)]
enum Slot {
    Text(String),
    Reasoning(String),
    ToolCall {
        id: Option<CallId>,
        name: String,
        arguments: String,
    },
    /// Opened with a type that has no deltas; only its end can fill it.
    Opaque(String),
    Ended(ContentBlock),
}

impl Slot {
    fn of_kind(kind: &str) -> Self {
        match kind {
            "text" => Self::Text(String::new()),
            "reasoning" => Self::Reasoning(String::new()),
            "tool-call" => {
                Self::ToolCall { id: None, name: String::new(), arguments: String::new() }
            }
            kind => Self::Opaque(kind.to_owned()),
        }
    }

    fn block(&self, index: u32) -> Result<ContentBlock, AssembleError> {
        Ok(match self {
            Self::Text(text) => ContentBlock::Text(text.clone()),
            Self::Reasoning(text) => ContentBlock::Reasoning(text.clone()),
            Self::ToolCall { id, name, arguments } => ContentBlock::ToolCall(ToolCallBlock {
                id: id.clone().unwrap_or_else(|| format!("call-{index}").into()),
                name: name.clone(),
                arguments: arguments.clone(),
            }),
            Self::Opaque(kind) => return Err(AssembleError::Incomplete { kind: kind.clone() }),
            Self::Ended(block) => block.clone(),
        })
    }

    /// Whether a cut stream keeps the block: text or reasoning that a person could see.
    fn is_visible(&self) -> bool {
        match self {
            Self::Text(text)
            | Self::Reasoning(text)
            | Self::Ended(ContentBlock::Text(text) | ContentBlock::Reasoning(text)) => {
                text.chars().any(|c| !c.is_whitespace())
            }
            _ => false,
        }
    }
}

impl BlockAssembler {
    /// An assembler that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// An assembler that has seen a packed stream.
    pub fn replay(records: &[StreamRecord]) -> Self {
        let mut assembler = Self::new();
        for timed in expand(records) {
            assembler.push(&timed.chunk);
        }
        assembler
    }

    /// Takes the next chunk.
    pub fn push(&mut self, chunk: &StreamChunk) {
        match chunk {
            StreamChunk::BlockStart { index, block_type } => {
                self.slot(*index, || Slot::of_kind(block_type));
            }
            StreamChunk::TextDelta { index, text } => {
                if let Slot::Text(so_far) = self.slot(*index, || Slot::of_kind("text")) {
                    so_far.push_str(text);
                }
            }
            StreamChunk::ReasoningDelta { index, text } => {
                if let Slot::Reasoning(so_far) = self.slot(*index, || Slot::of_kind("reasoning")) {
                    so_far.push_str(text);
                }
            }
            StreamChunk::ToolCallDelta { index, id, name, arguments_delta } => {
                if let Slot::ToolCall { id: known, name: so_far, arguments } =
                    self.slot(*index, || Slot::of_kind("tool-call"))
                {
                    if !id.as_str().is_empty() {
                        *known = Some(id.clone());
                    }
                    if let Some(name) = name.as_ref().filter(|name| !name.is_empty()) {
                        so_far.clone_from(name);
                    }
                    arguments.push_str(arguments_delta);
                }
            }
            StreamChunk::BlockEnd { index, block } => {
                let slot = self.slot(*index, || Slot::Opaque(String::new()));
                if !matches!(slot, Slot::Ended(_)) {
                    *slot = Slot::Ended(block.clone());
                }
            }
            StreamChunk::Usage { usage } => self.usage = Some(*usage),
            StreamChunk::Finish { reason, replay_state } => {
                self.finish = Some(reason.clone());
                self.replay_state.clone_from(replay_state);
            }
        }
    }

    fn slot(&mut self, index: u32, open: impl FnOnce() -> Slot) -> &mut Slot {
        // The block that grows is almost always the last one.
        let position = self.blocks.iter().rposition(|(known, _)| *known == index);
        let position = position.unwrap_or_else(|| {
            self.blocks.push((index, open()));
            self.blocks.len() - 1
        });
        &mut self.blocks[position].1
    }

    /// Why the stream ended; [`FinishReason::Stop`] if it did not say.
    pub fn finish_reason(&self) -> FinishReason {
        self.finish.clone().unwrap_or(FinishReason::Stop)
    }

    /// The last counts that the stream reported.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// The message of a stream that ran to its end.
    ///
    /// When the output limit cut it, every tool call is dropped, complete ones too.
    pub fn assemble(&self) -> Result<Assembled, AssembleError> {
        let mut content = Vec::with_capacity(self.blocks.len());
        for (index, slot) in &self.blocks {
            content.push(slot.block(*index)?);
        }
        let cut = self.finish == Some(FinishReason::MaxTokens);
        let keep: Vec<bool> = content
            .iter()
            .map(|block| !(cut && matches!(block, ContentBlock::ToolCall(_))))
            .collect();
        Ok(Assembled {
            content: kept(content, &keep),
            replay_state: prune(self.replay_state.as_ref(), &keep),
        })
    }

    /// Every block as far as it came, also those that a message leaves out: what a provider bills.
    pub fn produced(&self) -> Vec<ContentBlock> {
        self.blocks.iter().filter_map(|(index, slot)| slot.block(*index).ok()).collect()
    }

    /// The prefix of a stream that was cut: the text and the reasoning that arrived.
    pub fn interrupted(&self) -> Vec<ContentBlock> {
        self.blocks
            .iter()
            .filter(|(_, slot)| slot.is_visible())
            .filter_map(|(index, slot)| slot.block(*index).ok())
            .collect()
    }

    /// The adapter's private data for [`BlockAssembler::interrupted`], if the cut came after it.
    pub fn interrupted_replay_state(&self) -> Option<ReplayState> {
        let keep: Vec<bool> = self.blocks.iter().map(|(_, slot)| slot.is_visible()).collect();
        prune(self.replay_state.as_ref(), &keep)
    }
}

fn kept<T>(items: Vec<T>, keep: &[bool]) -> Vec<T> {
    items.into_iter().zip(keep).filter_map(|(item, keep)| keep.then_some(item)).collect()
}

/// Drops the entries of dropped blocks. Entries that do not pair with the blocks make the whole
/// envelope worthless, since nobody can tell which block an entry is about.
fn prune(state: Option<&ReplayState>, keep: &[bool]) -> Option<ReplayState> {
    let state = state?;
    let blocks = match &state.blocks {
        Some(blocks) if blocks.len() != keep.len() => return None,
        Some(blocks) => Some(kept(blocks.clone(), keep)),
        None => None,
    };
    Some(ReplayState { response: state.response.clone(), blocks })
}

#[cfg(test)]
mod tests;
