//! The same job in process and over HTTP leaves the same durable events.

use std::collections::BTreeMap;

use playhouse::{
    messages::{
        assembler::BlockAssembler,
        event::{Event, EventBody},
        header::SessionHeader,
        packed::StreamRecord,
    },
    models::{
        mock_server::{MockOptions, MockServer},
        scripted::{Script, Stage},
    },
    plugin_api::store::{ListQuery, StoreReader},
};
use playhouse_stores::JournalReader;
use serde_json::{Value, json};

use super::House;

const JOB: &str = "Compare three caching strategies";

/// A session without what must differ: ids, times, route and chunk boundaries. Its place in the tree
/// and its prompt say which one it is.
type Normal = (bool, Vec<Value>);

fn normal(event: &Event) -> Value {
    let mut value: Value = serde_json::from_str(&event.to_json()).unwrap();
    value["time"] = json!(0);
    let data = &mut value["data"];
    match &event.body {
        EventBody::AssistantMessage(message) => data["stream"] = stream(&message.stream),
        EventBody::AssistantAttempt(attempt) => data["stream"] = stream(&attempt.stream),
        // Config, defaults and context window are the route's; the tools are not.
        EventBody::RequestHeader(_) => data["header"] = json!({"tools": data["header"]["tools"]}),
        EventBody::RequestContext(_) => *data = json!({}),
        _ => {}
    }
    without_names(&mut value);
    value
}

/// What a stream amounts to, however it was cut.
fn stream(records: &[StreamRecord]) -> Value {
    let assembler = BlockAssembler::replay(records);
    let blocks = assembler.assemble().map(|assembled| assembled.content).unwrap();
    json!({"finish": assembler.finish_reason(), "usage": assembler.usage(), "blocks": blocks})
}

fn without_names(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // The script mints the ids of its calls, so those are compared.
            let is_call = fields.get("type") == Some(&json!("tool-call"));
            for name in ["id", "runId", "senderSessionId", "provider", "model"] {
                if fields.contains_key(name) && !is_call {
                    fields.insert(name.to_owned(), json!("-"));
                }
            }
            fields.shift_remove("replayState");
            // Not every wire reports one.
            fields.shift_remove("totalTokens");
            fields.values_mut().for_each(without_names);
        }
        Value::Array(items) => items.iter_mut().for_each(without_names),
        _ => {}
    }
}

/// Where two values first differ, and how.
fn difference(path: &str, one: &Value, other: &Value) -> Option<String> {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys());
            let missing = Value::Null;
            keys.into_iter().find_map(|key| {
                let (a, b) = (a.get(key).unwrap_or(&missing), b.get(key).unwrap_or(&missing));
                difference(&format!("{path}.{key}"), a, b)
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(at, (a, b))| difference(&format!("{path}[{at}]"), a, b)),
        _ => (one != other).then(|| format!("{path}: {one} in process, {other} over HTTP")),
    }
}

/// The sessions of a store, by their first prompt.
async fn sessions(house: &House) -> BTreeMap<String, Normal> {
    let reader = JournalReader::open(house.path().join(".playhouse")).await.unwrap();
    let page = reader.list(ListQuery::default()).await.unwrap();
    let mut sessions = BTreeMap::new();
    for stat in page.sessions {
        let header: &SessionHeader = &stat.header;
        let stored = reader.read(&header.id).await.unwrap();
        let events: Vec<Event> = stored
            .events
            .iter()
            .map(|json| Event::from_json(std::str::from_utf8(json).unwrap()).unwrap())
            .collect();
        let prompt = events.iter().find_map(|event| match &event.body {
            EventBody::UserMessage(message) => Some(message.text()),
            _ => None,
        });
        let normal = events.iter().map(normal).collect();
        let before = sessions.insert(prompt.unwrap(), (header.parent_session.is_some(), normal));
        assert!(before.is_none(), "each session has a prompt of its own");
    }
    sessions
}

async fn check_job_over(model: &str) {
    let within = House::new();
    assert_eq!(within.run(&["run", JOB]).code, Some(0));

    let over = House::new();
    let server =
        MockServer::start_on(Stage::new(Script::team()), MockOptions::new()).await.unwrap();
    let url = server.base_url();
    let args = ["run", "--model", model, "--base-url", &url, JOB];
    let (over, ended) = {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        tokio::task::spawn_blocking(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let ended = over.run(&args);
            (over, ended)
        })
        .await
        .unwrap()
    };
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let (within, over) = (sessions(&within).await, sessions(&over).await);
    assert_eq!(within.len(), 4);
    assert_eq!(within.keys().collect::<Vec<_>>(), over.keys().collect::<Vec<_>>());
    for (prompt, (child, events)) in within {
        let (over_child, over_events) = &over[&prompt];
        assert_eq!(child, *over_child);
        for (one, other) in events.iter().zip(over_events) {
            let at = format!("{prompt:?}, event {}", one["seq"]);
            assert_eq!(difference(&at, one, other), None);
        }
        assert_eq!(events.len(), over_events.len(), "session of {prompt:?}");
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_job_over_http_leaves_the_same_durable_events() {
    check_job_over("openai_compatible/any").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_job_over_anthropics_messages_leaves_the_same_durable_events() {
    check_job_over("anthropic/any").await;
}
