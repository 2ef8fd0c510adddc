//! `[hibernation]`, `session/hibernate`, and prompts that wake.

use serde_json::json;

use super::{House, rpc::Client};

#[test]
fn an_agent_of_the_config_hibernates_and_a_prompt_wakes_it_also_in_a_later_process() {
    let house = House::new();
    house.write("playhouse.toml", "[[agent]]\nid = \"clerk\"\nsessionId = \"s\"\n");
    let mut client = Client::start(&house);
    let first = client.call("agent/prompt", json!({"agent": "s", "text": "Go"}));
    assert_eq!(first["turn"], 1);
    client.call("agent/whenIdle", json!({"agent": "s"}));
    assert_eq!(client.call("session/hibernate", json!({"session": "s"})), json!({}));
    assert_eq!(client.call("agent/list", json!({}))["agents"], json!([]));
    let state = |client: &mut Client| {
        let listed = client.call("session/list", json!({"where": {"ids": ["s"]}}));
        listed["sessions"][0]["state"].clone()
    };
    assert_eq!(state(&mut client), "hibernated");
    assert_eq!(client.refusal("session/hibernate", json!({"session": "s"})).1, "AGENT_NOT_FOUND");
    let second = client.call("agent/prompt", json!({"agent": "s", "text": "On"}));
    assert_eq!((&second["turn"], state(&mut client)), (&json!(2), json!("live")));
    // One that was made otherwise stays, and says why.
    client.call("agent/create", json!({"id": "t"}));
    client.call("agent/prompt", json!({"agent": "t", "text": "Go"}));
    let (_, code) = client.refusal("session/hibernate", json!({"session": "t"}));
    assert_eq!(code, "CANNOT_HIBERNATE");
    assert_eq!(client.running.end().0, Some(0));

    let listed = house.run(&["sessions", "list"]).out;
    assert!(listed.lines().any(|line| line.contains("hibernated (config/clerk)")), "{listed}");
    let listed = house.run(&["sessions", "list", "--format", "jsonl"]).json();
    let state = |id: &str| listed.iter().find(|line| line["id"] == id).unwrap()["state"].clone();
    assert_eq!((state("s"), state("t")), (json!("hibernated"), json!("stored")));

    // The entry names no session any more, and its blueprint is known all the same.
    house.write(
        "playhouse.toml",
        "[[agent]]\nid = \"clerk\"\n[hibernation]\nidle_after_ms = 600000\n",
    );
    let mut client = Client::start(&house);
    let third = client.call("agent/followup", json!({"agent": "s", "text": "And on"}));
    assert!(third["messageId"].is_string());
    client.call("agent/whenIdle", json!({"agent": "s"}));
    let made = client.call("agent/create", json!({"agent": "clerk", "id": "another"}));
    assert_eq!(made["agent"], "another");
    client.call("session/hibernate", json!({"session": "another"}));
    assert_eq!(
        client.refusal("agent/prompt", json!({"agent": "gone", "text": "?"})).1,
        "AGENT_NOT_FOUND"
    );
    assert_eq!(
        client.refusal("agent/prompt", json!({"agent": "t", "text": "?"})).1,
        "AGENT_NOT_FOUND"
    );
    assert_eq!(client.running.end().0, Some(0));
    assert_eq!(house.run(&["sessions", "verify"]).code, Some(0));
}

#[test]
fn agents_are_put_to_sleep_and_woken_and_counted() {
    let house = House::new();
    let args = ["stress", "--hibernated", "30", "--live", "8", "--wakes", "10", "--store", "many"];
    let ended = house.run(&[&args[..], &["--format", "jsonl"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = &ended.json()[0];
    assert_eq!((&report["agents"], &report["wakes"]), (&json!(30), &json!(10)));
    assert_eq!(report["faults"], json!([]));
    let mixed = house.run(&["stress", "--hibernated", "3", "--agents", "3"]);
    assert_eq!(mixed.code, Some(2), "{mixed:?}");
}
