//! `playhouse top`, and the rows behind it.

use playhouse::models::scripted::Reply;
use serde_json::{Value, json};

use super::{
    House,
    rpc::{Client, served},
};

fn rows(answer: &Value) -> Vec<&str> {
    answer["agents"].as_array().unwrap().iter().map(|row| row["agent"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_told_whole_and_then_as_it_changes_also_to_a_client_that_hears_nothing_else() {
    let (house, stage, server) =
        served(vec![Reply::text("One.").at_gate("one"), Reply::text("Two.")]).await;
    let mut first = Client::start(&house);
    first.make("a");
    first.make("b");
    let mut watcher = Client::attach(&house);
    watcher.call("client/mute", json!({}));
    let tree = watcher.call("agents/tree", json!({}));
    assert_eq!((rows(&tree), &tree["whole"]), (vec!["a", "b"], &json!(true)));
    let row = &tree["agents"][0];
    assert_eq!(
        (&row["status"], &row["doing"], &row["turn"]),
        (&json!("idle"), &json!("resting"), &json!(0))
    );
    assert_eq!(row["model"], "p/m");

    // Nothing has changed.
    let after = |tree: &Value| json!({"after": tree["revision"]});
    let tree = watcher.call("agents/tree", after(&tree));
    assert_eq!((rows(&tree), &tree["whole"]), (vec![], &json!(false)));

    let prompt = first.ask("agent/prompt", json!({"agent": "a", "text": "Go"}));
    stage.gate("one").arrived(1).await;
    first.call("agent/followup", json!({"agent": "a", "text": "And then?"}));
    let tree = watcher.call("agents/tree", after(&tree));
    assert_eq!(rows(&tree), ["a"]);
    let row = &tree["agents"][0];
    assert_eq!((&row["status"], &row["doing"]), (&json!("running"), &json!("asking")));
    assert_eq!((&row["turn"], &row["step"], &row["nextTurn"]), (&json!(1), &json!(1), &json!(1)));
    stage.gate("one").open();
    first.answer(prompt);
    first.call("agent/whenIdle", json!({"agent": "a"}));
    first.call("agent/dispose", json!({"agent": "b"}));
    let tree = watcher.call("agents/tree", after(&tree));
    assert_eq!((rows(&tree), &tree["gone"]), (vec!["a"], &json!(["b"])));
    let row = &tree["agents"][0];
    assert_eq!(
        (&row["turn"], &row["lastEnd"], &row["lastError"]),
        (&json!(2), &json!("completed"), &json!(null))
    );
    assert!(row["outputTokens"].as_u64().unwrap() > 0, "{row}");

    // An older revision than the last gets all of it.
    let tree = watcher.call("agents/tree", json!({"after": 1}));
    assert_eq!((rows(&tree), &tree["whole"]), (vec!["a"], &json!(true)));
    first.end();
    let (code, lines) = watcher.running.end();
    assert_eq!(code, Some(0));
    // What it was told before it had said so does not count.
    let told: Vec<_> = lines.iter().filter(|line| line.contains("\"session/event\"")).collect();
    assert!(told.is_empty(), "it hears nothing else: {told:?}");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_top_prints_the_agents_once() {
    let (house, stage, server) = served(vec![Reply::text("One.").at_gate("one")]).await;
    let mut client = Client::start(&house);
    client.make("worker");
    client.ask("agent/prompt", json!({"agent": "worker", "text": "Go"}));
    stage.gate("one").arrived(1).await;
    let text = house.run(&["top"]);
    assert_eq!(text.code, Some(0), "{}", text.err);
    assert!(
        text.out.starts_with("worker  running  turn 1.1  asks the model  tokens 0 / 0  mail -"),
        "{}",
        text.out
    );
    let json = house.run(&["top", "--format", "jsonl", "--socket", ".playhouse/control.sock"]);
    let row: Value = serde_json::from_str(json.out.trim_end()).unwrap();
    assert_eq!((&row["agent"], &row["doing"]), (&json!("worker"), &json!("asking")));
    let tree = house.run(&["sessions", "tree", "--format", "jsonl"]);
    let row: Value = serde_json::from_str(tree.out.trim_end()).unwrap();
    assert_eq!((&row["id"], &row["activity"]), (&json!("worker"), &json!("running")));
    stage.gate("one").open();
    client.end();
    server.shutdown().await;
}

#[test]
fn the_tree_of_stored_sessions_says_who_each_child_is() {
    let house = House::new();
    let ran = house.run(&["run", "Which cache should we use?", "--session", "lead"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let tree = house.run(&["sessions", "tree", "--format", "jsonl"]);
    let rows: Vec<Value> =
        tree.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&rows[0]["id"], &rows[0]["depth"]), (&json!("lead"), &json!(0)));
    assert!(rows.len() > 1, "{}", tree.out);
    for row in &rows[1..] {
        assert_eq!((&row["parentSession"], &row["provider"]), (&json!("lead"), &json!("spawn")));
        assert!(row["label"].is_string(), "{row}");
        assert_eq!((&row["continuable"], &row["activity"]), (&json!(false), &json!(null)));
    }
    let text = house.run(&["sessions", "tree"]);
    let child = text.out.lines().nth(1).unwrap();
    assert!(child.starts_with("  ") && child.ends_with("\" by spawn"), "{child}");
}

#[test]
fn without_a_process_top_says_what_to_start() {
    let house = House::new();
    let ended = house.run(&["top"]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(
        ended.err.contains("no running process serves the store at .playhouse"),
        "{}",
        ended.err
    );
    let ended = house.run(&["top", "--interval", "1ms"]);
    assert!(ended.err.contains("an interval is 50ms to 1h"), "{}", ended.err);
}
