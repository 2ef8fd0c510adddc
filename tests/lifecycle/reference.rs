//! The same conversations as the reference's own logs, run here: the same core events in the same
//! order.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use playhouse::{
    AgentHandle, Event, Harness, NewAgent, ToolError, TurnEndReason,
    messages::{frame::Frame, header::SessionHeader},
    models::scripted::{Call, Chunking, Fault, FaultKind, Reply},
    plugin_api::{
        prompt::{Context, Section},
        store::{EventBatch, Store, StoreReader},
        tool::tool_fn,
    },
};
use playhouse_stores::MemoryStore;
use serde_json::{Value, json};

use super::rig::{self, kinds, soon};

const TWO_TURNS: &str = include_str!("../data/reference-sessions/two-turns.v4.jsonl");
const KILLED: &str = include_str!("../data/reference-sessions/killed-mid-stream.v4.jsonl");

/// The core events of a reference's log: without its plugins' events, and numbered anew.
fn core_events(log: &str) -> Vec<Value> {
    let plugins = ["permission/", "sandbox/", "approval/", "session/title", "job/", "session-log-"];
    let mut renumbered = HashMap::new();
    let mut events = Vec::new();
    for line in log.lines().skip(1) {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let kind = event["type"].as_str().unwrap();
        if plugins.iter().any(|plugin| kind.starts_with(plugin)) {
            continue;
        }
        renumbered.insert(event["seq"].as_u64().unwrap(), events.len() as u64);
        event["seq"] = json!(events.len());
        if let Some(sources) = event.get_mut("sourceEventSeqs") {
            let old = sources.as_array().unwrap().iter();
            *sources = old.map(|seq| json!(renumbered[&seq.as_u64().unwrap()])).collect();
        }
        events.push(event);
    }
    events
}

/// What of an event must be the same: its place, what it does to the surface, and what it says, but
/// not ids, times, texts of this build, or what the route makes of a call.
fn outline(event: &Value) -> Value {
    let data = &event["data"];
    let message = if data["role"].is_string() { data } else { &data["message"] };
    let blocks = |message: &Value| -> Value {
        let blocks = message["content"].as_array().cloned().unwrap_or_default();
        let brief = |block: Value| match block["type"].as_str() {
            Some("tool-call") => block,
            _ => block["type"].clone(),
        };
        blocks.into_iter().map(brief).collect()
    };
    let inserted: Option<Vec<_>> =
        data["inserted"].as_array().map(|all| all.iter().map(|m| m["content"].clone()).collect());
    let tools = data["header"]["tools"].as_array();
    let has_bash = tools.map(|tools| tools.iter().any(|tool| tool["name"] == "bash"));
    json!({
        "type": event["type"], "seq": event["seq"],
        "surfaceOp": event["surfaceOp"], "sourceEventSeqs": event["sourceEventSeqs"],
        "turn": data["turn"], "step": data["step"], "ends": data["reason"],
        "splice": [data["target"], data["start"], data["removedCount"], json!(inserted)],
        "message": [message["role"], message["source"]["kind"], blocks(message)],
        "result": [message["toolCallId"], message["isError"], data["callId"], data["arguments"]],
        "tools": has_bash,
        "usage": data["usage"].is_object(),
    })
}

fn assert_same(ours: &[Value], theirs: &[Value]) {
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(outline(ours), outline(theirs));
    }
    assert_eq!(ours.len(), theirs.len());
}

fn parsed(agent: &AgentHandle) -> Vec<Value> {
    let log = agent.session().log();
    log.iter().map(|event| serde_json::from_str(&event.to_json()).unwrap()).collect()
}

fn call(n: u32) -> Reply {
    let arguments = r#"{"command": "echo 5", "description": "add"}"#;
    let (name, id) = ("bash".to_owned(), Some(format!("call_r{n}")));
    let arguments = playhouse::models::scripted::Arguments::Raw(arguments.to_owned());
    Reply { calls: vec![Call { name, arguments, id }], ..Reply::default() }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Bash {
    #[expect(dead_code, reason = "the recording's tool fails before it looks")]
    command: String,
    #[expect(dead_code, reason = "as above")]
    description: String,
}

async fn stage(
    store: MemoryStore,
    replies: impl IntoIterator<Item = Reply>,
) -> (Harness, Arc<playhouse::models::scripted::ScriptedAdapter>) {
    let (harness, model) = rig::on(Arc::new(store), replies).await;
    // The route that the recorded sessions go on with.
    let _ = harness.world().models.register(["deepseek-official"], model.clone()).unwrap();
    let fails =
        |_: Bash, _run| async { Err::<String, _>(ToolError::new("tool failed in this recording")) };
    harness.register_tool(Arc::new(tool_fn("bash", "", fails))).unwrap();
    let world = harness.world();
    let persona = Section::text("persona", 0.0, "You are a test agent.");
    world.prompts.section(&world.scope, persona).unwrap();
    for (order, name) in ["working-directory:current", "sandbox:policy"].into_iter().enumerate() {
        let context = Context::text(name, order as f64, "section text");
        world.prompts.context(&world.scope, context).unwrap();
    }
    (harness, model)
}

#[tokio::test]
async fn two_turns_of_three_steps_write_the_events_that_the_reference_wrote() {
    let answer = || Reply::text("The sum is 5.");
    let replies = [call(1), call(2), answer(), call(4), call(5), answer()];
    let (harness, model) = stage(MemoryStore::new(), replies).await;
    let agent = harness.create(NewAgent::new(rig::options())).await.unwrap();
    for prompt in ["add 2 and 3", "add 2 and 3 again"] {
        agent.prompt(prompt).await.unwrap();
    }
    soon(agent.when_idle()).await.unwrap();
    model.assert_consumed();
    let expected = core_events(TWO_TURNS);
    assert_eq!(expected.len(), 40);
    assert_same(&parsed(&agent), &expected);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_process_killed_mid_stream_leaves_the_events_that_the_reference_left() {
    let stalls = Reply::text("The sum is 5. And so on")
        .chunked(Chunking::Words)
        .with_fault(Fault::new(FaultKind::Stall).after(3));
    let store = MemoryStore::new();
    let (harness, _) = stage(store.clone(), [call(10), call(11), stalls]).await;
    let agent = harness.create(NewAgent::new(rig::options()).id("killed")).await.unwrap();
    let mut frames = agent.session().frames();
    agent.followup("add 2 and 3").await.unwrap();
    let mut shown = String::new();
    while shown != "The sum is " {
        let Some(Frame::Chunks { chunks, .. }) = soon(frames.next()).await else { continue };
        shown.extend(chunks.iter().filter_map(|timed| super::streams::text_of(&timed.chunk)));
    }
    let killed = store.read(agent.id()).await.unwrap();
    let left: Vec<Value> =
        killed.events.iter().map(|json| serde_json::from_slice(json).unwrap()).collect();
    let expected = core_events(KILLED);
    assert_eq!(expected.len(), 19);
    assert_same(&left, &expected);
    harness.shutdown().await.unwrap();

    // What was shown is kept, and the turn is closed by the table.
    let store = MemoryStore::new();
    let handle = store.create(&killed.header, 0).await.unwrap();
    handle.append(EventBatch { first_seq: 0, events: killed.events.clone() }).await.unwrap();
    let tail = killed.tail.unwrap();
    for part in tail.parts {
        handle.tail(tail.attempt, part).await.unwrap();
    }
    handle.close().await.unwrap();
    let (harness, model) = stage(store, [Reply::text("5")]).await;
    let agent = harness.resume("killed", NewAgent::new(rig::options())).await.unwrap();
    let closers = ["assistant/message", "step/end", "turn/end", "session/end-seed"];
    assert_eq!(kinds(&agent)[left.len()..], closers);
    assert_eq!(agent.prompt("so?").await.unwrap().text, "5");
    let request = &model.captured()[0].messages;
    assert_eq!(request[request.len() - 2].text(), "The sum is ");
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_log_that_the_reference_left_is_closed_and_goes_on_here() {
    let events = core_events(KILLED);
    let texts: Vec<_> = events.iter().map(|event| Bytes::from(event.to_string())).collect();
    // Written back as it was read.
    for (text, event) in texts.iter().zip(&events) {
        let parsed = Event::from_json(std::str::from_utf8(text).unwrap()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&parsed.to_json()).unwrap(), *event);
    }
    let store = MemoryStore::new();
    let header = Arc::new(SessionHeader::new("reference".into(), 1_796_066_350_526));
    let handle = store.create(&header, 0).await.unwrap();
    handle.append(EventBatch { first_seq: 0, events: texts }).await.unwrap();
    handle.close().await.unwrap();
    let (harness, model) = stage(store, [Reply::text("Five.")]).await;
    let agent = harness.resume("reference", NewAgent::new(rig::options())).await.unwrap();
    assert_eq!(kinds(&agent)[events.len()..], ["step/end", "turn/end", "session/end-seed"]);
    let outcome = agent.prompt("so?").await.unwrap();
    assert_eq!((outcome.text.as_str(), outcome.reason), ("Five.", TurnEndReason::Completed));
    let roles: Vec<_> = model.captured()[0]
        .messages
        .iter()
        .map(|message| serde_json::to_value(message.role).unwrap().as_str().unwrap().to_owned())
        .collect();
    let expected =
        ["system", "user", "user", "assistant", "tool", "assistant", "tool", "user", "user"];
    assert_eq!(roles, expected);
    harness.shutdown().await.unwrap();
}
