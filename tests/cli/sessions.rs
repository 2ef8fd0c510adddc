//! `playhouse sessions list`, and what `rpc` tells of sessions.

use serde_json::{Value, json};

use super::{House, rpc::client::Client};

/// A house with two sessions of a model that says the same each time.
fn with_two_sessions() -> House {
    let house = House::new();
    house.write("s.toml", "[[rules]]\nreply = { text = \"It is a Lighthouse.\" }\n");
    house.write("playhouse.toml", "[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n");
    for (id, text) in [("first", "What is \x1b[1mthat?"), ("second", "A lighthouse, or a\tmast?")] {
        let ended = house.run(&["run", "--model", "s/any", "--session", id, text]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    house
}

fn ids(listed: &[Value]) -> Vec<&str> {
    listed.iter().map(|session| session["id"].as_str().unwrap()).collect()
}

#[test]
fn a_list_has_titles_and_a_query_finds_what_was_said() {
    let house = with_two_sessions();
    let listed = house.run(&["sessions", "list", "--format", "jsonl"]).json();
    assert_eq!(ids(&listed), ["second", "first"], "newest first");
    assert_eq!(listed[1]["title"], "What is that?");
    let text = house.run(&["sessions", "list"]);
    assert!(text.out.lines().next().unwrap().ends_with("A lighthouse, or a mast?"), "{text:?}");
    assert!(!text.out.contains('\x1b'));

    let found =
        house.run(&["sessions", "list", "--query", "LIGHTHOUSE", "--format", "jsonl"]).json();
    assert_eq!(ids(&found), ["second", "first"], "the shorter text first: {found:?}");
    assert_eq!(found[1]["hit"]["type"], "assistant/message");
    assert_eq!(found[1]["hit"]["snippet"], "It is a Lighthouse.");
    let seq = found[1]["hit"]["seq"].as_u64().unwrap();
    let text = house.run(&["sessions", "list", "--query", "is a  lighthouse", "--limit", "1"]);
    let lines: Vec<_> = text.out.lines().collect();
    assert_eq!(lines.len(), 2, "{text:?}");
    assert_eq!(lines[1], format!("    {seq}: It is a Lighthouse."), "{text:?}");
    assert!(text.err.contains("there are more"), "{text:?}");

    let here = house.path().to_str().unwrap();
    let filtered = ["sessions", "list", "--cwd", here, "--parent", "none", "--since", "1h"];
    assert_eq!(house.run(&filtered).out.lines().count(), 2);
    let stats =
        house.run(&["sessions", "list", "--stats", "--limit", "1", "--format", "jsonl"]).json();
    assert_eq!((stats.len(), &stats[0]["stats"]["turns"]), (1, &json!(1)));
    let stats = house.run(&["sessions", "list", "--stats", "--limit", "1"]);
    assert!(stats.out.contains("1 turns, 1 steps, models "), "{stats:?}");
}

#[test]
fn an_empty_list_says_so_and_prints_nothing() {
    let house = with_two_sessions();
    for args in [&["--query", "submarine"][..], &["--parent", "gone"], &["--until", "2000-01-01"]] {
        let ended = house.run(&[&["sessions", "list"][..], args].concat());
        assert_eq!((ended.code, &*ended.out), (Some(0), ""), "{ended:?}");
        assert!(ended.err.contains("nothing found"), "{ended:?}");
    }
    for (args, told) in [
        (&["--query", " "][..], "empty"),
        (&["--since", "soon"], "how long ago"),
        (&["--query", "x", "--limit", "101"], "1 to 100"),
        (&["--since", "1h", "--until", "2h"], "begins after its end"),
    ] {
        let ended = house.run(&[&["sessions", "list"][..], args].concat());
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.err.contains(told), "{ended:?}");
    }
}

#[test]
fn a_client_lists_searches_and_names_sessions() {
    let house = with_two_sessions();
    let mut client = Client::start(&house);
    client.call("agent/resume", json!({"sessionId": "first", "provider": "s", "model": "any"}));
    let listed = client.call("session/list", json!({}));
    let live = |session: &Value| (session["id"].clone(), session["live"].clone());
    let sessions: Vec<_> = listed["sessions"].as_array().unwrap().iter().map(live).collect();
    assert_eq!(sessions, [(json!("second"), json!(false)), (json!("first"), json!(true))]);
    assert_eq!(
        (&listed["total"], &listed["sessions"][0]["title"]),
        (&json!(2), &json!("A lighthouse, or a mast?"))
    );
    let found =
        client.call("session/list", json!({"where": {"live": true, "parent": null}, "limit": 1}));
    assert_eq!(found["sessions"][0]["id"], "first");
    assert_eq!(client.call("session/list", json!({"where": {"cwd": null}}))["total"], 0);

    let found = client.call("session/search", json!({"query": "mast?"}));
    assert_eq!(
        (&found["hits"][0]["id"], found["hits"].as_array().unwrap().len()),
        (&json!("second"), 1)
    );
    let found = client
        .call("session/search", json!({"query": "lighthouse", "session": "second", "limit": 1}));
    assert_eq!(found["hits"][0]["surface"], "current");
    let next =
        json!({"query": "lighthouse", "session": "second", "limit": 1, "cursor": found["next"]});
    assert_eq!(client.call("session/search", next)["next"], Value::Null);

    assert_eq!(
        client.call("session/title", json!({"session": "second"}))["source"]["kind"],
        "fallback"
    );
    let renamed = client.call("session/rename", json!({"session": "first", "title": "Tower"}));
    assert_eq!((&renamed["title"], &renamed["source"]["kind"]), (&json!("Tower"), &json!("user")));
    assert_eq!(client.call("session/title", json!({"session": "first"}))["title"], "Tower");
    let refreshed = client.call("session/refreshTitle", json!({"session": "first"}));
    assert_eq!(refreshed["title"], "What is that?");
    for session in ["first", "second"] {
        let stats = client.call("session/stats", json!({"session": session}));
        assert_eq!(stats["stats"]["turns"], 1, "{stats}");
    }
    let (_, code) = client.refusal("session/list", json!({"where": {"colour": "red"}}));
    assert_eq!(code, "INVALID_PARAMS");
    let (_, code) = client.refusal("session/rename", json!({"session": "second", "title": "x"}));
    assert_eq!(code, "AGENT_NOT_FOUND");
    let (_, code) = client.refusal("session/search", json!({"query": " "}));
    assert_eq!(code, "SESSION_QUERY_INVALID_QUERY");
    client.end();
}
