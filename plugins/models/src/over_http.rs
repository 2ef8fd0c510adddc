//! The adapter of chat completions against the mock server.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use playhouse_messages::{
    chunk::{FinishReason, StreamChunk},
    content::ContentBlock,
    message::{Message, Source},
};
use playhouse_plugin_api::llm::{CallInput, Purpose};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    contract::{Fixture, assistant, blocks, contract, failure, finish, tools, user},
    mock_server::{MockOptions, MockServer, Outcome},
    openai_compatible::{Config, KeySource, OpenAiCompatible, Secret},
    scripted::{Fault, FaultKind, Reply, Script, Stage, Wire},
};

const KEY: &str = "sk-very-secret";

fn config(server: &MockServer) -> Config {
    let mut config = Config::deepseek();
    config.base_url = server.base_url();
    config.api_key = KeySource::Explicit(Secret::new(KEY).unwrap());
    config.idle_timeout = Duration::from_secs(60);
    config
}

async fn serve(script: Script) -> (Fixture, Arc<MockServer>) {
    serve_with(script, |_| {}).await
}

async fn serve_with(
    script: Script,
    change: impl FnOnce(&mut Config),
) -> (Fixture, Arc<MockServer>) {
    let stage = Stage::new(script);
    let options = MockOptions::new().api_key(KEY);
    let server = Arc::new(MockServer::start_on(stage.clone(), options).await.unwrap());
    let mut config = config(&server);
    change(&mut config);
    let adapter = OpenAiCompatible::new(config).unwrap();
    (Fixture::new(adapter, stage, server.clone()), server)
}

pub(crate) fn slow_and_split(mut script: Script) -> Script {
    for reply in script.sequence.iter_mut().chain(script.rules.iter_mut().map(|r| &mut r.reply)) {
        reply.wire = Wire { split_bytes: Some(3), comments: true, ..Wire::default() };
    }
    script
}

/// One raw exchange on a connection of its own.
pub(crate) async fn raw(server: &MockServer, request: String) -> String {
    let mut socket = TcpStream::connect(server.addr()).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

fn post(path: &str, key: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

const ASK: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}"#;

#[tokio::test]
async fn the_chat_adapter_keeps_the_contract() {
    contract(|script| async { serve(script).await.0 }).await;
}

#[tokio::test]
async fn the_chat_adapter_keeps_the_contract_however_the_bytes_are_split() {
    contract(|script| async { serve(slow_and_split(script)).await.0 }).await;
}

/// What an adapter makes of each behaviour of the server, and what the server says became of it.
pub(crate) const BEHAVIOURS: [(&str, &str, Outcome); 21] = [
    ("success", "stop", Outcome::Completed),
    ("reasoning_success", "stop", Outcome::Completed),
    ("tool_call_success", "tool-calls", Outcome::Completed),
    ("max_tokens", "max-tokens", Outcome::Completed),
    ("empty", "EMPTY_RESPONSE", Outcome::Completed),
    ("empty_body", "STREAM_CLOSED", Outcome::Completed),
    ("stream_eof", "STREAM_CLOSED", Outcome::Completed),
    ("partial_eof", "STREAM_CLOSED", Outcome::Completed),
    ("stream_disconnect", "TRANSPORT", Outcome::Reset),
    ("partial_disconnect", "TRANSPORT", Outcome::Reset),
    ("connection_reset", "TRANSPORT", Outcome::Reset),
    ("malformed_json", "MALFORMED_RESPONSE", Outcome::Completed),
    ("malformed_event", "MALFORMED_RESPONSE", Outcome::Completed),
    ("wrong_content_type", "stop", Outcome::Completed),
    ("rate_limit", "RATE_LIMIT", Outcome::Failed(429)),
    ("server_error", "SERVER", Outcome::Failed(500)),
    ("service_unavailable", "SERVER", Outcome::Failed(503)),
    ("auth_error", "AUTH", Outcome::Failed(401)),
    ("invalid_request", "INVALID_REQUEST", Outcome::Failed(400)),
    ("context_overflow", "CONTEXT_WINDOW_EXCEEDED", Outcome::Failed(400)),
    ("quota_exceeded", "QUOTA", Outcome::Failed(429)),
];

pub(crate) fn all_behaviours() -> Script {
    Script::behaviours(BEHAVIOURS.iter().map(|(name, ..)| *name)).unwrap()
}

/// Plays [`all_behaviours`].
pub(crate) async fn check_behaviours(fixture: &Fixture, server: &MockServer) {
    for (at, (name, result, outcome)) in BEHAVIOURS.iter().enumerate() {
        let chunks = fixture.ask(user("hi")).await;
        let seen = match finish(&chunks) {
            FinishReason::Stop => "stop",
            FinishReason::ToolCalls => "tool-calls",
            FinishReason::MaxTokens => "max-tokens",
            FinishReason::Error { failure } => &failure.code,
            FinishReason::Aborted { .. } => "aborted",
        };
        assert_eq!(&seen, result, "{name}");
        // A malformed event ends the client's interest, so the server may be cut off by it.
        let recorded = server.requests()[at].outcome;
        if *result != "MALFORMED_RESPONSE" {
            assert_eq!(recorded, *outcome, "{name}");
        }
    }
    fixture.stage.assert_consumed();
}

#[tokio::test]
async fn every_behaviour_of_the_server_has_its_outcome() {
    let (fixture, server) = serve(all_behaviours()).await;
    check_behaviours(&fixture, &server).await;
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn llm_45_a_rate_limit_carries_status_delay_and_request_id() {
        let (fixture, _server) = serve(Script::behaviours(["rate_limit"]).unwrap()).await;
        let chunks = fixture.ask(user("hi")).await;
        let failure = failure(&chunks);
        assert_eq!(failure.provider_retry_after_ms, Some(1000));
        assert_eq!(failure.status, Some(429));
        assert_eq!(failure.request_id.as_deref(), Some("mock-request"));
    }

    #[tokio::test]
    async fn llm_48_silence_beyond_the_idle_timeout_is_a_timeout() {
        let (fixture, server) = serve_with(Script::behaviours(["stall"]).unwrap(), |config| {
            config.idle_timeout = Duration::from_millis(50);
        })
        .await;
        let chunks = fixture.ask(user("hi")).await;
        let failure = failure(&chunks);
        assert_eq!(failure.code, "TIMEOUT");
        assert_eq!(failure.message, "DeepSeek stream idle timeout after 50ms");
        assert_eq!(server.requests().len(), 1);
    }

    #[tokio::test]
    async fn llm_50_a_reset_before_and_within_the_body_are_told_apart() {
        let names = ["connection_reset", "partial_disconnect"];
        let (fixture, server) = serve(Script::behaviours(names).unwrap()).await;
        let url = server.base_url();
        let message = |chunks: &[StreamChunk]| failure(chunks).message.clone();
        let before = message(&fixture.ask(user("hi")).await);
        assert!(before.starts_with(&format!("DeepSeek API request to {url} failed")), "{before}");
        let within = message(&fixture.ask(user("hi")).await);
        assert!(within.starts_with(&format!("DeepSeek API stream from {url} failed")), "{within}");
    }

    #[tokio::test]
    async fn llm_51_without_a_key_nothing_is_sent() {
        let (fixture, server) = serve_with(Script::new(), |config| {
            config.api_key = KeySource::Env("PLAYHOUSE_TEST_NO_SUCH_KEY".into());
        })
        .await;
        let chunks = fixture.ask(user("hi")).await;
        assert_eq!((chunks.len(), failure(&chunks).code.as_str()), (1, "MISSING_CREDENTIAL"));
        assert!(server.requests().is_empty());
    }

    #[tokio::test]
    async fn llm_52_session_and_purpose_are_told_only_if_there() {
        let (fixture, server) = serve(Script::new().reply(Reply::text("x"))).await;
        fixture.ask(user("hi")).await;
        let purpose = Some(Purpose::Compaction);
        let session_id = Some("s1".into());
        fixture.ask(CallInput { purpose, session_id, ..user("hi") }).await;
        let requests = server.requests();
        assert_eq!(requests[0].header("x-playhouse-session-id"), None);
        assert_eq!(requests[0].header("x-playhouse-compact"), None);
        assert_eq!(requests[1].header("x-playhouse-session-id"), Some("s1"));
        assert_eq!(requests[1].header("x-playhouse-compact"), Some("1"));
        let agent = format!("playhouse/{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(requests[0].header("user-agent"), Some(agent.as_str()));
        assert_eq!(requests[0].header("accept"), Some("text/event-stream"));
        assert_eq!(requests[0].header("authorization"), Some("Bearer [redacted]"));
    }

    #[tokio::test]
    async fn llm_53_a_bad_configuration_changes_nothing_and_a_good_one_the_next_call() {
        let gated = Script::sequence([Reply::text("first").at_gate("g"), Reply::text("second")]);
        let old = MockServer::start(gated, 0).await.unwrap();
        let new = MockServer::start(Script::new().reply(Reply::text("new")), 0).await.unwrap();
        let adapter = OpenAiCompatible::new(config(&old)).unwrap();
        let fixture = Fixture::new(adapter.clone(), old.stage().clone(), ());

        let bad = Config { base_url: "nowhere".into(), display_name: "x".into(), ..config(&old) };
        assert_eq!(adapter.reconfigure(bad).unwrap_err().code(), "INVALID_BASE_URL");
        let other = Config { provider: "other".into(), ..config(&old) };
        assert_eq!(adapter.reconfigure(other).unwrap_err().code(), "INVALID_CONFIG");
        assert_eq!(adapter.config(), config(&old));

        let gate = old.stage().gate("g");
        let switch = async {
            gate.arrived(1).await;
            adapter.reconfigure(config(&new)).unwrap();
            gate.open();
        };
        let (under_way, ()) = futures::join!(fixture.ask(user("hi")), switch);
        assert_eq!(blocks(&under_way), [ContentBlock::text("first")]);
        assert_eq!(blocks(&fixture.ask(user("hi")).await), [ContentBlock::text("new")]);
    }

    #[tokio::test]
    async fn llm_114_only_a_sound_request_uses_the_script() {
        let (fixture, server) = serve(Script::sequence([Reply::text("once")])).await;
        let chat = "/v1/chat/completions";
        for (status, request) in [
            (404, post("/v1/models", KEY, ASK)),
            (405, post(chat, KEY, "").replacen("POST", "PUT", 1)),
            (401, post(chat, "wrong", ASK)),
            (400, post(chat, KEY, "{oops")),
        ] {
            let answer = raw(&server, request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
        assert_eq!(fixture.stage.remaining(), 1);
        assert!(raw(&server, post(chat, KEY, ASK)).await.contains("[DONE]"));
        let answer = raw(&server, post(chat, KEY, ASK)).await;
        assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains("MOCK_SCRIPT_EXHAUSTED"));
    }

    #[tokio::test]
    async fn llm_115_a_bad_day_ends_well_and_leaves_no_trace() {
        let names = ["rate_limit", "partial_disconnect", "success"];
        let (fixture, server) = serve(Script::behaviours(names).unwrap()).await;
        let mut answer = Vec::new();
        for _ in names {
            answer = fixture.ask(user("hi")).await;
        }
        assert_eq!(blocks(&answer), [ContentBlock::text("mock response recovered")]);
        let bodies: Vec<_> = server.requests().iter().map(|r| r.body.clone()).collect();
        assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[tokio::test]
async fn the_wire_history_shares_its_bytes_from_step_to_step() {
    let (fixture, server) = serve(Script::new().reply(Reply::text("x"))).await;
    let mut input = user("hi");
    fixture.ask(input.clone()).await;
    input.messages.push(assistant(vec![ContentBlock::Reasoning("r".into())]));
    input.messages.push(Arc::new(Message::user("u2", "more")));
    fixture.ask(input).await;
    let requests = server.requests();
    let (first, second) = (&requests[0].body, &requests[1].body);
    let end = first.windows(10).position(|bytes| bytes == b"],\"stream\"").unwrap();
    assert_eq!(first[..end], second[..end]);
    assert_eq!(requests[1].json["messages"][1]["reasoning_content"], "r");
    assert_eq!(requests[1].json["thinking"]["type"], "enabled");
    assert_eq!(requests[1].json["max_tokens"], 256_000);
}

#[tokio::test]
async fn unanswered_calls_are_refused_as_by_a_provider() {
    let (fixture, server) = serve(Script::sequence([Reply::call("t", "{}")])).await;
    let mut input = user("hi");
    let asked = blocks(&fixture.ask(input.clone()).await);
    input.messages.push(assistant(asked));
    input.messages.push(Arc::new(Message::user("u2", "more")));
    let chunks = fixture.ask(input).await;
    assert_eq!(failure(&chunks).code, "INVALID_REQUEST");
    assert!(failure(&chunks).message.contains("missing call-1"));
    assert_eq!(server.requests()[1].outcome, Outcome::Rejected(400));
}

#[tokio::test]
async fn a_key_that_a_provider_quotes_is_redacted() {
    let quoting = |after: Option<usize>| {
        let error = Fault::new(FaultKind::Error).with_message(format!("bad key {KEY}"));
        Reply::text("a b c").with_fault(Fault { after_chunks: after, ..error })
    };
    let (fixture, server) = serve(Script::sequence([quoting(None), quoting(Some(1))])).await;
    for _ in 0..2 {
        let chunks = fixture.ask(user("hi")).await;
        assert_eq!(failure(&chunks).message, "bad key [redacted]");
    }
    let shown = format!("{:?} {:?} {:?}", config(&server), server, server.requests());
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn an_unreachable_server_is_a_transport_failure_that_names_it() {
    let (fixture, server) = serve(Script::new()).await;
    let url = server.base_url();
    let Fixture { registry, stage, _held } = fixture;
    drop(_held);
    Arc::into_inner(server).unwrap().shutdown().await;
    let fixture = Fixture { registry, stage, _held: Box::new(()) };
    let chunks = fixture.ask(user("hi")).await;
    assert_eq!(failure(&chunks).code, "TRANSPORT");
    assert!(failure(&chunks).message.contains(&url));
}

#[tokio::test]
async fn a_client_that_goes_away_is_noticed() {
    let stall = Reply::text("a b").with_fault(Fault::new(FaultKind::Stall).after(1));
    let (fixture, server) = serve(Script::sequence([stall])).await;
    let mut stream = fixture.stream(user("hi")).await;
    while !stream.next().await.unwrap().is_token() {}
    assert_eq!(server.requests()[0].outcome, Outcome::Open);
    drop(stream);
    while server.requests()[0].outcome == Outcome::Open {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.requests()[0].outcome, Outcome::Stalled);
    assert_eq!(server.requests()[0].chunks_sent, 1);
}

#[tokio::test]
async fn shutdown_breaks_open_streams_and_leaves_no_task() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    let server = MockServer::start(Script::behaviours(["stall"]).unwrap(), 0).await.unwrap();
    let addr = server.addr();
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(post("/chat/completions", KEY, ASK).as_bytes()).await.unwrap();
    let mut head = [0; 15];
    socket.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    server.shutdown().await;
    assert_eq!(metrics.num_alive_tasks(), before);
    let mut rest = Vec::new();
    // The end or a reset, depending on what was in flight; not silence.
    let _ = socket.read_to_end(&mut rest).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"));
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn connections_are_used_again() {
    let (fixture, server) = serve(Script::new().reply(Reply::text("a b c"))).await;
    for _ in 0..20 {
        fixture.ask(user("hi")).await;
    }
    // How soon a connection is free again is not ours to say; that it becomes so is.
    assert!(server.connections() < 20, "{}", server.connections());
}

/// The team's script, without its pauses.
pub(crate) fn swift_team() -> Script {
    let mut script = Script::team();
    script.rules.iter_mut().for_each(|rule| rule.reply = rule.reply.clone().paced(0, 0));
    script
}

/// Plays [`swift_team`].
pub(crate) async fn check_team(fixture: &Fixture) {
    let context = Source::of_kind("runtime-context");
    let context = Message::user_from("c", vec![ContentBlock::text("now: noon")], context);
    let mut input = user("Compare three caching strategies");
    input.messages.push(Arc::new(context));
    input.tools = tools(&["subagent", "lookup"]);
    let plan = assistant(blocks(&fixture.ask(input.clone()).await));
    input.messages.push(plan.clone());
    for call in plan.tool_calls() {
        let prompt: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
        let mut child = user(prompt["prompt"].as_str().unwrap());
        child.tools = tools(&["lookup"]);
        let asked = assistant(blocks(&fixture.ask(child.clone()).await));
        child.messages.push(asked.clone());
        let lookup = asked.tool_calls().next().unwrap();
        let notes = vec![ContentBlock::text("Notes.")];
        child.messages.push(Arc::new(Message::tool("n", &lookup.id, false, notes)));
        let answer = blocks(&fixture.ask(child).await);
        input.messages.push(Arc::new(Message::tool("t", &call.id, false, answer)));
    }
    let report = assistant(blocks(&fixture.ask(input).await)).text();
    assert!(report.starts_with("Report on \"Compare three caching strategies\""), "{report}");
    for topic in ["cost", "speed", "risk"] {
        assert!(report.contains(&format!("On {topic}: Notes.")), "{report}");
    }
}

#[tokio::test]
async fn the_team_works_over_http_as_it_does_in_process() {
    check_team(&serve(swift_team()).await.0).await;
}
