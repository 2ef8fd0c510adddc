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
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::packed::{TimedChunk, pack};

    fn chunk(value: Value) -> StreamChunk {
        serde_json::from_value(value).unwrap()
    }

    fn start(index: u32, kind: &str) -> StreamChunk {
        chunk(json!({"type": "block-start", "index": index, "blockType": kind}))
    }

    fn text(index: u32, text: &str) -> StreamChunk {
        chunk(json!({"type": "text-delta", "index": index, "text": text}))
    }

    fn reasoning(index: u32, text: &str) -> StreamChunk {
        chunk(json!({"type": "reasoning-delta", "index": index, "text": text}))
    }

    fn call(index: u32, id: &str, name: &str, args: &str) -> StreamChunk {
        chunk(json!({"type": "tool-call-delta", "index": index, "id": id, "name": name,
            "argumentsDelta": args}))
    }

    fn end(index: u32, block: Value) -> StreamChunk {
        chunk(json!({"type": "block-end", "index": index, "block": block}))
    }

    fn finish(kind: &str, replay: Option<Value>) -> StreamChunk {
        let mut value = json!({"type": "finish", "reason": {"kind": kind}});
        if let Some(replay) = replay {
            value["replayState"] = replay;
        }
        chunk(value)
    }

    fn of(chunks: impl IntoIterator<Item = StreamChunk>) -> BlockAssembler {
        let mut assembler = BlockAssembler::new();
        for chunk in chunks {
            assembler.push(&chunk);
        }
        assembler
    }

    fn blocks(assembler: &BlockAssembler) -> Value {
        serde_json::to_value(assembler.assemble().unwrap().content).unwrap()
    }

    #[test]
    fn the_table_of_inputs() {
        let t = |text: &str| json!({"type": "text", "text": text});
        let c = |id: &str, name: &str, arguments: &str| json!({"type": "tool-call", "id": id, "name": name, "arguments": arguments});
        for (name, chunks, expected) in [
            (
                "start then deltas",
                vec![start(0, "text"), text(0, "a"), text(0, "b")],
                json!([t("ab")]),
            ),
            (
                "a known index opens once",
                vec![text(0, "a"), start(0, "tool-call")],
                json!([t("a")]),
            ),
            ("a delta opens its block", vec![text(3, "a"), text(1, "b")], json!([t("a"), t("b")])),
            (
                "an ended block is closed",
                vec![text(0, "a"), end(0, t("z")), text(0, "b")],
                json!([t("z")]),
            ),
            ("the first end wins", vec![end(0, t("y")), end(0, t("z"))], json!([t("y")])),
            (
                "a call grows",
                vec![call(0, "", "", "{"), call(0, "c", "n", "\"p")],
                json!([c("c", "n", "{\"p")]),
            ),
            (
                "a later empty name keeps",
                vec![call(0, "c", "n", ""), call(0, "c", "", "{}")],
                json!([c("c", "n", "{}")]),
            ),
            (
                "a later id replaces",
                vec![call(0, "c", "n", ""), call(0, "d", "m", "")],
                json!([c("d", "m", "")]),
            ),
            ("fallbacks", vec![start(7, "tool-call")], json!([c("call-7", "", "")])),
            (
                "an unknown kind may end",
                vec![start(0, "hologram"), end(0, json!({"type": "hologram", "x": 1}))],
                json!([{"type": "hologram", "x": 1}]),
            ),
            ("nothing", vec![], json!([])),
        ] {
            assert_eq!(blocks(&of(chunks)), expected, "{name}");
        }
    }

    #[test]
    fn an_open_block_of_an_unknown_kind_fails_and_is_named() {
        let fault = of([start(0, "hologram")]).assemble().unwrap_err();
        assert_eq!(fault.to_string(), "cannot assemble incomplete block of type \"hologram\"");
        assert_eq!(fault.code(), "INCOMPLETE_BLOCK");
    }

    #[test]
    fn the_last_usage_and_the_last_finish_win() {
        let usage = |n: u64| {
            chunk(json!({"type": "usage", "usage": {"inputTokens": n, "outputTokens": 0}}))
        };
        let assembler = of([usage(1), usage(2), finish("stop", None), finish("tool-calls", None)]);
        assert_eq!(assembler.usage().unwrap().input_tokens, 2);
        assert_eq!(assembler.finish_reason(), FinishReason::ToolCalls);
        assert_eq!(of([]).finish_reason(), FinishReason::Stop);
        assert_eq!(of([]).usage(), None);
    }

    #[test]
    fn replay_state_passes_whole_or_not_at_all() {
        let replay = |blocks: Value| Some(json!({"response": 1, "blocks": blocks}));
        let state = |assembler: BlockAssembler| assembler.assemble().unwrap().replay_state;
        let two = || vec![text(0, "a"), text(1, "b")];
        let with = |finish| of(two().into_iter().chain([finish]));
        assert_eq!(state(with(finish("stop", replay(json!([1]))))), None);
        assert_eq!(
            state(with(finish("stop", replay(json!([1, 2]))))).unwrap().blocks.unwrap(),
            [json!(1), json!(2)]
        );
        let bare = state(with(finish("stop", Some(json!({"response": 1}))))).unwrap();
        assert_eq!(bare.blocks, None);
    }

    mod scenario {
        use super::*;

        #[test]
        fn core_023_max_tokens_drops_calls_and_prunes_the_replay_in_step() {
            let replay = json!({"response": 1, "blocks": ["t", "c", "u"]});
            let assembler = of([
                text(0, "a"),
                end(1, json!({"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"})),
                text(2, "b"),
                finish("max-tokens", Some(replay)),
            ]);
            let assembled = assembler.assemble().unwrap();
            assert_eq!(assembled.content, [ContentBlock::text("a"), ContentBlock::text("b")]);
            assert_eq!(assembled.replay_state.unwrap().blocks.unwrap(), [json!("t"), json!("u")]);
        }

        #[test]
        fn core_024_max_tokens_with_only_a_truncated_call_leaves_empty_content() {
            let assembled =
                of([call(0, "c", "n", "{\"p"), finish("max-tokens", None)]).assemble().unwrap();
            assert_eq!(assembled, Assembled { content: vec![], replay_state: None });
        }

        #[test]
        fn core_066_cut_in_reasoning_keeps_the_reasoning() {
            let cut = of([reasoning(0, "hm"), start(1, "text")]).interrupted();
            assert_eq!(cut, [ContentBlock::Reasoning("hm".into())]);
        }

        #[test]
        fn core_067_cut_keeps_finished_text_and_drops_the_half_call() {
            let cut = of([
                text(0, "a"),
                end(0, json!({"type": "text", "text": "ab"})),
                call(1, "c", "n", "{"),
                start(2, "hologram"),
                text(3, "open"),
            ])
            .interrupted();
            assert_eq!(cut, [ContentBlock::text("ab"), ContentBlock::text("open")]);
        }

        #[test]
        fn core_068_whitespace_is_not_visible() {
            assert!(of([text(0, " \n"), reasoning(1, "")]).interrupted().is_empty());
        }

        #[test]
        fn newest_44_a_half_call_alone_is_not_visible() {
            assert!(of([call(0, "c", "n", "{")]).interrupted().is_empty());
        }

        #[test]
        fn newest_45_cut_on_the_finish_chunk_keeps_the_replay_state() {
            let replay = |blocks: Value| Some(json!({"response": 1, "blocks": blocks}));
            let cut = |blocks: Value| {
                of([text(0, "a"), call(1, "c", "n", "{}"), finish("tool-calls", replay(blocks))])
                    .interrupted_replay_state()
            };
            assert_eq!(cut(json!(["t", "c"])).unwrap().blocks.unwrap(), [json!("t")]);
            assert_eq!(cut(json!(["t"])), None);
            assert_eq!(of([text(0, "a")]).interrupted_replay_state(), None);
        }
    }

    fn any_chunk() -> impl Strategy<Value = StreamChunk> {
        (0u32..4, 0u8..8, "[a ]{0,3}").prop_map(|(index, what, s)| match what {
            0 => start(index, "text"),
            1 => start(index, "tool-call"),
            2 => text(index, &s),
            3 => reasoning(index, &s),
            4 => call(index, &s, &s, &s),
            5 => end(index, json!({"type": "text", "text": s})),
            6 => finish("max-tokens", Some(json!({"response": 0, "blocks": [1, 2]}))),
            _ => finish("stop", None),
        })
    }

    proptest! {
        /// Core invariant 31: a stored stream gives the same blocks as the live one.
        #[test]
        fn a_packed_stream_assembles_as_the_live_one(
            chunks in prop::collection::vec(any_chunk(), 0..24)
        ) {
            let live = of(chunks.clone());
            let timed = chunks.into_iter().enumerate();
            let records = pack(timed.map(|(time, chunk)| TimedChunk { time: time as i64, chunk }));
            let replayed = BlockAssembler::replay(&records);
            prop_assert_eq!(live.assemble().unwrap(), replayed.assemble().unwrap());
            prop_assert_eq!(live.interrupted(), replayed.interrupted());
            prop_assert_eq!(live.interrupted_replay_state(), replayed.interrupted_replay_state());
            if let Some(blocks) = live.assemble().unwrap().replay_state.and_then(|r| r.blocks) {
                prop_assert_eq!(blocks.len(), live.assemble().unwrap().content.len());
            }
        }
    }
}
