//! The control socket.

use std::os::unix::fs::PermissionsExt;

use super::*;

const SOCKET: &str = ".playhouse/control.sock";

/// Waits until a process listens there.
fn attach(house: &House) -> Client {
    let deadline = std::time::Instant::now() + crate::cli::PATIENCE;
    while std::os::unix::net::UnixStream::connect(house.path().join(SOCKET)).is_err() {
        assert!(std::time::Instant::now() < deadline, "nobody listens");
        std::thread::yield_now();
    }
    Client::attach(house)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_client_talks_to_the_same_agents_and_leaves_nothing_behind() {
    let script =
        vec![Reply::text("One."), Reply::text("Two.").at_gate("two"), Reply::text("Three.")];
    let (house, stage, server) = served(script).await;
    let mut first = Client::start(&house);
    first.make("a");
    let socket = std::fs::metadata(house.path().join(SOCKET)).unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);

    let mut second = Client::attach(&house);
    // It is told of agents that were there, and hears what they do.
    let joined = second.told("agent/created", |params| params["agent"] == "a");
    assert_eq!(joined["resumed"], true);
    let prompted = second.call("agent/prompt", json!({"agent": "a", "text": "Go"}));
    assert_eq!(prompted["text"], "One.");
    assert_eq!(first.event("turn/end")["data"]["reason"]["kind"], "completed");

    let schema = json!({"type": "object"});
    let tool = json!({"name": "mine", "description": "Mine.", "parameters": schema});
    second.call("tool/register", tool.clone());
    let (_, code) = first.refusal("tool/register", tool.clone());
    assert_eq!(code, "TOOL_DUPLICATE");
    // What it has asked for is answered although it says no more.
    second.ask("agent/prompt", json!({"agent": "a", "text": "And?"}));
    stage.gate("two").arrived(1).await;
    second.running.end_input();
    stage.gate("two").open();
    assert!(second.end().iter().any(|line| line.contains("Two.")));

    // Its tools went with it, and the agent works on.
    first.call("tool/register", tool);
    assert_eq!(first.call("agent/prompt", json!({"agent": "a", "text": "Go"}))["text"], "Three.");
    let mut third = Client::attach(&house);
    third.call("agent/list", json!({}));
    first.end();
    // Who is still connected hears the end.
    let (code, lines) = third.running.end();
    assert_eq!(code, Some(0));
    assert!(lines.iter().any(|line| line.contains("agent/disposed")), "{lines:?}");
    assert!(!house.path().join(SOCKET).exists());
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_reached_and_cancelled_through_its_store() {
    let (house, stage, server) = served(vec![Reply::text("Long.").at_gate("long")]).await;
    let run = house.spawn(&["run", "Go", "--model", "p/m"]);
    stage.gate("long").arrived(1).await;
    let mut client = attach(&house);
    let agents = client.call("agent/list", json!({}));
    let id = agents["agents"][0]["agent"].as_str().unwrap().to_owned();
    client.call("agent/cancel", json!({"agent": id}));
    let (code, _) = run.end();
    assert_eq!(code, Some(5));
    let (code, lines) = client.running.end();
    assert_eq!(code, Some(0));
    assert!(lines.iter().any(|line| line.contains("turn/end")), "{lines:?}");
    server.shutdown().await;
}

#[test]
fn nobody_to_attach_to_is_said_and_a_dead_socket_is_nobody() {
    let house = House::new();
    std::fs::create_dir(house.path().join(".playhouse")).unwrap();
    for dead in [false, true] {
        if dead {
            // A socket whose process is gone stays in the directory.
            drop(std::os::unix::net::UnixListener::bind(house.path().join(SOCKET)).unwrap());
        }
        let ended = house.run(&["rpc", "--attach"]);
        assert_eq!(ended.code, Some(2));
        assert!(
            ended.err.contains("no running process serves the store at .playhouse"),
            "{ended:?}"
        );
    }
    let mut client = Client::start(&house);
    client.call("agent/list", json!({}));
    let mut other = Client::attach(&house);
    other.call("agent/list", json!({}));
    client.end();
}

#[test]
fn the_socket_of_another_process_is_left_alone() {
    let house = House::new();
    let mut client = Client::start(&house);
    client.call("agent/list", json!({}));
    // A store in memory has no directory, whatever the config says.
    std::fs::write(house.path().join("memory.toml"), "[store]\nkind = \"memory\"\n").unwrap();
    let ended = house.run(&["rpc", "--config", "memory.toml"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut other = Client::attach(&house);
    other.call("agent/list", json!({}));
    // The next process may be there before this one has said its last words.
    std::fs::remove_file(house.path().join(SOCKET)).unwrap();
    let _next = std::os::unix::net::UnixListener::bind(house.path().join(SOCKET)).unwrap();
    client.end();
    assert!(house.path().join(SOCKET).exists());
}
