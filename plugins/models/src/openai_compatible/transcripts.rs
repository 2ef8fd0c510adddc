//! Recorded streams and what becomes of them, whole and cut at every byte.

use super::decode::Decoder;
use crate::http::transcript;

#[track_caller]
fn check(body: &str, expected: &[&str]) {
    transcript::check::<Decoder>(body, expected);
}

/// An event with this delta.
fn d(delta: &str) -> String {
    format!("data: {{\"choices\":[{{\"delta\":{delta},\"finish_reason\":null}}]}}\n\n")
}

/// An event with this delta and finish reason.
fn f(delta: &str, reason: &str) -> String {
    format!("data: {{\"choices\":[{{\"delta\":{delta},\"finish_reason\":\"{reason}\"}}]}}\n\n")
}

/// As [`f`], with this usage.
fn u(delta: &str, reason: &str, usage: &str) -> String {
    format!(
        "data: {{\"choices\":[{{\"delta\":{delta},\"finish_reason\":\"{reason}\"}}],\
         \"usage\":{usage}}}\n\n"
    )
}

const DONE: &str = "data: [DONE]\n\n";
const CLOSED: &str = "F(STREAM_CLOSED: SSE stream ended without [DONE])";
const EMPTY: &str = "F(EMPTY_RESPONSE: model returned a completed response with no content)";
const X: [&str; 4] = ["bs(0,text)", "td(0,x)", "be(0,x)", "F(stop)"];

fn x() -> String {
    d(r#"{"content":"x"}"#)
}

fn body(parts: &[String]) -> String {
    parts.concat() + DONE
}

mod scenario {
    use super::*;

    #[test]
    fn llm_44_t01_plain_text() {
        let parts = [
            d(r#"{"role":"assistant","content":null,"reasoning_content":""}"#),
            d(r#"{"content":"Hel"}"#),
            d(r#"{"content":"lo"}"#),
            u(r#"{"content":""}"#, "stop", r#"{"prompt_tokens":5,"completion_tokens":2}"#),
        ];
        let expected = ["bs(0,text)", "td(0,Hel)", "td(0,lo)", "be(0,Hello)", "U(5,2)", "F(stop)"];
        check(&body(&parts), &expected);
    }

    #[test]
    fn llm_44_t02_reasoning_and_text_in_both_spellings() {
        for key in ["reasoning_content", "reasoning"] {
            let parts = [
                d(&format!(r#"{{"{key}":"th"}}"#)),
                d(&format!(r#"{{"{key}":"ink"}}"#)),
                d(r#"{"content":"ok"}"#),
                f("{}", "stop"),
            ];
            let expected = [
                "bs(0,reasoning)",
                "rd(0,th)",
                "rd(0,ink)",
                "bs(1,text)",
                "td(1,ok)",
                "be(0,think)",
                "be(1,ok)",
                "F(stop)",
            ];
            check(&body(&parts), &expected);
        }
    }

    #[test]
    fn llm_44_t03_a_tool_call_in_pieces() {
        let parts = [
            d(
                r#"{"tool_calls":[{"index":0,"id":"c1","function":{"name":"read","arguments":""}}]}"#,
            ),
            d(r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"p\":"}}]}"#),
            d(r#"{"tool_calls":[{"index":0,"function":{"arguments":"\"/a\"}"}}]}"#),
            f("{}", "tool_calls"),
        ];
        let expected = [
            "bs(0,tool-call)",
            "tc(0,c1,read,)",
            r#"tc(0,c1,read,{"p":)"#,
            r#"tc(0,c1,read,"/a"})"#,
            r#"be(0,c1/read/{"p":"/a"})"#,
            "F(tool-calls)",
        ];
        check(&body(&parts), &expected);
    }

    #[test]
    fn llm_44_t04_parallel_calls_with_sparse_wire_indexes() {
        let parts = [
            d(
                r#"{"tool_calls":[{"index":5,"id":"a","function":{"name":"f","arguments":""}},{"index":2,"id":"b","function":{"name":"g","arguments":"{"}}]}"#,
            ),
            d(r#"{"tool_calls":[{"index":2,"id":"b2","function":{"name":"g2","arguments":"}"}}]}"#),
            f("{}", "tool_calls"),
        ];
        let expected = [
            "bs(0,tool-call)",
            "tc(0,a,f,)",
            "bs(1,tool-call)",
            "tc(1,b,g,{)",
            "tc(1,b2,g2,})",
            "be(0,a/f/)",
            "be(1,b2/g2/{})",
            "F(tool-calls)",
        ];
        check(&body(&parts), &expected);
    }

    #[test]
    fn llm_44_t05_crlf_cut_by_a_read() {
        let lf = body(&[d(r#"{"content":"a"}"#), f("{}", "stop")]);
        let expected = ["bs(0,text)", "td(0,a)", "be(0,a)", "F(stop)"];
        check(&lf.replace('\n', "\r\n"), &expected);
        check(&lf.replace('\n', "\r"), &expected);
    }

    #[test]
    fn llm_44_t06_data_on_several_lines() {
        let text =
            "data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"x\"}}]}\n\ndata:[DONE]\n\n";
        check(text, &X);
    }

    #[test]
    fn llm_44_t07_other_fields_and_comments() {
        let text = format!(": ping\n\nevent: message\nid: 7\nretry: 1000\n{}:\n\n{DONE}", x());
        check(&text, &X);
    }

    #[test]
    fn llm_44_t08_a_character_cut_by_a_read() {
        let expected = ["bs(0,text)", "td(0,é€😀)", "be(0,é€😀)", "F(stop)"];
        check(&body(&[d(r#"{"content":"é€😀"}"#)]), &expected);
    }

    #[test]
    fn llm_44_t09_no_terminator() {
        let par = d(r#"{"content":"par"}"#);
        for tail in ["", "data: [DONE]", "data: [DONE]\n"] {
            check(&format!("{par}{tail}"), &["bs(0,text)", "td(0,par)", CLOSED]);
        }
    }

    #[test]
    fn llm_44_t10_malformed_json() {
        let text = format!("{}data: {{oops\n\n{DONE}", d(r#"{"content":"ok"}"#));
        let failed = "F(MALFORMED_RESPONSE: malformed SSE payload: {oops)";
        check(&text, &["bs(0,text)", "td(0,ok)", failed]);
        check("data:\n\n", &["F(MALFORMED_RESPONSE: malformed SSE payload: )"]);
        let long = format!("data: {}\n\n", "é".repeat(200));
        let failed = format!("F(MALFORMED_RESPONSE: malformed SSE payload: {})", "é".repeat(120));
        check(&long, &[&failed]);
    }

    #[test]
    fn llm_44_t11_the_limit_cuts_a_tool_call() {
        let usage =
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":64}}\n\n";
        let parts = [
            d(r#"{"content":"Let me"}"#),
            d(
                r#"{"tool_calls":[{"index":0,"id":"c1","function":{"name":"edit","arguments":"{\"p\":\"/a\",\"t\":\"xx"}}]}"#,
            ),
            f("{}", "length"),
            usage.to_owned(),
        ];
        let expected = [
            "bs(0,text)",
            "td(0,Let me)",
            "bs(1,tool-call)",
            r#"tc(1,c1,edit,{"p":"/a","t":"xx)"#,
            "be(0,Let me)",
            r#"be(1,c1/edit/{"p":"/a","t":"xx)"#,
            "U(10,64)",
            "F(max-tokens)",
        ];
        check(&body(&parts), &expected);
    }

    #[test]
    fn llm_44_t12_content_filter() {
        let parts = [d(r#"{"content":"So"}"#), f("{}", "content_filter")];
        let failed = "F(CONTENT_FILTER: model stopped: content_filter)";
        check(&body(&parts), &["bs(0,text)", "td(0,So)", "be(0,So)", failed]);
    }

    #[test]
    fn llm_44_t13_empty_completion() {
        let parts = [
            d(r#"{"role":"assistant","content":null,"reasoning_content":""}"#),
            u("{}", "stop", r#"{"prompt_tokens":7,"completion_tokens":0}"#),
        ];
        check(&body(&parts), &["U(7,0)", EMPTY]);
        check(DONE, &[EMPTY]);
    }

    #[test]
    fn llm_44_t14_reasoning_and_text_alternate() {
        let parts = [
            d(r#"{"reasoning_content":"a"}"#),
            d(r#"{"content":"x"}"#),
            d(r#"{"reasoning_content":"b"}"#),
            d(r#"{"content":"y"}"#),
            f("{}", "stop"),
        ];
        let expected = [
            "bs(0,reasoning)",
            "rd(0,a)",
            "bs(1,text)",
            "td(1,x)",
            "rd(0,b)",
            "td(1,y)",
            "be(0,ab)",
            "be(1,xy)",
            "F(stop)",
        ];
        check(&body(&parts), &expected);
    }

    #[test]
    fn llm_44_t15_everything_in_one_delta() {
        let delta = r#"{"content":"x","reasoning_content":"r","tool_calls":[{"index":3,"id":"k","function":{"name":"f","arguments":"{}"}}]}"#;
        let expected = [
            "bs(0,reasoning)",
            "rd(0,r)",
            "bs(1,text)",
            "td(1,x)",
            "bs(2,tool-call)",
            "tc(2,k,f,{})",
            "be(0,r)",
            "be(1,x)",
            "be(2,k/f/{})",
            "F(tool-calls)",
        ];
        check(&body(&[d(delta), f("{}", "tool_calls")]), &expected);
        // A call that shares its event with the finish reason is not lost.
        check(&body(&[f(delta, "tool_calls")]), &expected);
    }

    #[test]
    fn llm_44_t16_late_content_and_two_finish_reasons() {
        let parts = [f(r#"{"content":"x"}"#, "stop"), f(r#"{"content":"y"}"#, "length")];
        let expected = ["bs(0,text)", "td(0,x)", "td(0,y)", "be(0,xy)", "F(max-tokens)"];
        check(&body(&parts), &expected);
    }

    #[test]
    fn llm_55_and_44_t17_cached_input_is_counted_apart() {
        let usage = r#"{"prompt_tokens":283,"completion_tokens":69,"prompt_cache_hit_tokens":256,"prompt_cache_miss_tokens":27,"prompt_tokens_details":{"cached_tokens":256},"completion_tokens_details":{"reasoning_tokens":24}}"#;
        let parts = [x(), u("{}", "stop", usage)];
        let counts = "U(27,69,cached 256,reasoning 24)";
        check(&body(&parts), &[X[0], X[1], X[2], counts, X[3]]);
        let other = r#"{"prompt_tokens":283,"completion_tokens":69,"prompt_cache_hit_tokens":256}"#;
        let parts = [x(), u("{}", "stop", other)];
        check(&body(&parts), &[X[0], X[1], X[2], "U(27,69,cached 256)", X[3]]);
    }

    #[test]
    fn llm_44_t18_a_tool_call_with_finish_stop() {
        let call =
            r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}"#;
        let expected = ["bs(0,tool-call)", "tc(0,a,f,{})", "be(0,a/f/{})", "F(stop)"];
        check(&body(&[d(call), f("{}", "stop")]), &expected);
    }

    #[test]
    fn llm_44_t19_length_with_nothing() {
        check(&body(&[f("{}", "length")]), &["F(max-tokens)"]);
    }

    #[test]
    fn llm_44_t20_data_after_the_terminator() {
        let text = body(&[x()]) + &d(r#"{"content":"late"}"#) + "data: {oops\n\n";
        check(&text, &X);
    }

    #[test]
    fn llm_44_t21_nulls_are_tolerated() {
        let call =
            r#"{"tool_calls":[{"index":0,"id":null,"function":{"name":null,"arguments":null}}]}"#;
        let expected = ["bs(0,tool-call)", "tc(0,,-,)", "be(0,//)", "F(tool-calls)"];
        check(&body(&[d(call), f("{}", "tool_calls")]), &expected);
    }

    #[test]
    fn llm_44_t22_a_terminator_with_two_spaces_is_none() {
        let failed = "F(MALFORMED_RESPONSE: malformed SSE payload:  [DONE])";
        check(&format!("{}data:  [DONE]\n\n", x()), &["bs(0,text)", "td(0,x)", failed]);
    }

    #[test]
    fn llm_44_t23_null_usage() {
        check(&body(&[x(), u("{}", "stop", "null")]), &X);
    }

    #[test]
    fn an_error_object_is_a_failure_and_not_an_empty_answer() {
        let error = "data: {\"error\":{\"message\":\"slow down\",\"code\":429}}\n\n";
        check(&format!("{error}{DONE}"), &["F(RATE_LIMIT: slow down)"]);
        let error = "data: {\"object\":\"error\",\"message\":\"no\",\"code\":401}\n\n";
        check(&format!("{error}{DONE}"), &["F(AUTH: no)"]);
        let error = "data: {\"choices\":[],\"error\":{\"message\":\"overloaded\"}}\n\n";
        let expected = ["bs(0,text)", "td(0,x)", "F(SERVER: overloaded)"];
        check(&format!("{}{error}{DONE}", x()), &expected);
    }

    #[test]
    fn a_call_without_an_id_gets_one_of_the_response() {
        let head = "data: {\"id\":\"r7\",\"choices\":[]}\n\n";
        let call = d(r#"{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}"#);
        let text = format!("{head}{call}{}", body(&[f("{}", "tool_calls")]));
        let expected = ["bs(0,tool-call)", "tc(0,r7-0,f,{})", "be(0,r7-0/f/{})", "F(tool-calls)"];
        check(&text, &expected);
    }

    #[test]
    fn an_empty_finish_reason_is_none() {
        let parts = [f(r#"{"content":"x"}"#, "stop"), f("{}", "")];
        check(&body(&parts), &X);
    }

    #[test]
    fn json_of_another_shape_is_malformed() {
        for data in ["null", "7", "[]", r#"{"choices":[null]}"#, r#"{"choices":[{"delta":7}]}"#] {
            let failed = format!("F(MALFORMED_RESPONSE: malformed SSE payload: {data})");
            check(&format!("data: {data}\n\n{DONE}"), &[&failed]);
        }
    }
}
