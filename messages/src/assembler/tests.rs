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
        ("start then deltas", vec![start(0, "text"), text(0, "a"), text(0, "b")], json!([t("ab")])),
        ("a known index opens once", vec![text(0, "a"), start(0, "tool-call")], json!([t("a")])),
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
    fn llm_1_interleaved_blocks_keep_their_texts_and_first_seen_order() {
        let chunks = [
            start(1, "text"),
            start(0, "reasoning"),
            text(1, "a"),
            reasoning(0, "x"),
            text(1, "b"),
            reasoning(0, "y"),
        ];
        let expected = [ContentBlock::text("ab"), ContentBlock::Reasoning("xy".into())];
        assert_eq!(of(chunks).assemble().unwrap().content, expected);
    }

    #[test]
    fn llm_2_a_delta_opens_its_block() {
        assert_eq!(blocks(&of([text(0, "a")])), json!([{"type": "text", "text": "a"}]));
    }

    #[test]
    fn llm_3_llm_4_the_first_end_is_the_last_word() {
        let said = |text: &str| json!({"type": "text", "text": text});
        let assembler = of([
            text(0, "deltas"),
            end(0, said("end")),
            end(0, said("second end")),
            text(0, "late delta"),
        ]);
        assert_eq!(blocks(&assembler), json!([said("end")]));
    }

    #[test]
    fn llm_5_llm_6_a_call_is_named_once_and_has_a_name_of_last_resort() {
        let unnamed = json!({"type": "tool-call-delta", "index": 0, "id": "last",
            "argumentsDelta": "}"});
        let calls = of([call(0, "first", "read", "{"), chunk(unnamed), start(3, "tool-call")]);
        let call = |id: &str, name: &str, arguments: &str| json!({"type": "tool-call", "id": id, "name": name, "arguments": arguments});
        assert_eq!(blocks(&calls), json!([call("last", "read", "{}"), call("call-3", "", "")]));
    }

    #[test]
    fn llm_7_an_unknown_block_must_end() {
        let open = of([start(0, "hologram")]);
        let fault = open.assemble().unwrap_err();
        assert_eq!(fault.to_string(), "cannot assemble incomplete block of type \"hologram\"");
        assert_eq!(fault.code(), "INCOMPLETE_BLOCK");
        let whole = json!({"type": "hologram", "depth": 3});
        assert_eq!(blocks(&of([start(0, "hologram"), end(0, whole.clone())])), json!([whole]));
    }

    #[test]
    fn llm_8_the_output_limit_drops_every_call_but_not_from_the_bill() {
        let cut = |entries: Value| {
            of([
                end(0, json!({"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"})),
                text(1, "a"),
                call(2, "d", "n", "{\"p"),
                finish("max-tokens", Some(json!({"response": 1, "blocks": entries}))),
            ])
        };
        let assembled = cut(json!(["c", "t", "d"])).assemble().unwrap();
        assert_eq!(assembled.content, [ContentBlock::text("a")]);
        assert_eq!(assembled.replay_state.unwrap().blocks.unwrap(), [json!("t")]);
        let mismatched = cut(json!(["c", "t"]));
        assert_eq!(mismatched.assemble().unwrap().replay_state, None);
        assert_eq!(mismatched.produced().len(), 3);
    }

    #[test]
    fn llm_9_of_a_cut_stream_only_what_can_be_seen_stays() {
        let cut = of([text(0, "  "), reasoning(1, "why"), call(2, "c", "n", "{")]).interrupted();
        assert_eq!(cut, [ContentBlock::Reasoning("why".into())]);
    }

    #[test]
    fn llm_10_llm_12_the_last_report_wins_and_no_finish_is_a_stop() {
        let usage = |n: u64| {
            chunk(json!({"type": "usage", "usage": {"inputTokens": n, "outputTokens": 0}}))
        };
        let chunks = [usage(1), usage(2), finish("stop", None), finish("tool-calls", None)];
        let assembler = of(chunks);
        assert_eq!(assembler.usage().unwrap().input_tokens, 2);
        assert_eq!(assembler.finish_reason(), FinishReason::ToolCalls);
        assert_eq!((of([]).finish_reason(), of([]).usage()), (FinishReason::Stop, None));
    }

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
