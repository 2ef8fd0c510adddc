//! The mapping as tables: each old spelling, and what becomes of it.

use std::collections::BTreeMap;

use playhouse_messages::{
    event::EventBody, packed::expand, repair::UnsettledTail, session::SessionCore,
    session_state::KnownKinds,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{ImportError, Imported, Note, Sessions, SourceFormat, import};

pub(crate) const KILLED_V0: &str = include_str!("../tests-data/killed-mid-stream.v0.jsonl");
pub(crate) const FORK_V0: &str = include_str!("../tests-data/fork.v0.jsonl");
pub(crate) const FORK_V5: &str = include_str!("../tests-data/fork.v5.jsonl");

fn read(file: &str) -> Result<Imported, ImportError> {
    import(&Sessions::new(file.as_bytes()).next().unwrap()?)
}

fn events(imported: &Imported) -> Vec<Value> {
    imported.events.iter().map(|event| serde_json::from_slice(event).unwrap()).collect()
}

fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

fn history(imported: &Imported) -> Vec<(String, String)> {
    let log = imported
        .events
        .iter()
        .map(|text| {
            let text = std::str::from_utf8(text).unwrap();
            std::sync::Arc::new(playhouse_messages::event::Event::from_json(text).unwrap())
        })
        .collect();
    let core = SessionCore::load(imported.header.clone(), log, &KnownKinds::new()).unwrap();
    let role = |role| serde_json::to_value(role).unwrap().as_str().unwrap().to_owned();
    let entries = core.state().history().iter();
    entries.map(|entry| (role(entry.message.role), entry.message.text())).collect()
}

/// A small version 4 log around these events, which begin at seq 1 in an open step.
fn v4(events: &[Value]) -> String {
    log(
        json!({"type": "session", "version": 4, "id": "s", "createdAt": 1, "isSeeded": false}),
        events,
    )
}

fn log(header: Value, events: &[Value]) -> String {
    let open = [
        json!({"type": "turn/start", "data": {"turn": 1}}),
        json!({"type": "step/start", "data": {"turn": 1, "step": 1}}),
    ];
    let mut file = format!("{header}\n");
    for (seq, event) in open.iter().chain(events).enumerate() {
        let mut event = event.clone();
        event["seq"] = event.get("seq").cloned().unwrap_or(json!(seq));
        event["time"] = json!(1000 + seq);
        file += &format!("{event}\n");
    }
    file
}

fn user(content: Value, source: Value) -> Value {
    json!({"type": "user/message", "surfaceOp": "append",
        "data": {"id": "u", "role": "user", "content": content, "source": source}})
}

#[test]
fn old_spellings_and_what_becomes_of_them() {
    let text = || json!([{"type": "text", "text": "t"}]);
    let turn_end = |reason: Value| {
        vec![
            json!({"type": "step/end", "data": {"turn": 1, "step": 1}}),
            json!({"type": "turn/end", "data": {"turn": 1, "reason": reason}}),
        ]
    };
    let header = |more: Value| {
        let mut header = json!({"config": {"provider": "p", "model": "m"}});
        header.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        vec![json!({"type": "request/header", "data": {"header": header, "reason": "initial"}})]
    };
    let source = |source: Value| vec![user(text(), source)];
    let snapshot = json!({"kind": "plugin", "plugin": "x", "form": "snapshot", "sections": []});
    for (events, at, expected) in [
        (
            turn_end(json!({"kind": "disposed"})),
            "/data/reason",
            json!({"kind": "aborted", "reason": {"kind": "disposed"}}),
        ),
        (turn_end(json!({"kind": "aborted"})), "/data/reason/reason", json!({"kind": "legacy"})),
        (
            turn_end(json!({"kind": "aborted", "reason": {"kind": "hook", "reason": "w", "x": 1}})),
            "/data/reason/reason",
            json!({"kind": "hook", "reason": "w"}),
        ),
        (
            turn_end(json!({"kind": "error", "step": 2, "message": "m"})),
            "/data/reason/error",
            json!({"message": "m", "code": "UNKNOWN"}),
        ),
        (
            turn_end(json!({"kind": "error", "error": {"message": "m", "code": "C"}})),
            "/data/reason/error",
            json!({"message": "m", "code": "C"}),
        ),
        (
            turn_end(json!({"kind": "brand-new", "x": 1})),
            "/data/reason",
            json!({"kind": "brand-new", "x": 1}),
        ),
        (header(json!({"tools": []})), "/data/header/tools", Value::Null),
        (
            header(json!({"adapterDefaults": {"maxTokens": true}})),
            "/data/header/adapterDefaults",
            Value::Null,
        ),
        (source(json!({"kind": "plugin", "plugin": "x"})), "/data/source/plugin", json!("x")),
        (
            source(json!({"kind": "plugin", "plugin": "compact"})),
            "/data/source",
            json!({"kind": "compact-checkpoint"}),
        ),
        (
            source(snapshot),
            "/data/source",
            json!({"kind": "runtime-context", "form": "snapshot", "sections": []}),
        ),
        (
            vec![user(
                json!([{"type": "tool-result", "toolCallId": "c", "content": text()}]),
                json!({"kind": "user"}),
            )],
            "/data/content",
            text(),
        ),
        (vec![json!({"type": "x/y", "data": {"a": 1}})], "/ignorable", json!(true)),
        (
            vec![json!({"type": "x/y", "data": {}, "surfaceOp": "append"})],
            "/surfaceOp",
            Value::Null,
        ),
    ] {
        let file = v4(&events);
        let imported = read(&file).unwrap_or_else(|error| panic!("{error} in {file}"));
        let last = self::events(&imported).pop().unwrap();
        assert_eq!(last.pointer(at).unwrap_or(&Value::Null), &expected, "{file}");
    }
}

#[test]
fn both_spellings_of_a_replaced_range_are_read() {
    for (start, end) in [("start", "end"), ("startSeq", "endSeq")] {
        let first = user(json!([]), json!({"kind": "user"}));
        let mut second = first.clone();
        second["data"]["id"] = json!("v");
        second["surfaceOp"] = json!({"op": "replace", start: 2, end: 2});
        second["sourceEventSeqs"] = json!([2]);
        let events = events(&read(&v4(&[first, second])).unwrap());
        assert_eq!(events[3]["surfaceOp"], json!({"op": "replace", "startSeq": 2, "endSeq": 2}));
    }
}

#[test]
fn what_cannot_be_mapped_is_refused_by_name() {
    let header = |version: Value| json!({"type": "session", "version": version, "id": "s", "createdAt": 1, "isSeeded": false});
    let event = |kind: &str, data: Value| json!({"type": kind, "data": data});
    let chunk =
        json!({"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": "x"}});
    let fallback =
        json!({"header": {"config": {"provider": "p", "model": "m"}}, "reason": "fallback"});
    for (file, code, line, seq, words) in [
        (log(header(json!(6)), &[]), "FORMAT_UNSUPPORTED", 1, None, "format version 6"),
        (log(header(json!(3)), &[]), "FORMAT_UNSUPPORTED", 1, None, "format version 3"),
        (log(header(json!("4")), &[]), "IMPORT_HEADER", 1, None, "`version`"),
        (log(header(Value::Null), &[]), "IMPORT_HEADER", 1, None, "`version`"),
        (log(header(json!(-1)), &[]), "IMPORT_HEADER", 1, None, "`version`"),
        (
            v4(&[event("context/message", json!({}))]),
            "FORMAT_UNSUPPORTED",
            4,
            Some(2),
            "context/message",
        ),
        (
            v4(&[event("request/header-delta", json!({}))]),
            "FORMAT_UNSUPPORTED",
            4,
            Some(2),
            "retired",
        ),
        (v4(&[event("request/header", fallback)]), "FORMAT_UNSUPPORTED", 4, Some(2), "fallback"),
        (v4(&[event("assistant/chunk", chunk)]), "FORMAT_UNSUPPORTED", 4, Some(2), "version 4"),
        (
            v4(&[event("turn/start", json!({"turn": 2}))]),
            "TURN_OPEN",
            4,
            Some(2),
            "turn 1 is still open",
        ),
        (v4(&[event("turn/start", json!({"turns": 2}))]), "INVALID_EVENT", 4, Some(2), "turn"),
        (
            v4(&[json!({"type": "x/y", "seq": 7, "data": 1})]),
            "SEQUENCE_MISMATCH",
            4,
            Some(7),
            "2 was due",
        ),
        (
            v4(&[json!({"type": "x/y", "seq": 1, "data": 1})]),
            "SEQUENCE_MISMATCH",
            4,
            Some(1),
            "2 was due",
        ),
        (
            v4(&[json!({"type": "x/y", "data": 1, "extra": 1})]),
            "INVALID_EVENT",
            4,
            Some(2),
            "extra",
        ),
        (
            v4(&[event("x/y", json!({"n": 9_007_199_254_740_993_u64}))]),
            "NOT_LOSSLESS",
            4,
            Some(2),
            "2^53",
        ),
    ] {
        let error = read(&file).unwrap_err();
        let found = (error.code(), error.line, error.seq);
        assert_eq!(found, (code, line, seq), "{error}\n{file}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_log_by_the_chunk_becomes_one_with_settlements_and_a_tail() {
    let imported = read(KILLED_V0).unwrap();
    assert_eq!(imported.report.source, SourceFormat::Reference(0));
    assert_eq!(imported.report.violation, None);
    let events = events(&imported);
    assert!(of_kind(&events, "assistant/chunk").is_empty());
    for (seq, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], json!(seq));
    }
    // The failed attempt comes before what tells of it.
    let attempt = of_kind(&events, "assistant/attempt")[0];
    let retry = of_kind(&events, "llm/retry")[0];
    assert_eq!(retry["data"]["failedSeq"], attempt["seq"]);
    assert_eq!(retry["ignorable"], true);
    // The stream is whole: boundaries and times.
    let answer = of_kind(&events, "assistant/message")[0];
    let body = playhouse_messages::event::Event::from_json(&answer.to_string()).unwrap().body;
    let EventBody::AssistantMessage(data) = body else { panic!("{answer}") };
    let times: Vec<_> = expand(&data.stream).iter().map(|it| it.time - 1_730_000_000_000).collect();
    assert_eq!(times, [12, 13, 18, 17, 16, 17, 18, 19, 20, 21, 22, 23]);
    assert_eq!(
        answer["data"]["message"]["source"]["replayState"],
        json!({"response": {"opaque": 7}})
    );
    let result = of_kind(&events, "tool/result")[0];
    assert_eq!(result["data"]["message"]["role"], "tool");
    assert_eq!(result["sourceEventSeqs"], json!([of_kind(&events, "tool/call")[0]["seq"]]));
    // Whoever named an event names it still.
    let first = of_kind(&events, "user/message")[0];
    assert_eq!(of_kind(&events, "session/title")[0]["data"]["messageSeqs"], json!([first["seq"]]));
    let summary = of_kind(&events, "compaction/summary")[0];
    let range = json!({"start": first["seq"], "end": result["seq"]});
    assert_eq!(summary["data"]["shadowedRange"], range);
    assert_eq!(
        history(&imported),
        [
            ("system", "You are old and wiser."),
            ("user", "they looked"),
            ("assistant", "Done."),
            ("user", "and now?")
        ]
        .map(|(role, text)| (role.to_owned(), text.to_owned()))
    );
    let tail: UnsettledTail = serde_json::from_slice(&imported.tail.unwrap().parts[0]).unwrap();
    assert_eq!((tail.turn, tail.step, tail.attempt, &*tail.provider), (2, 1, 1, "scripted"));
    assert_eq!(expand(&tail.records).len(), 3);
    let dropped = Note::Dropped("header key `sandboxMode`".to_owned());
    assert_eq!(imported.report.notes[&dropped], 1);
    assert!(!imported.report.renumbered.is_empty());
}

#[test]
fn a_fork_of_version_0_keeps_its_cut() {
    let imported = read(FORK_V0).unwrap();
    let events = events(&imported);
    assert!(imported.header.is_seeded && imported.header.version == 1);
    let cut = usize::try_from(imported.inherited_event_count).unwrap();
    assert_eq!(events[cut]["type"], "session/end-seed");
    assert_eq!(events[cut]["data"], json!({"inherited": true}));
    assert_eq!(events[cut - 1]["type"], "turn/end");
    // One chunk folded away, a prompt and the marker added.
    assert_eq!(cut, 10);
    assert_eq!(of_kind(&events, "todo/write")[0]["data"]["lastSeq"], json!(9));
    assert_eq!(of_kind(&events, "assistant/attempt").len(), 1);
    assert_eq!(imported.tail, None);
    let said: Vec<_> = history(&imported).into_iter().map(|(_, text)| text).collect();
    assert_eq!(said, ["You are old.", "begin", "Begun.", "fail"]);
}

#[test]
fn a_fork_of_version_5_is_cut_at_its_own_marker() {
    let imported = read(FORK_V5).unwrap();
    let events = events(&imported);
    assert_eq!(imported.report.source, SourceFormat::Reference(5));
    assert_eq!((imported.inherited_event_count, events.len()), (15, 24));
    assert!(imported.report.renumbered.is_empty(), "nothing was folded away");
    assert_eq!(imported.header.cwd, None);
    let said: Vec<_> = history(&imported).into_iter().map(|(_, text)| text).collect();
    assert_eq!(said, ["You are five.", "begin, briefly", "", "(pruned)", "held deep"]);
    let notes: BTreeMap<String, u64> =
        imported.report.notes.iter().map(|(note, count)| (note.to_string(), *count)).collect();
    for what in [
        "dropped header key `cwd`",
        "dropped header key `approvalPolicy`",
        "kept `note/shown`, marked ignorable",
    ] {
        assert_eq!(notes.get(what), Some(&1), "{notes:?}");
    }
}

#[test]
fn nesting_beyond_the_limit_is_named() {
    let deep = format!("{}1{}", "[".repeat(129), "]".repeat(129));
    for version in [1, 4] {
        let header = json!({"type": "session", "version": version, "id": "s", "createdAt": 1, "isSeeded": false});
        let file = format!("{header}\n{{\"type\":\"x/y\",\"seq\":0,\"time\":1,\"data\":{deep}}}\n");
        let error = read(&file).unwrap_err();
        assert_eq!(error.line, 2, "{error}");
        assert!(
            error.to_string().contains("recursion limit") || error.code() == "NOT_LOSSLESS",
            "{error}"
        );
    }
}

#[test]
fn a_cut_export_is_told_from_a_whole_one() {
    let header = json!({"type": "session", "version": 1, "id": "s", "createdAt": 1, "isSeeded": false,
        "inheritedEventCount": 0, "eventCount": 1, "tailParts": 1, "attachmentCount": 0});
    let event = r#"{"type":"turn/start","seq":0,"time":1,"data":{"turn":1}}"#;
    let tail = r#"{"type":"session/tail","attempt":1,"parts":["{}"]}"#;
    let whole = format!("{header}\n{event}\n{tail}\n");
    read(&whole).unwrap();
    for (file, code, line) in [
        (format!("{header}\n{event}\n"), "IMPORT_INCOMPLETE", 2),
        (format!("{header}\n"), "IMPORT_INCOMPLETE", 1),
        (format!("{header}\n{}", &event[..30]), "INVALID_EVENT", 2),
        (format!("{header}\n{event}\n{event}\n{tail}\n"), "SEQUENCE_MISMATCH", 3),
        (format!("{header}\n{event}\n{tail}\n{tail}\n"), "IMPORT_RECORD", 4),
        (format!("{header}\n{event}\n{tail}\n{event}\n"), "IMPORT_RECORD", 4),
        (format!("{header}\n{header}\n"), "IMPORT_INCOMPLETE", 1),
    ] {
        let error = read(&file).unwrap_err();
        assert_eq!((error.code(), error.line), (code, line), "{error}");
    }
    let image = r#"{"type":"session/attachment","attachmentId":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","base64":"AA=="}"#;
    let error = read(&format!("{whole}{image}\n")).unwrap_err();
    assert_eq!(error.code(), "IMPORT_RECORD");
    assert!(error.to_string().contains("sha256:e3b0"), "{error}");
}

/// Every session of a file, whatever it is.
fn read_all(bytes: &[u8]) -> usize {
    let sessions = Sessions::new(bytes).line_bytes_max(1 << 20);
    sessions.map(|lines| drop(lines.and_then(|lines| import(&lines)))).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_file_makes_an_import_panic(
        which in 0usize..3,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..6),
    ) {
        let mut bytes = [KILLED_V0, FORK_V0, FORK_V5][which].as_bytes().to_vec();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len().max(1));
            match how {
                _ if bytes.is_empty() => bytes.push(byte),
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => { bytes.remove(at); }
                _ => bytes.truncate(at.max(1)),
            }
        }
        read_all(&bytes);
    }

    #[test]
    fn no_number_or_name_makes_an_import_panic(
        which in 0usize..3,
        line in any::<prop::sample::Index>(),
        key in any::<prop::sample::Index>(),
        value in prop_oneof![Just(json!(-1)), Just(json!(u64::MAX)), Just(json!(1.5)), Just(json!("x")),
            Just(Value::Null), Just(json!([])), Just(json!({})), Just(json!([0, 0])), Just(json!(4))],
    ) {
        let file = [KILLED_V0, FORK_V0, FORK_V5][which];
        let mut lines: Vec<Value> = file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let line = line.index(lines.len());
        let mut places = Vec::new();
        let mut stack = vec![(String::new(), &lines[line])];
        while let Some((path, value)) = stack.pop() {
            match value {
                Value::Object(fields) => stack.extend(fields.iter().map(|(key, value)| (format!("{path}/{key}"), value))),
                Value::Array(items) => stack.extend(items.iter().enumerate().map(|(at, value)| (format!("{path}/{at}"), value))),
                _ => {}
            }
            places.push(path);
        }
        let place = &places[key.index(places.len())];
        *lines[line].pointer_mut(place).unwrap() = value;
        let file: String = lines.iter().map(|line| format!("{line}\n")).collect();
        read_all(file.as_bytes());
    }
}
