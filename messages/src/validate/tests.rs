use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    event::Event,
    testing::{Script, user},
};

/// The verdict on an event given as JSON, at seq 2 after a header (0) and a user message (1).
fn verdict(kind: &str, data: Value, surface: bool) -> &'static str {
    let mut script = Script::new();
    let mut header = crate::testing::header(&["x", "twice", "twice", "odd"]);
    let mut tools = header.tools.to_vec();
    tools[3] = Arc::new(ToolSchema { parameters: json!([]), ..(*tools[3]).clone() });
    header.tools = tools.into();
    script.header_for(header, crate::config::HeaderReason::Initial);
    script.push(user("u", "u"));
    let mut event = json!({"type": kind, "seq": 2, "time": 0, "data": data});
    if surface {
        event["surfaceOp"] = json!("append");
    }
    let event = match Event::from_json(&event.to_string()) {
        Ok(event) => event,
        Err(_) => return "unreadable",
    };
    check_candidate(&script.log, Candidate::from(&event)).map_or_else(|e| e.code(), |()| "ok")
}

fn message(kind: &str, role: &str, source: Value, content: Value) -> &'static str {
    let message = json!({"id": "m", "role": role, "source": source, "content": content});
    let data = if kind == "user/message" {
        message
    } else {
        json!({"turn": 1, "step": 1, "message": message, "stream": []})
    };
    verdict(kind, data, true)
}

#[test]
fn the_table_of_messages() {
    let bad = "INVALID_MESSAGE";
    let text = || json!([{"type": "text", "text": "t"}]);
    let model = || json!({"kind": "model", "provider": "p", "model": "m"});
    for (expected, kind, role, source, content) in [
        ("ok", "user/message", "user", json!({"kind": "user"}), text()),
        ("ok", "user/message", "user", json!({"kind": "user"}), json!([])),
        (bad, "user/message", "system", json!({"kind": "user"}), text()),
        (bad, "user/message", "developer", json!({"kind": "user"}), text()),
        (bad, "user/message", "user", json!({"kind": ""}), text()),
        (bad, "user/message", "user", json!({}), text()),
        (
            bad,
            "user/message",
            "user",
            json!({"kind": "user"}),
            json!([{"type": "tool-removal", "toolName": "x"}]),
        ),
        ("NOT_LOSSLESS", "user/message", "user", json!({"kind": "x", "n": -0.0}), text()),
        (
            "NOT_LOSSLESS",
            "user/message",
            "user",
            json!({"kind": "x"}),
            json!([{"type": "z", "n": INTEGER_MAX + 1}]),
        ),
        ("ok", "system/message", "system", json!({"kind": "system-prompt"}), text()),
        (bad, "system/message", "system", json!({"kind": "user"}), text()),
        (bad, "system/message", "user", json!({"kind": "system-prompt"}), text()),
        ("ok", "assistant/message", "assistant", model(), text()),
        (bad, "assistant/message", "assistant", json!({"kind": "model", "provider": "p"}), text()),
        (
            bad,
            "assistant/message",
            "assistant",
            json!({"kind": "model", "provider": "", "model": "m"}),
            text(),
        ),
        (
            bad,
            "assistant/message",
            "assistant",
            json!({"kind": "user", "provider": "p", "model": "m"}),
            text(),
        ),
    ] {
        let what = format!("{kind} {role} {source} {content}");
        assert_eq!(message(kind, role, source, content), expected, "{what}");
    }
}

#[test]
fn the_table_of_tool_results() {
    let result = |is_error: Value, call: &str, more: Value| {
        let mut data = json!({"turn": 1, "step": 1, "message": {"id": "r", "role": "tool",
            "toolCallId": "c", "isError": is_error, "content": [],
            "source": {"kind": "tool", "callId": call}}});
        data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        verdict("tool/result", data, true)
    };
    let error = || json!({"error": {"name": "N", "code": "C"}});
    assert_eq!(result(json!(true), "c", error()), "ok");
    assert_eq!(result(json!(false), "c", json!({"meta": {"a": 1}})), "ok");
    assert_eq!(result(json!(false), "c", error()), "INVALID_EVENT_FIELD");
    assert_eq!(result(json!(null), "c", error()), "INVALID_EVENT_FIELD");
    assert_eq!(result(json!(false), "d", json!({})), "INVALID_MESSAGE");
    assert_eq!(result(json!(false), "c", json!({"meta": [-0.0]})), "NOT_LOSSLESS");
}

#[test]
fn the_table_of_developer_messages() {
    let developer = |header: Value, content: Value| {
        let mut data = json!({"turn": 1, "step": 1, "message": {"id": "d", "role": "developer",
            "content": content, "source": {"kind": "tool-registry"}}});
        if !header.is_null() {
            data["headerSeq"] = header;
        }
        verdict("developer/message", data, true)
    };
    let add = |name: &str| json!([{"type": "tool-addition", "toolName": name}]);
    let remove = || json!([{"type": "tool-removal", "toolName": "x"}]);
    let (reference, tool) = ("INVALID_HEADER_REFERENCE", "INVALID_ADDED_TOOL");
    for (expected, header, content) in [
        ("ok", json!(0), add("x")),
        ("ok", json!(null), remove()),
        (reference, json!(null), add("x")),
        (reference, json!(0), remove()),
        (reference, json!(1), add("x")), // a user message
        (reference, json!(2), add("x")), // itself
        (reference, json!(9), add("x")),
        (tool, json!(0), add("twice")),
        (tool, json!(0), add("odd")),
        ("INVALID_MESSAGE", json!(0), add("")),
        (
            "INVALID_MESSAGE",
            json!(0),
            json!([{"type": "tool-addition", "toolName": "x", "tool": {}}]),
        ),
    ] {
        let what = format!("{header} {content}");
        assert_eq!(developer(header, content), expected, "{what}");
    }
}

#[test]
fn the_table_of_headers() {
    let header = |header: Value| {
        verdict("request/header", json!({"header": header, "reason": "change"}), false)
    };
    let config = |more: Value| {
        let mut config = json!({"provider": "p", "model": "m"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"config": config})
    };
    let with = |more: Value, key: &str, value: Value| {
        let mut header = config(more);
        header[key] = value;
        header
    };
    let bad = "INVALID_EVENT_FIELD";
    for (expected, value) in [
        ("ok", config(json!({"temperature": 0.5, "maxTokens": 10}))),
        ("ok", with(json!({"maxTokens": 1}), "adapterDefaults", json!({"maxTokens": true}))),
        (bad, with(json!({}), "adapterDefaults", json!({"maxTokens": true}))),
        (bad, with(json!({}), "adapterDefaults", json!({"reasoningEffort": true}))),
        ("unreadable", with(json!({}), "adapterDefaults", json!({"color": true}))),
        ("unreadable", with(json!({}), "system", json!("P"))),
        (bad, config(json!({"provider": ""}))),
        (bad, config(json!({"model": ""}))),
        (bad, config(json!({"reasoningEffort": ""}))),
        (bad, config(json!({"maxTokens": 0}))),
        (bad, config(json!({"maxTokens": INTEGER_MAX + 1}))),
        (bad, config(json!({"temperature": -0.0}))),
        ("unreadable", json!({})),
    ] {
        let what = value.to_string();
        assert_eq!(header(value), expected, "{what}");
    }
    let reason = |reason: &str| {
        verdict("request/header", json!({"header": config(json!({})), "reason": reason}), false)
    };
    assert_eq!(reason("series"), "ok");
    assert_eq!(reason("fallback"), "unreadable");
    let series = json!({"header": config(json!({})), "reason": "change", "startsSeries": false});
    assert_eq!(verdict("request/header", series, false), "unreadable");
    // Not writable from JSON, but from Rust.
    let mut nan = crate::testing::header(&[]);
    nan.config.temperature = Some(f64::NAN);
    let mut script = Script::new();
    script.header_for(nan, crate::config::HeaderReason::Initial);
    let event = Candidate::from(&**script.log.get(0).unwrap());
    assert_eq!(check_candidate(&Log::new(), event).unwrap_err().code(), bad);
}

#[test]
fn empty_lists_that_must_be_absent_are_refused() {
    for header in [
        json!({"config": {"provider": "p", "model": "m"}, "tools": []}),
        json!({"config": {"provider": "p", "model": "m"}, "adapterDefaults": {}}),
        json!({"config": {"provider": "p", "model": "m"}, "adapterDefaults": {"maxTokens": false}}),
    ] {
        let data = json!({"header": header, "reason": "initial"});
        assert_eq!(verdict("request/header", data, false), "unreadable", "{header}");
    }
}

#[test]
fn the_table_of_other_events() {
    let selection = |model: &str, effort: Value| {
        let mut data = json!({"provider": "p", "model": model});
        if !effort.is_null() {
            data["reasoningEffort"] = effort;
        }
        verdict("model/selection", data, false)
    };
    assert_eq!(selection("m", json!(null)), "ok");
    assert_eq!(selection("", json!(null)), "INVALID_EVENT_FIELD");
    assert_eq!(selection("m", json!("")), "INVALID_EVENT_FIELD");
    assert_eq!(verdict("x/note", json!({"a": INTEGER_MAX}), false), "ok");
    assert_eq!(verdict("x/note", json!({"a": INTEGER_MAX + 1}), false), "NOT_LOSSLESS");
    assert_eq!(verdict("", json!({}), false), "INVALID_EVENT_KIND");
    assert_eq!(verdict("request/header-delta", json!({}), false), "INVALID_EVENT_KIND");
    let context = json!({"provider": "p", "model": "m", "contextWindow": INTEGER_MAX + 1});
    assert_eq!(verdict("request/context", context, false), "INVALID_EVENT_FIELD");
    let failed = |failure: Value| {
        verdict(
            "turn/end",
            json!({"turn": 1, "reason": {"kind": "error", "error": failure}}),
            false,
        )
    };
    assert_eq!(failed(json!({"message": "m", "code": "C"})), "ok");
    assert_eq!(failed(json!({"message": "m", "code": ""})), "INVALID_EVENT_FIELD");
    let forged = NewEvent::custom("turn/start", json!({"turn": 1}));
    assert_eq!(check(&Log::new(), &forged).unwrap_err().code(), "INVALID_EVENT_KIND");
    let splice = json!({"target": "next-turn", "start": 0, "inserted": [], "outcome": "canceled"});
    assert_eq!(verdict("agent/inbox/spliced", splice, false), "INVALID_EVENT_FIELD");
}

#[test]
fn sources_are_distinct_earlier_events() {
    let log = {
        let mut script = Script::new();
        script.push(user("a", "a"));
        script.push(user("b", "b"));
        script.log
    };
    let cite = |sources: &[Seq]| {
        check(&log, &user("c", "c").citing(sources.iter().copied())).map_err(|e| e.code())
    };
    assert_eq!(cite(&[0, 1]), Ok(()));
    assert_eq!(cite(&[0, 0]), Err("INVALID_SOURCES"));
    assert_eq!(cite(&[2]), Err("INVALID_SOURCES"));
    let mut script = Script::new();
    script.assistant("x", &[]);
    let body = script.log.get(0).unwrap().body.clone();
    let cited = NewEvent::append(body).citing([0]);
    assert_eq!(check(&log, &cited).unwrap_err().code(), "INVALID_SOURCES");
}

mod scenario {
    use super::*;

    #[test]
    fn newest_32_an_addition_that_its_header_lacks_is_refused() {
        let data = json!({"turn": 1, "step": 1, "headerSeq": 0, "message": {"id": "d",
            "role": "developer", "content": [{"type": "tool-addition", "toolName": "missing"}],
            "source": {"kind": "tool-registry"}}});
        assert_eq!(verdict("developer/message", data, true), "INVALID_ADDED_TOOL");
    }

    #[test]
    fn core_012_a_message_that_is_no_lossless_json_is_refused() {
        let data = json!({"target": "next-step", "start": 0, "inserted": [{"id": "m",
            "role": "user", "content": [], "source": {"kind": "x", "n": -0.0}}]});
        assert_eq!(verdict("agent/inbox/spliced", data, false), "NOT_LOSSLESS");
    }
}
