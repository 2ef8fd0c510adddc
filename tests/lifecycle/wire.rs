//! The same turns in process and over HTTP.

use std::{collections::HashMap, sync::Arc};

use playhouse::{
    AgentHandle, AgentOptions, CancelCause, Harness, NewAgent, Recovery, TurnEndReason,
    messages::frame::Frame,
    models::{
        anthropic::{self, Anthropic},
        mock_server::{MockOptions, MockServer},
        openai_compatible::{Config, KeySource, OpenAiCompatible, Secret},
        scripted::{Fault, FaultKind, Reply, Script, ScriptedAdapter, Stage, Wire},
    },
    plugin_api::{hook::Next, llm::LlmAdapter},
};
use serde_json::{Map, Value, json};

use super::rig::{self, Pause, soon, stubborn_tool};

/// What is the same on every route: ids in order of appearance, no times, no route, streams as what
/// they say.
#[derive(Default)]
struct Normal {
    ids: HashMap<String, usize>,
}

impl Normal {
    fn id(&mut self, id: &str) -> Value {
        let next = self.ids.len();
        json!(format!("#{}", self.ids.entry(id.to_owned()).or_insert(next)))
    }

    fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let kept = fields.iter().filter_map(|(key, value)| {
                    let value = match (key.as_str(), value) {
                        ("time" | "provider" | "model" | "contextWindow" | "replayState", _) => {
                            return None;
                        }
                        // What the route fills in.
                        ("adapterDefaults" | "config" | "totalTokens", _) => return None,
                        ("id" | "callId" | "toolCallId", Value::String(id)) => self.id(id),
                        ("stream", stream) => said(stream),
                        (_, value) => self.value(value),
                    };
                    Some((key.clone(), value))
                });
                Value::Object(kept.collect::<Map<_, _>>())
            }
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            other => other.clone(),
        }
    }
}

/// The text, reasoning and arguments of a packed stream, and how it finished.
fn said(stream: &Value) -> Value {
    let mut parts: Vec<(String, String)> = Vec::new();
    for record in stream.as_array().unwrap() {
        let (kind, text) = match record["type"].as_str().unwrap() {
            "chunk" => {
                let chunk = &record["chunk"];
                match chunk["type"].as_str().unwrap() {
                    "finish" => ("finish", chunk["reason"]["kind"].to_string()),
                    "text-delta" => ("text-chunks", join(&json!([chunk["text"]]))),
                    "reasoning-delta" => ("reasoning-chunks", join(&json!([chunk["text"]]))),
                    _ => continue,
                }
            }
            kind @ "tool-call-chunks" => (kind, join(&record["args"])),
            kind => (kind, join(&record["texts"])),
        };
        match parts.last_mut() {
            Some((last, so_far)) if last == kind => so_far.push_str(&text),
            _ => parts.push((kind.to_owned(), text)),
        }
    }
    json!(parts)
}

fn join(texts: &Value) -> String {
    texts.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn normal(agent: &AgentHandle) -> Vec<Value> {
    let mut normal = Normal::default();
    let log = agent.session().log();
    let parse = |json: String| serde_json::from_str::<Value>(&json).unwrap();
    log.iter().map(|event| normal.value(&parse(event.to_json()))).collect()
}

fn script() -> Script {
    let two = Reply::call("work", "{}").and_call("work", "{}").with_reasoning("Both are needed.");
    let down = Reply::fault(FaultKind::Error)
        .with_fault(Fault::new(FaultKind::Error).with_status(500).with_message("down"));
    let stalls = Reply::text("one two three four five six")
        .with_fault(Fault::new(FaultKind::Stall).after(4));
    let replies =
        [two, down, Reply::text("Both are done. Ünï©ode 🎭."), stalls, Reply::text("On.")];
    Script::sequence(replies)
}

/// Two tool calls, a failure that is retried, an answer; a turn cut by a cancel; one more.
async fn play(harness: &Harness, provider: &str) -> AgentHandle {
    harness.register_tool(stubborn_tool("work", Pause::opened())).unwrap();
    let retry = |_, _: Next<_, _>| async { Ok(Recovery::Retry) };
    harness.world().hooks.request_error.add(&harness.world().scope, retry).unwrap();
    let options = AgentOptions::new().model(provider, "any");
    let agent = harness.create(NewAgent::new(options)).await.unwrap();
    let outcome = soon(agent.prompt("go")).await.unwrap();
    assert_eq!(outcome.text, "Both are done. Ünï©ode 🎭.");
    soon(agent.when_idle()).await.unwrap();
    let mut frames = agent.session().frames();
    let id = agent.followup("and on").await.unwrap();
    let mut shown = String::new();
    while shown != "one two three four " {
        let Some(Frame::Chunks { chunks, .. }) = soon(frames.next()).await else { continue };
        shown.extend(chunks.iter().filter_map(|timed| super::streams::text_of(&timed.chunk)));
    }
    agent.cancel(CancelCause::User);
    let outcome = soon(agent.outcome(&id, 0)).await.unwrap();
    assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
    assert_eq!(soon(agent.prompt("last")).await.unwrap().text, "On.");
    soon(agent.when_idle()).await.unwrap();
    agent
}

/// An adapter for a server at this URL, with this key.
type Adapter = fn(&str, KeySource) -> Arc<dyn LlmAdapter>;

fn chat_completions(url: &str, key: KeySource) -> Arc<dyn LlmAdapter> {
    Arc::new(OpenAiCompatible::new(Config::new("wire", url, key)).unwrap())
}

fn messages(url: &str, key: KeySource) -> Arc<dyn LlmAdapter> {
    Arc::new(Anthropic::new(anthropic::Config::new("wire", url, key)).unwrap())
}

async fn over_http(adapter: Adapter, script: Script) -> Vec<Value> {
    let server = MockServer::start_on(Stage::new(script), MockOptions::new().api_key("sk-test"));
    let server = server.await.unwrap();
    let key = KeySource::Explicit(Secret::new("sk-test").unwrap());
    let adapter = adapter(&server.base_url(), key);
    let harness = playhouse::minimal().start().await.unwrap();
    let _ = harness.world().models.register(["wire"], adapter).unwrap();
    let log = normal(&play(&harness, "wire").await);
    assert_eq!(server.requests().len(), 5);
    harness.shutdown().await.unwrap();
    server.shutdown().await;
    log
}

#[tokio::test]
async fn turns_over_http_leave_the_same_events_as_in_process() {
    let (harness, model) = rig::with(playhouse::minimal(), []).await;
    let scripted = Arc::new(ScriptedAdapter::new(script()));
    let _ = harness.world().models.register(["in-process"], scripted).unwrap();
    let expected = normal(&play(&harness, "in-process").await);
    assert!(model.captured().is_empty());
    harness.shutdown().await.unwrap();

    let mut split = script();
    for reply in &mut split.sequence {
        reply.wire = Wire { split_bytes: Some(3), comments: true, ..Wire::default() };
    }
    let wires: [Adapter; 2] = [chat_completions, messages];
    for adapter in wires {
        assert_same(&over_http(adapter, script()).await, &expected);
        // However the bytes are cut.
        assert_same(&over_http(adapter, split.clone()).await, &expected);
    }
}

fn assert_same(ours: &[Value], theirs: &[Value]) {
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
}
