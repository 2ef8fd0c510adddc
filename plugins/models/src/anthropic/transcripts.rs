//! Recorded streams and what becomes of them, whole and cut at every byte.

use super::decode::Decoder;
use crate::http::transcript;

#[track_caller]
fn check(body: &str, expected: &[&str]) {
    transcript::check::<Decoder>(body, expected);
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

/// An event as the wire frames it.
fn event(kind: &str, rest: &str) -> String {
    let comma = if rest.is_empty() { "" } else { "," };
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{comma}{rest}}}\n\n")
}

fn start(index: u64, block: &str) -> String {
    event("content_block_start", &format!("\"index\":{index},\"content_block\":{block}"))
}

fn delta(index: u64, delta: &str) -> String {
    event("content_block_delta", &format!("\"index\":{index},\"delta\":{delta}"))
}

fn stop(index: u64) -> String {
    event("content_block_stop", &format!("\"index\":{index}"))
}

fn text(index: u64, text: &str) -> String {
    delta(index, &format!(r#"{{"type":"text_delta","text":"{text}"}}"#))
}

fn json(index: u64, part: &str) -> String {
    let part = to_json(&part);
    delta(index, &format!(r#"{{"type":"input_json_delta","partial_json":{part}}}"#))
}

fn ended(reason: &str) -> String {
    event("message_delta", &format!(r#""delta":{{"stop_reason":"{reason}","stop_sequence":null}}"#))
}

fn body(parts: &[String]) -> String {
    parts.concat() + &event("message_stop", "")
}

const TEXT: &str = r#"{"type":"text","text":""}"#;
const THINKING: &str = r#"{"type":"thinking","thinking":"","signature":""}"#;
const CLOSED: &str = "F(STREAM_CLOSED: SSE stream ended without message_stop)";
const EMPTY: &str = "F(EMPTY_RESPONSE: model returned a completed response with no content)";
const X: [&str; 4] = ["bs(0,text)", "td(0,x)", "be(0,x)", "F(stop)"];

fn x() -> String {
    start(0, TEXT) + &text(0, "x") + &stop(0)
}

mod scenario {
    use super::*;

    #[test]
    fn text_with_pings_and_running_counts() {
        let head = r#""message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":25,"cache_read_input_tokens":7,"cache_creation_input_tokens":3,"output_tokens":1}}"#;
        let parts = [
            event("message_start", head),
            start(0, TEXT),
            event("ping", ""),
            text(0, "Hel"),
            text(0, ""),
            text(0, "lo"),
            stop(0),
            event("message_delta", r#""delta":{"stop_reason":null},"usage":{"output_tokens":9}"#),
            event(
                "message_delta",
                r#""delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15,"output_tokens_details":{"thinking_tokens":4}}"#,
            ),
        ];
        let expected = [
            "bs(0,text)",
            "td(0,Hel)",
            "td(0,lo)",
            "be(0,Hello)",
            "U(25,15,cached 7,written 3,reasoning 4)",
            "F(stop)",
        ];
        check(&body(&parts), &expected);
    }

    #[test]
    fn the_last_counts_win() {
        let usage = r#""usage":{"input_tokens":8,"output_tokens":2,"cache_read_input_tokens":0}"#;
        let parts = [
            event("message_start", r#""message":{"id":"m","usage":{"input_tokens":5}}"#),
            x(),
            event("message_delta", &format!(r#""delta":{{"stop_reason":"end_turn"}},{usage}"#)),
        ];
        let expected = ["bs(0,text)", "td(0,x)", "be(0,x)", "U(8,2,cached 0)", "F(stop)"];
        check(&body(&parts), &expected);
    }

    #[test]
    fn thinking_keeps_its_signature_for_the_next_request() {
        let parts = [
            event("message_start", r#""message":{"id":"msg_7"}"#),
            start(0, THINKING),
            delta(0, r#"{"type":"thinking_delta","thinking":"th"}"#),
            delta(0, r#"{"type":"thinking_delta","thinking":"ink"}"#),
            delta(0, r#"{"type":"signature_delta","signature":"Eq"}"#),
            delta(0, r#"{"type":"signature_delta","signature":"Qw"}"#),
            stop(0),
            start(1, r#"{"type":"redacted_thinking","data":"blob"}"#),
            stop(1),
            start(2, TEXT),
            text(2, "ok"),
            stop(2),
            ended("end_turn"),
        ];
        let state = r#"F(stop) {"response":{"kind":"anthropic","version":1,"id":"msg_7"},"blocks":[{"signature":"EqQw"},{"redacted_thinking":"blob"},null]}"#;
        let expected = [
            "bs(0,reasoning)",
            "rd(0,th)",
            "rd(0,ink)",
            "be(0,think)",
            "bs(1,reasoning)",
            "be(1,)",
            "bs(2,text)",
            "td(2,ok)",
            "be(2,ok)",
            state,
        ];
        check(&body(&parts), &expected);
    }

    #[test]
    fn thinking_without_text_is_kept_for_its_signature() {
        let parts = [
            start(0, THINKING),
            delta(0, r#"{"type":"signature_delta","signature":"s"}"#),
            stop(0),
            x().replace("\"index\":0", "\"index\":1"),
            ended("end_turn"),
        ];
        let state = r#"F(stop) {"response":{"kind":"anthropic","version":1},"blocks":[{"signature":"s"},null]}"#;
        let expected = ["bs(0,reasoning)", "be(0,)", "bs(1,text)", "td(1,x)", "be(1,x)", state];
        check(&body(&parts), &expected);
    }

    #[test]
    fn parallel_calls_in_pieces_and_with_raw_arguments() {
        let call = |id: &str, name: &str| {
            format!(r#"{{"type":"tool_use","id":"{id}","name":"{name}","input":{{}}}}"#)
        };
        let parts = [
            start(0, TEXT),
            text(0, "Let me"),
            stop(0),
            start(1, &call("toolu_1", "read")),
            json(1, ""),
            json(1, "{\"p\": "),
            json(1, "\"/a\"}"),
            stop(1),
            start(2, &call("toolu_2", "list")),
            json(2, ""),
            stop(2),
            start(3, &call("toolu_3", "broken")),
            json(3, "{\"b\": /"),
            stop(3),
            ended("tool_use"),
        ];
        let expected = [
            "bs(0,text)",
            "td(0,Let me)",
            "be(0,Let me)",
            "bs(1,tool-call)",
            "tc(1,toolu_1,read,)",
            "tc(1,toolu_1,read,{\"p\": )",
            "tc(1,toolu_1,read,\"/a\"})",
            "be(1,toolu_1/read/{\"p\": \"/a\"})",
            "bs(2,tool-call)",
            "tc(2,toolu_2,list,)",
            "tc(2,toolu_2,list,{})",
            "be(2,toolu_2/list/{})",
            "bs(3,tool-call)",
            "tc(3,toolu_3,broken,)",
            "tc(3,toolu_3,broken,{\"b\": /)",
            "be(3,toolu_3/broken/{\"b\": /)",
            "F(tool-calls)",
        ];
        check(&body(&parts), &expected);
    }

    #[test]
    fn blocks_and_events_of_unknown_kinds_are_left_out() {
        let parts = [
            event("message_started_soon", "\"x\":1"),
            start(0, r#"{"type":"server_tool_use","id":"s","name":"web_search","input":{}}"#),
            json(0, "{}"),
            stop(0),
            start(1, TEXT),
            delta(1, r#"{"type":"citations_delta","citation":{}}"#),
            text(1, "x"),
            stop(1),
            ended("end_turn"),
        ];
        check(&body(&parts), &X);
    }

    #[test]
    fn crlf_comments_fields_and_multi_line_data_make_no_difference() {
        let plain = body(&[x(), ended("end_turn")]);
        check(&plain.replace('\n', "\r\n"), &X);
        check(&plain.replace('\n', "\r"), &X);
        check(&plain.replace("event: ", ": note\n\nid: 7\nevent: "), &X);
        check(&plain.replace("{\"type\"", "{\ndata: \"type\"").replace("data: {", "data:{"), &X);
    }

    #[test]
    fn characters_that_reads_cut_apart_are_whole() {
        let parts = [start(0, TEXT), text(0, "é€😀"), stop(0), ended("end_turn")];
        check(&body(&parts), &["bs(0,text)", "td(0,é€😀)", "be(0,é€😀)", "F(stop)"]);
    }

    #[test]
    fn a_body_that_ends_early_is_closed() {
        let parts = start(0, TEXT) + &text(0, "par");
        check(&parts, &["bs(0,text)", "td(0,par)", CLOSED]);
        check("", &[CLOSED]);
        // The last event lacks its blank line.
        let whole = body(&[x(), ended("end_turn")]);
        check(whole.trim_end(), &["bs(0,text)", "td(0,x)", "be(0,x)", CLOSED]);
    }

    #[test]
    fn an_error_within_the_stream_is_classified_and_ends_it() {
        let error = |kind: &str, message: &str| {
            event("error", &format!(r#""error":{{"type":"{kind}","message":"{message}"}}"#))
        };
        let failed = |kind: &str, message: &str, expected: &str| {
            let parts = start(0, TEXT) + &text(0, "x") + &error(kind, message) + &stop(0);
            check(&parts, &["bs(0,text)", "td(0,x)", expected]);
        };
        failed("overloaded_error", "Overloaded", "F(SERVER: Overloaded)");
        failed("rate_limit_error", "slow", "F(RATE_LIMIT: slow)");
        failed(
            "invalid_request_error",
            "prompt is too long: 2 > 1",
            "F(CONTEXT_WINDOW_EXCEEDED: prompt is too long: 2 > 1)",
        );
        failed("news_error", "what?", "F(SERVER: what?)");
    }

    #[test]
    fn what_is_no_event_is_malformed() {
        for data in ["{oops", "null", "7", "[]", "{}", r#"{"type":"content_block_delta"}"#, ""] {
            let failed = format!("F(MALFORMED_RESPONSE: malformed SSE payload: {data})");
            let parts = start(0, TEXT) + &text(0, "x") + &format!("data: {data}\n\n");
            check(&parts, &["bs(0,text)", "td(0,x)", &failed]);
        }
    }

    #[test]
    fn stop_reasons_map_to_finish_reasons() {
        let finish = |reason: &str, expected: &str| {
            check(&body(&[x(), ended(reason)]), &["bs(0,text)", "td(0,x)", "be(0,x)", expected]);
        };
        finish("end_turn", "F(stop)");
        finish("stop_sequence", "F(stop)");
        finish("tool_use", "F(tool-calls)");
        finish("max_tokens", "F(max-tokens)");
        finish("model_context_window_exceeded", "F(max-tokens)");
        finish("pause_turn", "F(PAUSE_TURN: model stopped: pause_turn)");
        finish("refusal", "F(REFUSAL: model stopped: refusal)");
        check(&body(&[x()]), &X);
        let why = r#""delta":{"stop_reason":"refusal","stop_details":{"explanation":"not this"}}"#;
        let refused = ["F(REFUSAL: model stopped: refusal (not this))"];
        check(&body(&[event("message_delta", why)]), &refused);
    }

    #[test]
    fn an_answer_of_nothing_is_empty_unless_it_was_cut() {
        check(&body(&[ended("end_turn")]), &[EMPTY]);
        check(&body(&[]), &[EMPTY]);
        check(&body(&[ended("max_tokens")]), &["F(max-tokens)"]);
    }

    #[test]
    fn what_follows_the_end_does_not_matter_and_open_blocks_end_with_it() {
        let parts = start(0, TEXT) + &text(0, "x") + &ended("end_turn");
        check(&(body(&[parts]) + &text(0, "late") + "data: {oops\n\n"), &X);
    }

    #[test]
    fn a_call_that_the_output_limit_cuts_keeps_what_came() {
        let parts = [
            start(0, r#"{"type":"tool_use","id":"t","name":"edit","input":{}}"#),
            json(0, "{\"t\":\"xx"),
            stop(0),
            ended("max_tokens"),
        ];
        let expected = [
            "bs(0,tool-call)",
            "tc(0,t,edit,)",
            "tc(0,t,edit,{\"t\":\"xx)",
            "be(0,t/edit/{\"t\":\"xx)",
            "F(max-tokens)",
        ];
        check(&body(&parts), &expected);
    }
}
