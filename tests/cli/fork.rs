//! `playhouse sessions fork`, and `session/fork` of rpc.

use serde_json::json;

use super::{House, rpc::Client};

#[test]
fn a_stored_session_is_forked_by_whoever_has_the_store() {
    let house = House::new();
    assert_eq!(house.run(&["run", "--session", "s", "Go"]).code, Some(0));
    let show = |id: &str| house.run(&["sessions", "show", id, "--format", "jsonl"]);
    let source = show("s").out;
    let forked = house.run(&["sessions", "fork", "s", "--id", "t"]);
    assert_eq!((forked.code, forked.out.as_str()), (Some(0), "t\n"), "{forked:?}");
    let child = show("t").out;
    assert!(child.starts_with(&source));
    let marker = show("t").json().pop().unwrap();
    assert_eq!(
        (&marker["type"], &marker["data"]["inherited"]),
        (&json!("session/end-seed"), &json!(true))
    );
    assert_eq!(show("s").out, source);
    let listed = house.run(&["sessions", "list"]).out;
    assert!(
        listed.lines().any(|line| line.starts_with("t ") && line.contains("  fork of s  ")),
        "{listed}"
    );

    let forked = house.run(&["sessions", "fork", "s", "--at", "3", "--format", "jsonl"]);
    let facts = &forked.json()[0];
    assert_eq!((&facts["inherited"], &facts["parentSession"]), (&json!(4), &json!("s")));
    let fresh = facts["session"].as_str().unwrap();
    assert_eq!(show(fresh).json().last().unwrap()["data"]["reason"]["kind"], "forked");

    for (args, parts) in [
        (&["sessions", "fork", "gone"][..], &["`gone`", "sessions list"][..]),
        (&["sessions", "show", "gone"], &["`gone`", "sessions list"]),
        (&["sessions", "fork", "s", "--id", "t", "--at", "999"], &["`t` already exists"]),
        (&["sessions", "fork", "s", "--at", "999"], &["event 999", "events"]),
        (&["sessions", "fork", "s", "--id", ""], &["must not be empty"]),
    ] {
        let ended = house.run(args);
        let error = ended.error(2);
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    }
    // Not a number of an event at all.
    for at in ["2.5", "-1"] {
        assert_eq!(house.run(&["sessions", "fork", "s", "--at", at]).code, Some(2));
    }
    assert_eq!(house.run(&["sessions", "verify"]).code, Some(0));
    // What was forked is resumed like any other.
    assert_eq!(house.run(&["run", "--resume", "t", "On"]).code, Some(0));
}

#[test]
fn a_running_harness_forks_for_its_clients_and_keeps_the_store() {
    let house = House::new();
    let mut client = Client::start(&house);
    client.call("agent/create", json!({"id": "s"}));
    client.call("agent/prompt", json!({"agent": "s", "text": "Go"}));
    client.call("session/flush", json!({"session": "s"}));
    let refused = house.run(&["sessions", "fork", "s"]);
    assert!(refused.error(2).contains("in use by"), "{refused:?}");

    let end = client.call("session/log", json!({"session": "s"}))["end"].as_u64().unwrap();
    let made = client.call("session/fork", json!({"session": "s", "id": "t"}));
    assert_eq!(made, json!({"agent": "t", "events": end + 1, "inherited": end}));
    let made = client.call("session/fork", json!({"session": "s", "at": 2}));
    assert_eq!(made["inherited"], 3);
    client.call("agent/dispose", json!({"agent": "s"}));
    // Stored only, by now.
    let made = client.call("session/fork", json!({"session": "s", "id": "u"}));
    assert_eq!(made["agent"], "u");
    client.call("agent/prompt", json!({"agent": "t", "text": "On"}));
    for (params, code) in [
        (json!({"session": "gone"}), "SESSION_NOT_FOUND"),
        (json!({"session": "s", "at": 999, "id": "t"}), "SESSION_ALREADY_EXISTS"),
        (json!({"session": "s", "at": 999}), "INVALID_BOUNDARY"),
        (json!({"session": "s", "at": -1}), "INVALID_PARAMS"),
        (json!({"session": "s", "at": 2.5}), "INVALID_PARAMS"),
        (json!({"id": "x"}), "INVALID_PARAMS"),
        (json!({"session": "s", "sessionId": "t"}), "INVALID_PARAMS"),
    ] {
        assert_eq!(client.refusal("session/fork", params.clone()).1, code, "{params}");
    }
    assert_eq!(client.refusal("agent/create", json!({"session": "s"})).1, "INVALID_PARAMS");
    assert_eq!(client.running.end().0, Some(0));
    assert_eq!(house.run(&["sessions", "verify"]).code, Some(0));
}
