//! `playhouse rpc`.

pub mod client;
#[cfg(unix)]
mod control;

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    sync::Arc,
};

use playhouse::models::{
    mock_server::{MockOptions, MockServer},
    scripted::{Fault, FaultKind, Reply, Script, Stage},
};
use serde_json::{Value, json};

pub use self::client::Client;
use super::House;

fn refusal(answer: &Value) -> (i64, String) {
    let error = &answer["error"];
    let code = error["data"]["code"].as_str().unwrap_or_else(|| panic!("{answer}"));
    (error["code"].as_i64().unwrap(), code.to_owned())
}

fn kinds(log: &[Value]) -> Vec<&str> {
    log.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

fn turn_ends(log: &[Value]) -> Vec<&str> {
    let ends = log.iter().filter(|event| event["type"] == "turn/end");
    ends.map(|event| event["data"]["reason"]["kind"].as_str().unwrap()).collect()
}

/// A provider in this process, and a house whose config knows it as `p`.
pub async fn served(replies: Vec<Reply>) -> (House, Arc<Stage>, MockServer) {
    let stage = Stage::new(Script::sequence(replies));
    let server = MockServer::start_on(stage.clone(), MockOptions::new()).await.unwrap();
    let house = House::new();
    house.write(
        "playhouse.toml",
        &format!(
            "plugin = []\n[providers.p]\nkind = \"openai_compatible\"\nbase_url = \"{}\"\n",
            server.base_url()
        ),
    );
    (house, stage, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steer_lands_in_the_next_step_a_cancel_keeps_what_was_said_and_a_followup_runs_after() {
    let stall = Fault::new(FaultKind::Stall).after(2);
    let (house, stage, server) = served(vec![
        Reply::text("First.").at_gate("first"),
        Reply::text("Second one is long").with_fault(stall),
        Reply::text("Third."),
    ])
    .await;
    let mut client = Client::start(&house);
    client.make("a");
    let prompt = client.ask("agent/prompt", json!({"agent": "a", "text": "Go"}));
    stage.gate("first").arrived(1).await;
    client.call("agent/steer", json!({"agent": "a", "text": "Mind the gap", "messageId": "m1"}));
    // Sent again after a lost answer, it is not delivered twice.
    client.call("agent/steer", json!({"agent": "a", "text": "Mind the gap", "messageId": "m1"}));
    let inbox = client.call("inbox/list", json!({"agent": "a"}));
    assert_eq!(inbox["nextStep"].as_array().unwrap().len(), 1, "{inbox}");
    stage.gate("first").open();

    // One frame may carry both words.
    client.told("agent/stream", |frame| frame.to_string().contains("one"));
    // The two are in one write and one order: the followup's turn is not the cancelled one.
    client.ask("agent/cancel", json!({"agent": "a", "cause": {"kind": "user"}}));
    let followup = client.ask("agent/prompt", json!({"agent": "a", "text": "And now?"}));
    let first = client.answer(prompt)["result"].clone();
    assert_eq!((&first["turn"], &first["reason"]["kind"]), (&json!(1), &json!("aborted")));
    assert_eq!(first["text"], "Second one ");
    let second = client.answer(followup)["result"].clone();
    assert_eq!((&second["turn"], &second["text"]), (&json!(2), &json!("Third.")));

    let log = client.log("a");
    assert_eq!(turn_ends(&log), ["aborted", "completed"]);
    let steered = log.iter().find(|event| {
        event["type"] == "user/message" && event["data"]["content"][0]["text"] == "Mind the gap"
    });
    let step = log.iter().rfind(|event| {
        event["type"] == "step/start" && event["seq"].as_u64() < steered.unwrap()["seq"].as_u64()
    });
    assert_eq!(step.unwrap()["data"], json!({"turn": 1, "step": 2}));
    let cut = log.iter().find(|event| event["data"]["interrupted"] == true).unwrap();
    assert_eq!(cut["data"]["message"]["content"][0]["text"], "Second one ");
    client.call("agent/whenIdle", json!({"agent": "a"}));
    client.end();
    assert_eq!(house.run(&["sessions", "verify"]).code, Some(0));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_told_in_order_exactly_as_it_is_stored() {
    let (house, _, server) = served(vec![Reply::text("One."), Reply::text("Two.")]).await;
    let mut client = Client::start(&house);
    client.make("a");
    for text in ["1", "2"] {
        client.call("agent/prompt", json!({"agent": "a", "text": text}));
    }
    client.told("session/durable", |params| params["seq"].as_u64().unwrap() >= 10);
    client.call("agent/dispose", json!({"agent": "a"}));
    let told: Vec<_> = client
        .end()
        .iter()
        .filter_map(|line| {
            let start =
                r#"{"jsonrpc":"2.0","method":"session/event","params":{"session":"a","event":"#;
            Some(line.strip_prefix(start)?.strip_suffix("}}")?.to_owned())
        })
        .collect();
    let shown = house.run(&["sessions", "show", "a", "--format", "jsonl"]);
    assert_eq!(told, shown.out.lines().collect::<Vec<_>>());
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_runs_its_tools_and_hears_when_a_call_is_given_up() {
    let call = || Reply::call("ask", r#"{"q":"why"}"#);
    let (house, _, server) =
        served(vec![call(), call(), Reply::text("Because."), call(), call()]).await;
    let mut client = Client::start(&house);
    client.make("a");
    let parameters = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    let tool = json!({"name": "ask", "description": "Asks", "parameters": parameters});
    client.call("tool/register", tool.clone());
    assert_eq!(client.refusal("tool/register", tool), (-32000, "TOOL_DUPLICATE".to_owned()));

    let prompt = client.ask("agent/prompt", json!({"agent": "a", "text": "Go"}));
    let asked = client.message(|m| m["method"] == "tool/call");
    assert_eq!(asked["params"]["arguments"], json!({"q": "why"}));
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"value": {"a": 42}}});
    client.running.send(&answer.to_string());
    let asked = client.message(|m| m["method"] == "tool/call");
    let error = json!({"code": 1, "message": "no idea", "data": {"code": "NO_IDEA"}});
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "error": error});
    client.running.send(&answer.to_string());
    assert_eq!(client.answer(prompt)["result"]["text"], "Because.");

    let prompt = client.ask("agent/prompt", json!({"agent": "a", "text": "Again"}));
    let asked = client.message(|m| m["method"] == "tool/call");
    client.ask("agent/cancel", json!({"agent": "a"}));
    let abort = client.told("tool/abort", |_| true);
    assert_eq!((&abort["id"], &abort["cause"]["kind"]), (&asked["id"], &json!("user")));
    let late = json!({"jsonrpc": "2.0", "id": asked["id"], "result": "too late"});
    client.running.send(&late.to_string());
    assert_eq!(client.answer(prompt)["result"]["reason"]["kind"], "aborted");

    let log = client.log("a");
    let results: Vec<_> = log.iter().filter(|event| event["type"] == "tool/result").collect();
    let text = |at: usize| results[at]["data"]["message"]["content"][0]["text"].as_str().unwrap();
    assert_eq!((text(0), text(1)), (r#"{"a":42}"#, "Error: no idea"));
    assert_eq!(results[1]["data"]["error"]["code"], "NO_IDEA");
    assert_eq!(text(2), "Error: tool call aborted");

    // The client goes away in the middle of a call.
    client.ask("agent/prompt", json!({"agent": "a", "text": "Once more"}));
    client.message(|m| m["method"] == "tool/call");
    client.end();
    let log = house.run(&["sessions", "show", "a", "--format", "jsonl"]).json();
    assert_eq!(turn_ends(&log), ["completed", "aborted", "aborted"]);
    let last = log.iter().rfind(|event| event["type"] == "tool/result").unwrap();
    assert_eq!(last["data"]["error"]["code"], "CLIENT_GONE");
    assert_eq!(house.run(&["sessions", "verify"]).code, Some(0));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_result_is_kept_beside_the_store_and_the_model_sees_where() {
    let replies = vec![Reply::call("ask", "{}"), Reply::text("Because.")];
    let (house, _, server) = served(replies).await;
    let config = std::fs::read_to_string(house.path().join("playhouse.toml")).unwrap();
    house.write("playhouse.toml", &format!("{config}[tools]\nmax_inline_bytes = 600\n"));
    let mut client = Client::start(&house);
    client.make("a");
    let tool = json!({"name": "ask", "description": "Asks", "parameters": {"type": "object"}});
    client.call("tool/register", tool);
    let prompt = client.ask("agent/prompt", json!({"agent": "a", "text": "Go"}));
    let asked = client.message(|m| m["method"] == "tool/call");
    let long = "x".repeat(5000);
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"value": long}});
    client.running.send(&answer.to_string());
    assert_eq!(client.answer(prompt)["result"]["text"], "Because.");
    let log = client.log("a");
    let result = log.iter().find(|event| event["type"] == "tool/result").unwrap();
    let shown = result["data"]["message"]["content"][0]["text"].as_str().unwrap();
    assert!(shown.len() <= 600, "{shown}");
    let (_, place) = shown.rsplit_once(" is in ").unwrap();
    let (file, _) = place.split_once(';').unwrap();
    assert!(file.contains("/.playhouse/spills/a/"), "{file}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), long);
    client.end();
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_input_disposes_durably_and_a_resume_goes_on() {
    let stall = Fault::new(FaultKind::Stall).after(1);
    let (house, _, server) =
        served(vec![Reply::text("Half of it").with_fault(stall), Reply::text("Rest.")]).await;
    let mut client = Client::start(&house);
    client.make("a");
    client.ask("agent/prompt", json!({"agent": "a", "text": "Go"}));
    client.told("agent/stream", |frame| frame.to_string().contains("Half"));
    client.call("agent/followup", json!({"agent": "a", "text": "Next"}));
    let lines = client.end();
    assert!(lines.iter().any(|line| line.contains("agent/disposed")), "{lines:?}");

    let mut client = Client::start(&house);
    let resumed = json!({"sessionId": "a", "provider": "p", "model": "m"});
    client.call("agent/resume", resumed.clone());
    assert_eq!(client.refusal("agent/resume", resumed).1, "SESSION_ALREADY_OWNED");
    let inbox = client.call("inbox/list", json!({"agent": "a"}));
    assert_eq!(inbox["nextTurn"][0]["content"][0]["text"], "Next", "{inbox}");
    let spliced = json!({"agent": "a", "target": "next-turn", "start": 0, "deleteCount": 1,
        "insert": [{"text": "Something else"}]});
    let edited = client.call("inbox/splice", spliced);
    assert_eq!(edited["removed"][0]["content"][0]["text"], "Next");
    assert_eq!(edited["inserted"][0]["content"][0]["text"], "Something else");
    client.call("agent/cancel", json!({"agent": "a", "keepInbox": true}));
    let settings = client.call("config/set", json!({"maxParallelToolCalls": 3}));
    assert_eq!(settings, json!({"maxParallelToolCalls": 3}));
    let flushed = client.call("session/flush", json!({"session": "a"}));
    assert_eq!(flushed["stored"], true);
    let log = client.log("a");
    assert_eq!(turn_ends(&log), ["aborted"]);
    assert!(kinds(&log).contains(&"session/end-seed"), "{:?}", kinds(&log));
    let usage = client.call("session/usage", json!({"session": "a"}));
    assert!(usage["contextBreakdown"]["messageTokens"].as_u64() > Some(0), "{usage}");
    client.call("agent/dispose", json!({"agent": "a", "keepInbox": true}));
    // A session without an agent is read from the store.
    assert!(client.log("a").len() >= log.len());
    assert_eq!(client.call("session/usage", json!({"session": "a"})), usage);
    client.end();
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_selected_and_kept_over_a_resume_that_names_no_other() {
    let (house, _, server) = served(vec![Reply::text("One."), Reply::text("Two.")]).await;
    let mut client = Client::start(&house);
    client.make("a");
    let of = json!({"agent": "a"});
    let (m, n) = (json!({"provider": "p", "model": "m"}), json!({"provider": "p", "model": "n"}));
    let model = client.call("model/get", of.clone());
    assert_eq!(model, json!({"current": m, "pending": null, "lastUsed": null}));
    client.call("agent/prompt", json!({"agent": "a", "text": "Go"}));
    let select = |model: &str| json!({"agent": "a", "provider": "p", "model": model});
    let selected = client.call("model/select", select("n"));
    // It was told before.
    assert!(client.running.kept.iter().any(|line| line.contains("model/selection")));
    assert_eq!(client.event("model/selection")["seq"], selected["seq"]);
    let model = client.call("model/get", of.clone());
    assert_eq!(model, json!({"current": n, "pending": n, "lastUsed": m}));
    client.call("agent/prompt", json!({"agent": "a", "text": "On"}));
    let model = client.call("model/get", of.clone());
    assert_eq!(model, json!({"current": n, "pending": null, "lastUsed": n}));
    let told = client.log("a").iter().any(|event| event.to_string().contains("[model changed: "));
    assert!(told, "the model is told of it");
    assert_eq!(client.refusal("model/select", select("")).1, "INVALID_MODEL_SELECTION");
    let unknown = json!({"agent": "a", "provider": "x", "model": "m"});
    assert_eq!(client.refusal("model/select", unknown).1, "UNKNOWN_PROVIDER");
    assert_eq!(client.refusal("model/select", of.clone()).1, "INVALID_PARAMS");
    client.call("agent/dispose", of.clone());
    client.call("agent/resume", json!({"sessionId": "a"}));
    assert_eq!(client.call("model/get", of.clone())["current"], n);
    client.call("agent/dispose", of.clone());
    client.call("agent/resume", json!({"sessionId": "a", "provider": "p", "model": "m"}));
    assert_eq!(client.call("model/get", of)["pending"], m);
    client.end();
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_wrongly_is_refused_with_its_code_and_disturbs_nobody() {
    let (house, _, server) = served(vec![Reply::text("Fine.")]).await;
    let mut client = Client::start(&house);
    client.make("a");
    for (line, code) in [
        ("{oops", -32700),
        ("\u{7f}", -32700),
        ("[]", -32600),
        ("3", -32600),
        (r#"{"id":null,"method":"agent/list"}"#, -32600),
    ] {
        client.running.send(line);
        let answer = client.message(|m| m["id"].is_null() && m["error"].is_object());
        assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
    }
    client.running.send(r#"{"jsonrpc":"2.0","id":"nobody","result":1}"#);
    for (method, params, code, stable) in [
        ("agent/fly", json!({}), -32601, "METHOD_NOT_FOUND"),
        ("agent/prompt", json!({"agent": "a"}), -32602, "INVALID_PARAMS"),
        ("agent/prompt", json!({"agent": "a", "text": "x", "colour": 1}), -32602, "INVALID_PARAMS"),
        ("agent/prompt", json!([1]), -32602, "INVALID_PARAMS"),
        ("agent/prompt", json!({"agent": "b", "text": "x"}), -32000, "AGENT_NOT_FOUND"),
        ("agent/send", json!({"agent": "a", "text": "x"}), -32602, "INVALID_PARAMS"),
        ("agent/create", json!({"id": "a"}), -32000, "SESSION_ALREADY_EXISTS"),
        ("agent/create", json!({"provider": "q", "model": "m"}), -32000, "UNKNOWN_PROVIDER"),
        (
            "agent/create",
            json!({"provider": "deepseek", "model": "m"}),
            -32000,
            "MISSING_CREDENTIAL",
        ),
        ("agent/create", json!({"provider": "p"}), -32602, "INVALID_PARAMS"),
        ("agent/create", json!({"maxTokens": 0}), -32000, "INVALID_ARGUMENT"),
        ("agent/resume", json!({"sessionId": "gone"}), -32000, "SESSION_NOT_FOUND"),
        ("agent/resume", json!({}), -32602, "INVALID_PARAMS"),
        ("session/log", json!({"session": "gone"}), -32000, "SESSION_NOT_FOUND"),
        ("config/set", json!({"maxParallelToolCalls": 0}), -32602, "INVALID_PARAMS"),
        ("tool/unregister", json!({"name": "x"}), -32000, "UNKNOWN_TOOL"),
    ] {
        let refused = client.refusal(method, params.clone());
        assert_eq!(refused, (code, stable.to_owned()), "{method} {params}");
    }
    let outcome = client.call("agent/prompt", json!({"agent": "a", "text": "Well?"}));
    assert_eq!(outcome["text"], "Fine.");
    client.end();
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_process_in_order_even_in_the_middle_of_a_tool_call() {
    let (house, _, server) = served(vec![Reply::call("ask", "{}")]).await;
    let mut client = Client::start(&house);
    client.make("a");
    let tool = json!({"name": "ask", "description": "Asks", "parameters": {"type": "object"}});
    client.call("tool/register", tool);
    client.ask("agent/prompt", json!({"agent": "a", "text": "Go"}));
    client.message(|m| m["method"] == "tool/call");
    client.running.signal("-TERM");
    // Its input stays open.
    assert_eq!(client.running.child.wait().unwrap().code(), Some(0));
    let log = house.run(&["sessions", "show", "a", "--format", "jsonl"]).json();
    assert_eq!(turn_ends(&log), ["aborted"]);
    server.shutdown().await;
}

#[test]
fn a_second_signal_does_not_wait_for_a_client_that_does_not_read() {
    let house = House::new();
    let mut command = house.command(&["rpc"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    // Far more than the pipe and the queue hold, and so far more than the command can write. Since
    // its input is a pipe too, it has read almost all of it once this is written.
    let id = "x".repeat(1000);
    let request = json!({"jsonrpc": "2.0", "id": id, "method": "agent/list"}).to_string();
    for _ in 0..4000 {
        writeln!(input, "{request}").unwrap();
    }
    output.read_line(&mut String::new()).unwrap();
    for signal in ["-TERM", "-INT"] {
        let killed = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(killed.unwrap().success());
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // Until here nobody read on.
    drop(output);
}

#[test]
fn agents_of_the_config_are_made_first_and_one_that_fails_is_told() {
    let house = House::new();
    house.write("s.toml", "[[rules]]\nreply = { text = \"Yes.\" }\n");
    house.write(
        "playhouse.toml",
        "[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n\
         [[agent]]\nid = \"fresh\"\nprovider = \"s\"\nmodel = \"m\"\n\
         [[agent]]\nid = \"exact\"\nprovider = \"s\"\nmodel = \"m\"\nsessionId = \"it\"\n\
         [[agent]]\nid = \"gone\"\nprovider = \"s\"\nmodel = \"m\"\nresumeSessionId = \"no\"\n",
    );
    for resumed in [false, true] {
        let mut client = Client::start(&house);
        let failed = client.told("config/startFailed", |_| true);
        assert_eq!((&failed["id"], &failed["sessionId"]), (&json!("gone"), &json!("no")));
        assert_eq!(failed["error"]["code"], "SESSION_NOT_FOUND");
        let fresh = |params: &Value| {
            params["agent"].as_str().is_some_and(|id| id.starts_with("fresh-session-"))
        };
        client.told("agent/created", fresh);
        let exact = client.told("agent/created", |params| params["agent"] == "it");
        assert_eq!(exact["resumed"], resumed);
        let outcome = client.call("agent/prompt", json!({"agent": "it", "text": "Well?"}));
        assert_eq!(outcome["text"], "Yes.");
        client.event("turn/end");
        client.end();
    }
    assert_eq!(house.run(&["sessions", "verify"]).code, Some(0));
}

/// Whether a message is as the document shows it: `…` stands for any value.
fn fits(shown: &Value, message: &Value) -> bool {
    match (shown, message) {
        (Value::String(any), _) if any == "…" => true,
        (Value::Object(shown), Value::Object(message)) => {
            shown.len() == message.len()
                && shown
                    .iter()
                    .all(|(key, shown)| message.get(key).is_some_and(|value| fits(shown, value)))
        }
        (shown, message) => shown == message,
    }
}

#[test]
fn the_exchange_of_the_document_goes_as_it_says() {
    let document = include_str!("../../docs/rpc.md");
    let block = |kind: &str, nth: usize| {
        let start = format!("```{kind}\n");
        let block = document.split(start.as_str()).nth(nth + 1).unwrap();
        block.split("```").next().unwrap()
    };
    let house = House::new();
    house.write("playhouse.toml", block("toml", 0));
    house.write("oslo.toml", block("toml", 1));
    let mut client = Client::start(&house);
    let mut seen = HashMap::from([("-->", 0), ("<--", 0)]);
    for line in block("jsonrpc", 0).lines() {
        let (way, text) = line.split_once(' ').unwrap();
        *seen.get_mut(way).unwrap() += 1;
        if way == "-->" {
            client.running.send(text);
        } else {
            let shown: Value = serde_json::from_str(text).unwrap();
            client.message(|message| fits(&shown, message));
        }
    }
    assert!(seen.values().all(|count| *count > 5), "{seen:?}");
    client.end();
}
