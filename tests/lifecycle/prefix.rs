//! Consecutive requests of a session share all their old bytes, on every wire.

use std::sync::Arc;

use playhouse::{
    AgentOptions, NewAgent,
    models::{
        anthropic::{self, Anthropic},
        mock_server::MockServer,
        openai_compatible::{self, KeySource, OpenAiCompatible},
        scripted::{Arguments, Call, Reply, Script},
    },
    plugin_api::{llm::LlmAdapter, tool::tool_fn},
};
use serde_json::value::RawValue;

use super::rig::soon;

/// How many requests the session makes, in two turns.
const STEPS: usize = 50;
const FIRST_TURN: usize = 40;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Page {
    number: usize,
}

/// An answer of the session: reasoning, text and calls, some of them wrong, with arguments that no
/// serialiser would write again as they are.
fn reply(step: usize) -> Reply {
    if step == FIRST_TURN || step == STEPS {
        return Reply::text(format!("Read so far: {step}. 🎭")).with_reasoning("Enough.");
    }
    let call = |arguments: String| Call {
        name: "read".into(),
        arguments: Arguments::Raw(arguments),
        id: None,
    };
    let mut calls = vec![call(format!("{{\"number\":  {step},\n \"note\": \"\\u00e9 1e2\" }}"))];
    if step.is_multiple_of(3) {
        calls.push(call(format!("{{ \"number\":{} }}", step + 1)));
    }
    if step.is_multiple_of(7) {
        calls.push(call("{\"number\": ".into()));
    }
    let mut reply = Reply { calls, ..Reply::default() };
    if step.is_multiple_of(2) {
        reply = reply.with_reasoning(format!("Page {step} is next."));
    }
    if step.is_multiple_of(5) {
        reply.text = Some(format!("Now page {step}, “quoted”."));
    }
    reply
}

/// The bodies of all requests of a session over this adapter.
async fn bodies(adapter: impl FnOnce(&str) -> Arc<dyn LlmAdapter>) -> Vec<Vec<u8>> {
    let script = Script::sequence((1..=STEPS).map(reply));
    let server = MockServer::start(script, 0).await.unwrap();
    let harness = playhouse::base().start().await.unwrap();
    let adapter = adapter(&server.base_url());
    let _ = harness.world().models.register(["wire"], adapter).unwrap();
    let read = tool_fn("read", "Reads a page.", |page: Page, _run| async move {
        if page.number.is_multiple_of(4) {
            return Err("the page is torn".into());
        }
        Ok(format!("page {}: {}", page.number, "words ".repeat(page.number)))
    });
    harness.register_tool(Arc::new(read)).unwrap();
    let options = AgentOptions::new().model("wire", "any");
    let agent = harness.create(NewAgent::new(options)).await.unwrap();
    for prompt in ["Read it", "Read on"] {
        let outcome = soon(agent.prompt(prompt)).await.unwrap();
        assert!(outcome.is_completed(), "{:?}", outcome.reason);
    }
    let bodies = server.requests().iter().map(|request| request.body.to_vec()).collect();
    harness.shutdown().await.unwrap();
    server.shutdown().await;
    bodies
}

/// A body up to the end of its last message.
fn prefix(body: &[u8]) -> &[u8] {
    #[derive(serde::Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        messages: &'a RawValue,
    }
    let messages = serde_json::from_slice::<Body<'_>>(body).unwrap().messages.get();
    let start = messages.as_ptr() as usize - body.as_ptr() as usize;
    &body[..start + messages.len() - 1]
}

/// How many bytes of the old prefix the next body lacks or has otherwise.
fn differing(old: &[u8], next: &[u8]) -> usize {
    let old = prefix(old);
    let changed = old.iter().zip(next).filter(|(a, b)| a != b).count();
    changed + old.len().saturating_sub(next.len())
}

fn check(wire: &str, bodies: &[Vec<u8>]) {
    assert_eq!(bodies.len(), STEPS);
    let pairs = || bodies.windows(2).map(|pair| (&pair[0], &pair[1]));
    assert!(pairs().all(|(old, next)| prefix(old).len() < prefix(next).len()));
    let bytes: usize = pairs().map(|(old, _)| prefix(old).len()).sum();
    let differing: usize = pairs().map(|(old, next)| differing(old, next)).sum();
    println!("{wire}: {STEPS} requests, shared bytes: {bytes}, differing bytes: {differing}");
    assert_eq!(differing, 0);
}

#[tokio::test]
async fn prefix_is_shared_byte_for_byte_over_chat_completions() {
    let adapter = |url: &str| -> Arc<dyn LlmAdapter> {
        let mut config = openai_compatible::Config::new("wire", url, KeySource::None);
        config.dialect.replay_reasoning = true;
        Arc::new(OpenAiCompatible::new(config).unwrap())
    };
    check("chat completions", &bodies(adapter).await);
}

#[tokio::test]
async fn prefix_is_shared_byte_for_byte_over_anthropics_messages() {
    let adapter = |url: &str| -> Arc<dyn LlmAdapter> {
        let config = anthropic::Config::new("wire", url, KeySource::None);
        Arc::new(Anthropic::new(config).unwrap())
    };
    let bodies = bodies(adapter).await;
    check("messages", &bodies);
    // The session holds what is hard to keep: signatures, failures, and odd arguments.
    let last = String::from_utf8_lossy(&bodies[STEPS - 1]);
    for part in [
        "\"system\":[{",
        "\"signature\":",
        "\"is_error\":true",
        "{\"number\":  1,\n \"note\": \"\\u00e9 1e2\" }",
    ] {
        assert!(last.contains(part), "{part}");
    }
}

#[test]
fn prefix_differences_are_counted() {
    let old = br#"{"messages":[{"a":1},{"b":"]"}],"stream":true}"#;
    assert_eq!(prefix(old), br#"{"messages":[{"a":1},{"b":"]"}"#);
    assert_eq!(differing(old, br#"{"messages":[{"a":1},{"b":"]"},{}],"stream":true}"#), 0);
    assert_eq!(differing(old, br#"{"messages":[{"a":2},{"b":"]"},{}],"stream":true}"#), 1);
    assert_eq!(differing(old, br#"{"messages":[{"a":1}"#), 10);
}
