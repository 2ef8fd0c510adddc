use std::fmt::Write as _;

use serde_json::json;

use super::*;
use crate::{
    boundary::Boundary,
    chunk::StreamChunk,
    event::SurfaceOp,
    packed::{TimedChunk, pack},
    testing::{Script, user},
};

/// Events in short: `TR(c1,CODE,cites 5)`, `SE1.1`, `TE1(interrupted)`.
fn short(events: &[Event]) -> String {
    let mut text = String::new();
    for event in events {
        let _ = match &event.body {
            EventBody::ToolResult(data) => write!(
                text,
                "TR({},{},{:?}) ",
                data.message.tool_call_id.as_ref().unwrap(),
                data.error.as_ref().unwrap().code.trim_start_matches("TOOL_"),
                event.sources
            ),
            EventBody::StepEnd(at) => write!(text, "SE{}.{} ", at.turn, at.step),
            EventBody::TurnEnd(end) => write!(text, "TE{}({}) ", end.turn, end.reason.kind()),
            EventBody::AssistantMessage(data) => write!(text, "A!({}) ", data.message.text()),
            EventBody::EndSeed(marker) => write!(text, "ES({}) ", marker.inherited),
            other => write!(text, "{} ", other.kind()),
        };
    }
    text.trim_end().to_owned()
}

fn write(script: &mut Script, events: &str) {
    for event in events.split_whitespace() {
        match event {
            "TS1" => drop_ref(script.turn(1)),
            "TE1" => drop_ref(script.end_turn(1, TurnEndReason::Completed)),
            "SS1" => drop_ref(script.step(1, 1)),
            "SE1" => drop_ref(script.end_step(1, 1)),
            "SS2" => drop_ref(script.step(1, 2)),
            "U" => drop(script.push(user("u", "u"))),
            "H" => drop(script.header(&[])),
            "AT" => drop(script.attempt()),
            "A(text)" => drop(script.assistant("text", &[])),
            "A(c1)" => drop(script.assistant("", &["c1"])),
            "A(c1,c2)" => drop(script.assistant("", &["c1", "c2"])),
            "TC(c1)" => drop(script.call("c1")),
            "TC(c2)" => drop(script.call("c2")),
            "TR(c1)" => drop(script.result("c1", "x")),
            "TR(c2)" => drop(script.result("c2", "x")),
            "NOTE" => drop(script.push(NewEvent::custom("x/note", json!(1)))),
            other => panic!("{other}"),
        }
    }
}

fn drop_ref(_: &mut Script) {}

fn log(events: &str) -> Log {
    let mut script = Script::new();
    write(&mut script, events);
    script.log
}

fn closed(mut log: Log, closers: Vec<Event>) -> Log {
    for event in closers {
        log.push(Arc::new(event));
    }
    log
}

const FIRST: &str = "TS1 SS1";

#[test]
fn closers_cite_call_and_carry_the_texts() {
    let log = log("TS1 SS1 A(c1,c2) TC(c1)");
    let closers = interrupted_closers(&log, None);
    let EventBody::ToolResult(first) = &closers[0].body else { unreachable!() };
    assert_eq!(first.message.id, "interrupted-tool-result-c1-4");
    assert_eq!(first.message.is_error, Some(true));
    assert_eq!(first.message.text(), OUTCOME_UNKNOWN_TEXT);
    assert_eq!(first.error.as_ref().unwrap().name, "ToolOutcomeUnknownError");
    let EventBody::ToolResult(second) = &closers[1].body else { unreachable!() };
    assert_eq!(second.message.id, "interrupted-tool-result-c2-5");
    assert_eq!(second.message.text(), NOT_STARTED_TEXT);
    assert_eq!(second.error.as_ref().unwrap().name, "ToolNotStartedError");
    assert_eq!(closers.iter().map(|e| e.seq).collect::<Vec<_>>(), [4, 5, 6, 7]);
    assert!(closers.iter().all(|event| event.time == log.last().unwrap().time));
    assert_eq!(closers[0].surface, Some(SurfaceOp::Append));
}

/// The texts are protocol: their bytes are pinned.
#[test]
fn the_texts_are_exact() {
    let tail = "Decide whether to retry from the tool semantics: retry only if the operation is \
        read-only or idempotent; if it may have side effects, first verify external state or ask \
        the user. Do not retry blindly.";
    for (text, head) in [
        (
            OUTCOME_UNKNOWN_TEXT,
            "The tool call was interrupted after it was recorded, but no result was durably recorded. Its outcome is unknown. ",
        ),
        (
            FORKED_OUTCOME_UNKNOWN_TEXT,
            "The history inherited by this branch records this tool call starting but does not include its result. The parent session may have completed it after the fork point. ",
        ),
        (
            FORKED_NOT_STARTED_TEXT,
            "The history inherited by this branch has no record of this tool call starting. The parent session may have executed it after the fork point. ",
        ),
        (
            NOT_STARTED_TEXT,
            "The tool call was interrupted before the Harness recorded it as started. Retry it if it is still needed.",
        ),
    ] {
        let tail = if text == NOT_STARTED_TEXT { "" } else { tail };
        assert_eq!(text, format!("{head}{tail}"));
        assert!(!text.contains("  "));
    }
}

#[test]
fn an_id_used_again_starts_over_in_its_place() {
    let mut script = Script::new();
    write(&mut script, "TS1 SS1 A(c1,c2) TC(c1) TR(c1)");
    let mut tracker = RecoveryTracker::new();
    for event in script.log.iter() {
        tracker.observe(Candidate::from(&**event));
    }
    let ids = |tracker: &RecoveryTracker| {
        tracker.pending().map(|call| (call.id.to_string(), call.started)).collect::<Vec<_>>()
    };
    assert_eq!(ids(&tracker), [("c2".to_owned(), None)]);
    let again = script.log.get(2).unwrap();
    tracker.observe(Candidate::from(&**again));
    assert_eq!(ids(&tracker), [("c1".to_owned(), None), ("c2".to_owned(), None)]);
    assert_eq!(tracker.started(&"c1".into()), None);
}

fn tail(step: u32, chunks: serde_json::Value) -> UnsettledTail {
    let chunks: Vec<StreamChunk> = serde_json::from_value(chunks).unwrap();
    let timed = chunks.into_iter().map(|chunk| TimedChunk { time: 5, chunk });
    UnsettledTail {
        turn: 1,
        step,
        attempt: 2,
        provider: "p".into(),
        model: "m".into(),
        records: pack(timed),
    }
}

#[test]
fn the_tail_s_visible_text_comes_first() {
    let log = log("TS1 SS1 U H AT");
    let seen = tail(
        1,
        json!([
            {"type": "text-delta", "index": 0, "text": "Hel"},
            {"type": "tool-call-delta", "index": 1, "id": "c", "name": "n", "argumentsDelta": "{"},
            {"type": "usage", "usage": {"inputTokens": 3, "outputTokens": 1}},
        ]),
    );
    let closers = interrupted_closers(&log, Some(&seen));
    assert_eq!(short(&closers), "A!(Hel) SE1.1 TE1(interrupted)");
    let EventBody::AssistantMessage(data) = &closers[0].body else { unreachable!() };
    assert_eq!(data.message.id, "interrupted-assistant-1.1.2");
    assert!(data.interrupted);
    assert_eq!(data.usage.unwrap().input_tokens, 3);
    assert_eq!(data.stream, seen.records);
    assert_eq!(closers[0].time, log.last().unwrap().time);
    let text = serde_json::to_string(&seen).unwrap();
    assert_eq!(serde_json::from_str::<UnsettledTail>(&text).unwrap(), seen);
}

#[test]
fn a_tail_without_visible_text_or_out_of_place_gives_no_message() {
    let text = json!([{"type": "text-delta", "index": 0, "text": "Hel"}]);
    let plain = "SE1.1 TE1(interrupted)";
    let blank = tail(1, json!([{"type": "text-delta", "index": 0, "text": " "}]));
    assert_eq!(short(&interrupted_closers(&log(FIRST), Some(&blank))), plain);
    assert_eq!(short(&interrupted_closers(&log(FIRST), Some(&tail(2, text.clone())))), plain);
    let settled = log("TS1 SS1 A(text)");
    assert_eq!(short(&interrupted_closers(&settled, Some(&tail(1, text.clone())))), plain);
    let between = log("TS1 SS1 SE1");
    assert_eq!(
        short(&interrupted_closers(&between, Some(&tail(1, text.clone())))),
        "TE1(interrupted)"
    );
    assert!(interrupted_closers(&log("TS1 TE1"), Some(&tail(1, text))).is_empty());
}

#[test]
fn a_marker_is_appended_once() {
    assert_eq!(
        construction_marker(&Log::new()).unwrap().body,
        EventBody::EndSeed(EndSeed { inherited: false })
    );
    let log = log("TS1 TE1");
    let marker = construction_marker(&log).unwrap();
    let marked = closed(log, vec![marker.at(2, 0)]);
    assert_eq!(construction_marker(&marked), None);
    let forked = fork_seed(&Log::new(), None, 7).unwrap();
    assert_eq!(construction_marker(&forked.log), None);
}

mod scenario {
    use super::*;

    /// Section 6.6 row by row.
    #[test]
    fn core_134_each_crash_point_has_its_exact_closers() {
        for (events, expected) in [
            ("", ""),
            ("TS1 TE1", ""),
            ("TS1 TE1 NOTE U", ""),
            ("TS1", "TE1(interrupted)"),
            ("TS1 NOTE", "TE1(interrupted)"),
            ("TS1 SS1 SE1", "TE1(interrupted)"),
            ("TS1 SS1 A(c1) SE1", "TE1(interrupted)"),
            (FIRST, "SE1.1 TE1(interrupted)"),
            ("TS1 SS1 U H AT", "SE1.1 TE1(interrupted)"),
            ("TS1 SS1 A(text)", "SE1.1 TE1(interrupted)"),
            (
                "TS1 SS1 A(c1,c2)",
                "TR(c1,NOT_STARTED,[]) TR(c2,NOT_STARTED,[]) SE1.1 TE1(interrupted)",
            ),
            (
                "TS1 SS1 A(c1,c2) TC(c1)",
                "TR(c1,OUTCOME_UNKNOWN,[3]) TR(c2,NOT_STARTED,[]) SE1.1 TE1(interrupted)",
            ),
            (
                "TS1 SS1 A(c1,c2) TC(c1) TC(c2) TR(c2)",
                "TR(c1,OUTCOME_UNKNOWN,[3]) SE1.1 TE1(interrupted)",
            ),
            ("TS1 SS1 A(c1) TC(c1) TR(c1)", "SE1.1 TE1(interrupted)"),
            ("TS1 SS1 TC(c1)", "SE1.1 TE1(interrupted)"),
            ("TS1 SS1 A(c1) SE1 SS2", "SE1.2 TE1(interrupted)"),
        ] {
            let log = log(events);
            let closers = interrupted_closers(&log, None);
            assert_eq!(short(&closers), expected, "after `{events}`");
            assert_eq!(closers, interrupted_closers(&log, None), "deterministic");
            let closed = closed(log, closers);
            assert!(interrupted_closers(&closed, None).is_empty(), "idempotent");
            let mut boundary = Boundary::new();
            for event in closed.iter() {
                boundary = boundary.next(Candidate::from(&**event)).unwrap();
            }
            assert_eq!(boundary.open_turn(), None, "balanced");
        }
    }

    #[test]
    fn newest_58_crash_after_turn_start() {
        let log = log("TS1");
        let closed = closed(log.clone(), interrupted_closers(&log, None));
        assert_eq!(closed.len(), 2);
        let marker = construction_marker(&closed).unwrap();
        let resumed = super::closed(closed, vec![marker.at(2, 0)]);
        assert!(interrupted_closers(&resumed, None).is_empty());
        assert_eq!(construction_marker(&resumed), None);
    }

    #[test]
    fn newest_59_crash_after_tool_call() {
        let log = log("TS1 SS1 A(c1) TC(c1)");
        let closers = interrupted_closers(&log, None);
        assert_eq!(short(&closers), "TR(c1,OUTCOME_UNKNOWN,[3]) SE1.1 TE1(interrupted)");
        assert_eq!(closers.iter().map(|e| e.seq).collect::<Vec<_>>(), [4, 5, 6]);
    }

    #[test]
    fn newest_50_a_failed_step_answers_started_and_unstarted_calls() {
        let mut script = Script::new();
        write(&mut script, "TS1 SS1");
        script.assistant("", &["c1", "c2", "c3"]);
        write(&mut script, "TC(c1) TR(c1) TC(c2)");
        let mut tracker = RecoveryTracker::new();
        for event in script.log.iter() {
            tracker.observe(Candidate::from(&**event));
        }
        let at = StepAt { turn: 1, step: 1 };
        let first = script.log.len();
        let results = failed_step_results(&tracker, at, first);
        let events: Vec<Event> =
            results.into_iter().zip(first..).map(|(event, seq)| event.at(seq, 0)).collect();
        assert_eq!(short(&events), "TR(c2,OUTCOME_UNKNOWN,[5]) TR(c3,NOT_STARTED,[])");
        assert_eq!(
            events[1].body.message().unwrap().id,
            format!("interrupted-tool-result-c3-{}", first + 1).as_str()
        );
        for event in &events {
            tracker.observe(Candidate::from(event));
        }
        assert!(failed_step_results(&tracker, at, 99).is_empty());
    }

    #[test]
    fn newest_51_calls_that_never_started_are_all_not_started() {
        let mut script = Script::new();
        write(&mut script, "TS1 SS1");
        script.assistant("", &["c1", "c2", "c3"]);
        write(&mut script, "TC(c1) TR(c1)");
        let closers = interrupted_closers(&script.log, None);
        let expected = "TR(c2,NOT_STARTED,[]) TR(c3,NOT_STARTED,[]) SE1.1 TE1(interrupted)";
        assert_eq!(short(&closers), expected);
    }

    #[test]
    fn newest_54_a_result_of_another_step_or_a_rewrite_answers_nothing() {
        let mut script = Script::new();
        write(&mut script, "TS1 SS1 A(c1) TC(c1) TR(c1) SE1 SS2 A(c1) TC(c1)");
        let mut tracker = RecoveryTracker::new();
        for event in script.log.iter() {
            tracker.observe(Candidate::from(&**event));
        }
        let old = script.log.get(4).unwrap();
        tracker.observe(Candidate::from(&**old));
        assert_eq!(tracker.pending().count(), 1, "it names step 1");
        // A call of the same id, started again in this step: rewriting its first result is no answer.
        write(&mut script, "TR(c1) TC(c1)");
        let mut tracker = RecoveryTracker::new();
        for event in script.log.iter() {
            tracker.observe(Candidate::from(&**event));
        }
        let first = script.log.get(9).unwrap();
        let rewrite = NewEvent::replace(first.body.clone(), 9, 9, vec![9]);
        tracker.observe(Candidate::new(11, &rewrite));
        assert_eq!(tracker.pending().count(), 1);
        tracker.observe(Candidate::from(&**first));
        assert_eq!(tracker.pending().count(), 0);
    }

    #[test]
    fn core_138_a_fork_in_a_tool_step_closes_the_child_with_forked_texts() {
        let parent = log("TS1 SS1 A(c1,c2) TC(c1) TR(c1)");
        let seed = fork_seed(&parent, Some(3), 99).unwrap();
        assert_eq!(seed.inherited, 4);
        let own: Vec<Event> = seed.log.range(4..99).map(|event| (**event).clone()).collect();
        assert_eq!(
            short(&own),
            "ES(true) TR(c1,OUTCOME_UNKNOWN,[3]) TR(c2,NOT_STARTED,[]) SE1.1 TE1(forked)"
        );
        assert!(own.iter().all(|event| event.time == 3));
        assert_eq!(own[1].body.message().unwrap().id, "forked-tool-result-c1-5");
        assert_eq!(own[1].body.message().unwrap().text(), FORKED_OUTCOME_UNKNOWN_TEXT);
        assert_eq!(own[2].body.message().unwrap().text(), FORKED_NOT_STARTED_TEXT);
        assert_eq!(parent.len(), 5);
    }

    #[test]
    fn core_139_forks_of_nothing_and_of_forks_have_one_final_marker() {
        let empty = fork_seed(&Log::new(), None, 7).unwrap();
        assert_eq!((empty.log.len(), empty.inherited), (1, 0));
        assert_eq!(empty.log.get(0).unwrap().time, 7);
        let again = fork_seed(&empty.log, None, 9).unwrap();
        assert_eq!((again.log.len(), again.inherited), (2, 1));
        let own: Vec<Event> = again.log.range(1..2).map(|event| (**event).clone()).collect();
        assert_eq!(short(&own), "ES(true)");
    }

    #[test]
    fn core_140_a_cut_beyond_the_end_is_refused() {
        let log = log("TS1 TE1");
        for boundary in [2, 99, u64::MAX] {
            let fault = fork_seed(&log, Some(boundary), 0).unwrap_err();
            assert_eq!(fault.code(), "INVALID_BOUNDARY");
            assert_eq!(fault, InvalidBoundary { boundary, len: 2 });
        }
        assert_eq!(fork_seed(&log, Some(1), 0).unwrap().inherited, 2);
        assert_eq!(fork_seed(&log, None, 0).unwrap().inherited, 2);
    }
}
