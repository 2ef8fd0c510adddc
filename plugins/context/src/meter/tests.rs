use std::sync::Arc;

use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk},
    config::HeaderReason,
    content::{ContentBlock, ToolCallBlock},
    event::{AssistantAttempt, NewEvent, RequestHeader, StepAt},
    packed::{TimedChunk, pack},
    session_state::{KnownKinds, SessionState},
    testing::{Grower, Script, assistant, header, user},
};
use proptest::prelude::*;

use super::*;
use crate::usage::{ContextPressure, TokenUsage};

fn usage(input: u64, output: u64) -> Usage {
    Usage { input_tokens: input, output_tokens: output, ..Usage::default() }
}

fn stream(
    chunks: impl IntoIterator<Item = StreamChunk>,
) -> Vec<playhouse_messages::packed::StreamRecord> {
    pack(chunks.into_iter().map(|chunk| TimedChunk { time: 0, chunk }))
}

fn said(text: &str) -> StreamChunk {
    StreamChunk::BlockEnd { index: 0, block: ContentBlock::text(text) }
}

fn answer(script: &mut Script, step: u32, text: &str, usage: Option<Usage>) -> Seq {
    let reported = usage.map(|usage| StreamChunk::Usage { usage });
    let finish = StreamChunk::Finish { reason: FinishReason::Stop, replay_state: None };
    script.push(NewEvent::append(EventBody::AssistantMessage(AssistantMessage {
        turn: 1,
        step,
        message: Arc::new(assistant(&format!("a{}", script.log.len()), text, &[])),
        stream: stream([said(text)].into_iter().chain(reported).chain([finish])),
        usage,
        interrupted: false,
    })))
}

fn failed(script: &mut Script, step: u32, usage: Usage) {
    let failure = Failure::new("RATE_LIMIT", "slow down");
    let finish =
        StreamChunk::Finish { reason: FinishReason::Error { failure }, replay_state: None };
    let stream = stream([StreamChunk::Usage { usage }, finish]);
    script.log_only(EventBody::AssistantAttempt(AssistantAttempt { turn: 1, step, stream }));
}

/// A first step that was asked "abcd" (9 tokens) and whose answer "efgh" (9 more) cost this.
fn asked(usage: Option<Usage>) -> Script {
    let mut script = Script::new();
    script.turn(1).step(1, 1);
    script.push(user("u", "abcd"));
    script.header(&[]);
    answer(&mut script, 1, "efgh", usage);
    script
}

fn metered(script: &Script) -> TokenMeter {
    let mut meter = TokenMeter::new();
    meter.catch_up(&script.log).unwrap();
    meter
}

fn measured(script: &Script) -> Measurement {
    metered(script).measure(None)
}

#[test]
fn an_empty_log_weighs_nothing() {
    let measurement = TokenMeter::new().measure(None);
    assert_eq!(measurement.baseline, Baseline::None { tokens: 0 });
    assert_eq!((measurement.total_tokens, measurement.nodes().len()), (0, 0));
    let tools = header(&["a"]);
    let estimate = prices::tools(&tools.tools);
    let measurement = TokenMeter::new().measure(Some(&tools));
    assert_eq!(measurement.baseline, Baseline::Estimated { tokens: estimate });
}

#[test]
fn a_report_covers_the_input_of_its_own_step() {
    // The question was admitted after the step had started; it must not count twice.
    let script = asked(Some(usage(1000, 10)));
    assert_eq!(measured(&script).total_tokens, 1010);
    let mut script = script;
    script.push(user("v", "abcd"));
    let measurement = measured(&script);
    assert_eq!((measurement.surface_delta_tokens, measurement.total_tokens), (9, 1019));
}

#[test]
fn calls_that_the_output_limit_dropped_were_paid_for_and_are_not_sent() {
    let mut script = Script::new();
    script.turn(1).step(1, 1);
    script.header(&[]);
    let call = ToolCallBlock { id: "c".into(), name: "read".into(), arguments: "x".repeat(400) };
    let price = prices::block(&ContentBlock::ToolCall(call.clone()));
    let chunks = [
        said("efgh"),
        StreamChunk::BlockEnd { index: 1, block: ContentBlock::ToolCall(call) },
        StreamChunk::Finish { reason: FinishReason::MaxTokens, replay_state: None },
    ];
    script.push(NewEvent::append(EventBody::AssistantMessage(AssistantMessage {
        turn: 1,
        step: 1,
        message: Arc::new(assistant("a", "efgh", &[])),
        stream: stream(chunks),
        usage: Some(usage(50, 200)),
        interrupted: false,
    })));
    let measurement = measured(&script);
    assert_eq!(measurement.baseline.tokens(), 250);
    assert_eq!(measurement.surface_delta_tokens, -(price as i64));
}

#[test]
fn without_a_report_or_a_header_all_is_estimated() {
    let script = asked(None);
    assert_eq!(measured(&script).baseline, Baseline::Estimated { tokens: 18 });
    let mut script = Script::new();
    script.turn(1).step(1, 1);
    answer(&mut script, 1, "efgh", Some(usage(1000, 1000)));
    assert_eq!(measured(&script).baseline, Baseline::Estimated { tokens: 9 });
}

#[test]
fn a_measurement_is_a_snapshot() {
    let mut script = asked(None);
    let mut meter = metered(&script);
    let before = meter.measure(None);
    script.replace(user("s", "sum"), 2, 4);
    meter.catch_up(&script.log).unwrap();
    assert_eq!(before.nodes().map(|node| node.seq).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(meter.measure(None).nodes().map(|node| node.seq).collect::<Vec<_>>(), [5]);
    let json = serde_json::to_value(&before).unwrap();
    assert_eq!(json["nodes"][0], serde_json::json!({"seq": 2, "tokens": 9}));
    assert_eq!(json["baseline"], serde_json::json!({"kind": "estimated", "tokens": 18}));
}

#[test]
fn the_window_is_divided_by_what_fills_it() {
    let mut script = Script::new();
    script.turn(1).step(1, 1);
    script.system("be brief");
    script.push(user("u", "abcd"));
    script.header(&["a"]);
    let parts = metered(&script).session_usage().context_breakdown;
    assert_eq!((parts.system_tokens, parts.message_tokens), (10, 9));
    assert_eq!(parts.tools_tokens, prices::tools(&header(&["a"]).tools));
    script.replace(NewEvent::append(script.system_event("")), 2, 2);
    assert_eq!(metered(&script).session_usage().context_breakdown.system_tokens, 4);
}

mod scenario {
    use super::*;

    #[test]
    fn llm_67_the_larger_of_report_and_estimate_is_the_baseline() {
        let low = measured(&asked(Some(usage(5, 5))));
        assert_eq!(low.baseline, Baseline::Estimated { tokens: 18 });
        let cached =
            Usage { cache_read_tokens: Some(3), cache_write_tokens: Some(2), ..usage(9, 4) };
        let high = measured(&asked(Some(cached)));
        assert_eq!(high.baseline, Baseline::Usage { tokens: 18, usage: cached });
        assert_eq!(high.total_tokens, 18);
    }

    #[test]
    fn llm_68_another_header_makes_the_report_worthless() {
        let mut script = Script::new();
        script.turn(1).step(1, 1);
        script.header(&["a", "b"]);
        answer(&mut script, 1, "efgh", Some(usage(1000, 10)));
        assert_eq!(measured(&script).total_tokens, 1010);
        // The same header again, in a new series, is the same.
        script.header_for(header(&["a", "b"]), HeaderReason::Series);
        assert_eq!(measured(&script).total_tokens, 1010);
        let reordered = header(&["b", "a"]);
        let estimate = prices::tools(&reordered.tools) + 9;
        let asked_with = metered(&script).measure(Some(&reordered));
        assert_eq!(asked_with.baseline, Baseline::Estimated { tokens: estimate });
        script.header_for(reordered, HeaderReason::Change);
        let logged = measured(&script);
        assert_eq!(logged.baseline, Baseline::Estimated { tokens: estimate });
        assert_eq!((logged.surface_delta_tokens, logged.total_tokens), (0, estimate));
        // With the old one again, the report counts again.
        assert_eq!(metered(&script).measure(Some(&header(&["a", "b"]))).total_tokens, 1010);
    }

    #[test]
    fn llm_69_a_compaction_takes_away_and_never_more_than_there_is() {
        let mut script = Script::new();
        script.turn(1).step(1, 1);
        script.push(user("u", &"x".repeat(4000)));
        script.header(&[]);
        // The provider found it heavier than the estimate of 1017.
        answer(&mut script, 1, "efgh", Some(usage(1300, 9)));
        script.replace(user("s", "abcd"), 2, 2);
        let measurement = measured(&script);
        assert_eq!((measurement.surface_delta_tokens, measurement.total_tokens), (-999, 310));
        // A baseline below what is taken away from it.
        let anchor =
            Anchor { header: None, baseline: Baseline::Estimated { tokens: 10 }, surface: 1000 };
        let meter = TokenMeter { anchor: Some(anchor), ..TokenMeter::new() };
        let measurement = meter.measure(None);
        assert_eq!((measurement.surface_delta_tokens, measurement.total_tokens), (-1000, 0));
    }

    #[test]
    fn llm_70_a_malformed_event_gives_the_same_error_again_and_stays_unread() {
        let step = |turn, step| NewEvent::log_only(EventBody::StepStart(StepAt { turn, step }));
        let late = NewEvent::append(EventBody::AssistantMessage(AssistantMessage {
            turn: 1,
            step: 2,
            message: Arc::new(assistant("late", "x", &[])),
            stream: vec![],
            usage: None,
            interrupted: false,
        }));
        let gone = NewEvent::replace(user("s", "x").body, 0, 0, vec![0]);
        for (event, code) in [
            (step(1, 2), "STEP_OPEN"),
            (
                NewEvent::log_only(EventBody::StepEnd(StepAt { turn: 1, step: 2 })),
                "NOT_THE_OPEN_STEP",
            ),
            (late, "NOT_THE_OPEN_STEP"),
            (gone, "NOT_A_SURFACE_NODE"),
        ] {
            let good = asked(Some(usage(1000, 10)));
            let mut log = good.log.clone();
            let seq = log.len();
            log.push(Arc::new(event.at(seq, 0)));
            log.push(Arc::new(user("after", "x").at(seq + 1, 0)));
            let mut meter = TokenMeter::new();
            let error = meter.catch_up(&log).unwrap_err();
            assert_eq!((error.code(), error.seq), (code, seq), "{error}");
            assert_eq!(meter.catch_up(&log), Err(error));
            assert_eq!(meter.measure(None), measured(&good), "what came before counts");
            // Others read on.
            assert_eq!(measured(&asked(None)).total_tokens, 18);
        }
    }

    #[test]
    fn llm_71_a_step_counts_once_and_pressure_leaves_the_answer_out() {
        // The stream's own report and the message's are one.
        let mut script = asked(Some(usage(100, 10)));
        let counted = |input, output| TokenUsage {
            uncached_input_tokens: input,
            output_tokens: output,
            ..TokenUsage::default()
        };
        assert_eq!(metered(&script).session_usage().token_usage, counted(100, 10));
        script.end_step(1, 1).step(1, 2);
        // A retried step: only its last attempt counts.
        failed(&mut script, 2, usage(200, 5));
        assert_eq!(metered(&script).session_usage().token_usage, counted(300, 15));
        let cached = Usage { cache_read_tokens: Some(30), ..usage(250, 7) };
        answer(&mut script, 2, "efgh", Some(cached));
        let session = metered(&script).session_usage();
        let total = TokenUsage { cache_read_tokens: 30, ..counted(350, 17) };
        assert_eq!(session.token_usage, total);
        let pressure = ContextPressure {
            pressure_tokens: Some(280),
            projected_tokens: Some(289),
            context_window: None,
        };
        assert_eq!(session.context_pressure, pressure);
    }
}

/// The log with reports and streams, which the grower leaves empty.
fn enriched(log: &Log) -> Log {
    let enrich = |event: &Arc<Event>| {
        let mut event = Event::clone(event);
        if let EventBody::AssistantMessage(data) = &mut event.body
            && data.usage.is_some()
        {
            let usage = usage(event.seq * 37 % 200, event.seq % 7);
            data.usage = Some(usage);
            if event.seq.is_multiple_of(3) {
                data.stream = stream([said("efghijkl"), StreamChunk::Usage { usage }]);
            }
        }
        Arc::new(event)
    };
    log.iter().map(enrich).collect()
}

proptest! {
    #[test]
    fn step_by_step_is_from_scratch(
        choices in prop::collection::vec(any::<(u8, u8)>(), 0..120),
        stops in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let whole = enriched(&Grower::grown(&choices).log);
        let mut stops: Vec<u64> = stops.iter().map(|at| at.index(whole.len() as usize + 1) as u64).collect();
        stops.push(whole.len());
        stops.sort_unstable();
        let mut meter = TokenMeter::new();
        for stop in stops {
            let log: Log = whole.range(0..stop).cloned().collect();
            meter.catch_up(&log).unwrap();
            let mut scratch = TokenMeter::new();
            scratch.catch_up(&log).unwrap();
            let other = header(&["a"]);
            for header in [None, Some(&other)] {
                prop_assert_eq!(meter.measure(header), scratch.measure(header));
            }
            prop_assert_eq!(meter.session_usage(), scratch.session_usage());
            // And both agree with the conversation as it stands, priced anew.
            let state = SessionState::fold(&log, &KnownKinds::new()).unwrap();
            let surface = state.surface();
            let prices: Vec<_> = surface.nodes().map(|seq| NodePrice {
                seq,
                tokens: prices::message(surface.message(&log, seq).unwrap()),
            }).collect();
            let measured = meter.measure(None);
            prop_assert_eq!(measured.nodes().collect::<Vec<_>>(), prices.clone());
            let total: u64 = prices.iter().map(|node| node.tokens).sum();
            prop_assert_eq!(measured.surface_tokens, total);
            let system: u64 = surface.system_nodes(&log).map(|(_, m)| prices::message(m)).sum();
            let parts = meter.session_usage().context_breakdown;
            prop_assert_eq!((parts.system_tokens, parts.message_tokens), (system, total - system));
        }
    }
}

#[test]
fn a_header_is_what_its_last_event_says() {
    let mut script = asked(Some(usage(1000, 10)));
    let mut other = header(&[]);
    other.config.max_tokens = Some(5);
    let body = RequestHeader {
        header: Arc::new(other),
        reason: HeaderReason::Change,
        starts_series: false,
    };
    script.log_only(EventBody::RequestHeader(body));
    assert_eq!(measured(&script).baseline, Baseline::Estimated { tokens: 18 });
}
