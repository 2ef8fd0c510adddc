use std::sync::Arc;

use playhouse_messages::{
    chunk::{StreamChunk, Usage},
    event::{NewEvent, ToolCall, ToolResult, TurnEnd, TurnEndReason},
    message::Message,
    packed::{TimedChunk, pack},
    testing::assistant,
};

use super::*;

const AT: StepAt = StepAt { turn: 1, step: 1 };

fn fold(events: Vec<(i64, EventBody)>) -> Stats {
    let mut state = SessionStats.init();
    for (seq, (time, body)) in (0..).zip(events) {
        let event =
            if body.is_surface() { NewEvent::append(body) } else { NewEvent::log_only(body) };
        SessionStats.apply(&mut state, &event.at(seq, time));
    }
    // A state that is kept in between goes on as it was.
    let kept = serde_json::to_value(&state).unwrap();
    assert_eq!(serde_json::from_value::<StatsState>(kept).unwrap(), state);
    state.stats
}

fn stream(texts: &[(i64, &str)]) -> Vec<StreamRecord> {
    pack(texts.iter().map(|(time, text)| {
        let chunk = StreamChunk::TextDelta { index: 0, text: (*text).to_owned() };
        TimedChunk { time: *time, chunk }
    }))
}

fn answer(texts: &[(i64, &str)], output_tokens: Option<u64>) -> EventBody {
    EventBody::AssistantMessage(AssistantMessage {
        turn: 1,
        step: 1,
        message: Arc::new(assistant("a", "x", &[])),
        stream: stream(texts),
        usage: output_tokens.map(|output_tokens| Usage { output_tokens, ..Usage::default() }),
        interrupted: false,
    })
}

fn call(id: &str) -> EventBody {
    let (call_id, name, arguments) = (id.into(), "t".into(), "{}".into());
    EventBody::ToolCall(ToolCall { turn: 1, step: 1, call_id, name, arguments })
}

fn result(id: &str) -> EventBody {
    let message = Arc::new(Message::tool("r", &id.into(), false, vec![]));
    EventBody::ToolResult(ToolResult { turn: 1, step: 1, message, error: None, meta: None })
}

fn turn_end() -> EventBody {
    EventBody::TurnEnd(TurnEnd { turn: 1, reason: TurnEndReason::Completed })
}

#[test]
fn a_step_is_measured_from_its_start_over_its_retries() {
    let failed = playhouse_messages::event::AssistantAttempt {
        turn: 1,
        step: 1,
        stream: stream(&[(130, ""), (150, "a")]),
    };
    let stats = fold(vec![
        (100, EventBody::StepStart(AT)),
        (160, EventBody::AssistantAttempt(failed)),
        (400, answer(&[(300, "b"), (390, "c")], Some(7))),
        (410, EventBody::StepEnd(AT)),
        (420, EventBody::StepStart(StepAt { turn: 1, step: 2 })),
        (421, EventBody::StepEnd(StepAt { turn: 1, step: 2 })),
        (430, turn_end()),
    ]);
    assert_eq!(
        stats,
        Stats {
            turns: 1,
            steps: 2,
            llm_ms: 300,
            ttft_ms: 50,
            ttft_steps: 1,
            decode_ms: 250,
            decode_tokens: 7,
            ..Stats::default()
        }
    );
}

#[test]
fn an_answer_whose_output_nobody_counted_has_no_decoding() {
    let events = vec![(0, EventBody::StepStart(AT)), (50, answer(&[(10, "x")], None))];
    let stats = fold(events);
    assert_eq!((stats.decode_ms, stats.decode_tokens, stats.ttft_ms), (0, 0, 10));
    // An answer of another step counts for nothing.
    let other = StepAt { turn: 1, step: 2 };
    let stats = fold(vec![(0, EventBody::StepStart(other)), (50, answer(&[(10, "x")], Some(1)))]);
    assert_eq!(stats, Stats::default());
}

#[test]
fn calls_are_matched_by_id_and_leftovers_go_with_their_turn() {
    let stats = fold(vec![
        (0, call("a")),
        (5, call("__proto__")),
        (6, call("a")),
        (10, result("a")),
        (11, result("a")),
        (12, result("orphan")),
        (25, result("__proto__")),
        (30, call("left")),
        (40, turn_end()),
        (99, result("left")),
    ]);
    assert_eq!(stats, Stats { tool_ms: 30, ..Stats::default() });
}

mod scenario {
    use super::*;

    #[test]
    fn persistence_93_a_cancelled_step_counts_and_a_clock_that_goes_back_takes_no_time() {
        let cancelled = vec![(10, EventBody::StepStart(AT)), (90, EventBody::StepEnd(AT))];
        assert_eq!(fold(cancelled), Stats { turns: 1, steps: 1, ..Stats::default() });
        let stats = fold(vec![
            (100, EventBody::StepStart(AT)),
            (50, answer(&[(70, "x")], Some(3))),
            (40, call("c")),
            (30, result("c")),
            (20, EventBody::StepEnd(AT)),
        ]);
        let counts =
            Stats { turns: 1, steps: 1, ttft_steps: 1, decode_tokens: 3, ..Stats::default() };
        assert_eq!(stats, counts);
    }
}
