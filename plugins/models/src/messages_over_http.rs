//! The adapter of Anthropic's messages against the mock server.

use std::{sync::Arc, time::Duration};

use playhouse_messages::{
    chunk::StreamChunk,
    config::CallConfig,
    content::ContentBlock,
    message::{Message, Source},
};
use playhouse_plugin_api::{cancel::CancelToken, llm::CallInput};
use serde_json::json;

use crate::{
    anthropic::{Anthropic, Config, KeySource, Secret},
    contract::{Fixture, PROVIDER, assistant, blocks, contract, failure, finish, tools, user},
    mock_server::{MockOptions, MockServer, Outcome},
    over_http::{all_behaviours, check_behaviours, check_team, raw, slow_and_split, swift_team},
    scripted::{Fault, FaultKind, Reply, Script, Stage},
};

const KEY: &str = "sk-ant-very-secret";

fn config(server: &MockServer) -> Config {
    let mut config = Config::anthropic();
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
    let adapter = Anthropic::new(config).unwrap();
    (Fixture::new(adapter, stage, server.clone()), server)
}

fn post(key: &str, version: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-api-key: {key}\r\n\
         {version}content-length: {length}\r\n\r\n{body}"
    )
}

mod contract_suite {
    use super::*;

    #[tokio::test]
    async fn the_messages_adapter_keeps_the_contract() {
        contract(|script| async { serve(script).await.0 }).await;
    }

    #[tokio::test]
    async fn the_messages_adapter_keeps_the_contract_however_the_bytes_are_split() {
        contract(|script| async { serve(slow_and_split(script)).await.0 }).await;
    }
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn every_behaviour_of_the_server_has_its_outcome() {
        let (fixture, server) = serve(all_behaviours()).await;
        check_behaviours(&fixture, &server).await;
    }

    #[tokio::test]
    async fn the_team_works_as_it_does_in_process() {
        check_team(&serve(swift_team()).await.0).await;
    }

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
        assert_eq!(failure(&chunks).code, "TIMEOUT");
        assert_eq!(failure(&chunks).message, "Anthropic stream idle timeout after 50ms");
        assert_eq!(server.requests().len(), 1);
    }

    #[tokio::test]
    async fn llm_50_a_reset_before_and_within_the_body_are_told_apart() {
        let names = ["connection_reset", "partial_disconnect"];
        let (fixture, server) = serve(Script::behaviours(names).unwrap()).await;
        let url = server.base_url();
        for what in ["request to", "stream from"] {
            let chunks = fixture.ask(user("hi")).await;
            let message = &failure(&chunks).message;
            assert!(
                message.starts_with(&format!("Anthropic API {what} {url} failed")),
                "{message}"
            );
        }
    }

    #[tokio::test]
    async fn llm_51_without_a_key_nothing_is_sent() {
        let (fixture, server) = serve_with(Script::new(), |config| {
            config.api_key = KeySource::Env("PLAYHOUSE_TEST_NO_SUCH_KEY".into());
        })
        .await;
        let chunks = fixture.ask(user("hi")).await;
        assert_eq!((chunks.len(), failure(&chunks).code.as_str()), (1, "MISSING_CREDENTIAL"));
        assert!(failure(&chunks).message.contains("\"anthropic\""));
        assert!(server.requests().is_empty());
    }

    #[tokio::test]
    async fn llm_52_a_request_says_who_sends_it_and_which_wire_it_speaks() {
        let (fixture, server) = serve(Script::new().reply(Reply::text("x"))).await;
        fixture.ask(CallInput { session_id: Some("s1".into()), ..user("hi") }).await;
        let requests = server.requests();
        let header = |name: &str| requests[0].header(name);
        let agent = format!("playhouse/{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(header("user-agent"), Some(agent.as_str()));
        assert_eq!(header("accept"), Some("text/event-stream"));
        assert_eq!(header("anthropic-version"), Some("2023-06-01"));
        assert_eq!(header("x-api-key"), Some("[redacted]"));
        assert_eq!((header("authorization"), header("anthropic-beta")), (None, None));
    }

    #[tokio::test]
    async fn a_model_whose_thinking_is_bound_is_asked_to_drop_what_no_longer_fits() {
        let (fixture, server) = serve(Script::new().reply(Reply::text("x"))).await;
        let config = CallConfig {
            provider: PROVIDER.into(),
            model: "claude-opus-5-5".into(),
            ..CallConfig::default()
        };
        let call = fixture.registry.prepare(config, &CancelToken::new()).await.unwrap();
        let stream = call.stream(call.request(user("hi")).unwrap()).unwrap();
        futures::StreamExt::collect::<Vec<_>>(stream).await;
        let request = &server.requests()[0];
        let beta = request.header("anthropic-beta");
        assert_eq!(beta, Some("thinking-binding-controls-2026-08-01"));
        let binding = &request.json["thinking"]["block_binding"];
        assert_eq!(binding["prefix_mismatch_behavior"], "drop_block");
        assert_eq!(request.json["output_config"]["effort"], "medium");
        assert_eq!(request.json["max_tokens"], 64_000);
    }

    #[tokio::test]
    async fn llm_53_a_bad_configuration_changes_nothing_and_a_good_one_the_next_call() {
        let gated = Script::sequence([Reply::text("first").at_gate("g"), Reply::text("second")]);
        let old = MockServer::start(gated, 0).await.unwrap();
        let new = MockServer::start(Script::new().reply(Reply::text("new")), 0).await.unwrap();
        let adapter = Anthropic::new(config(&old)).unwrap();
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
        let ask = json!({
            "model": "m", "max_tokens": 1, "stream": true,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        });
        let ask = ask.to_string();
        let version = "anthropic-version: 2023-06-01\r\n";
        for (status, request) in [
            (404, post(KEY, version, &ask).replacen("/v1/messages", "/v1/models", 1)),
            (405, post(KEY, version, "").replacen("POST", "PUT", 1)),
            (401, post("wrong", version, &ask)),
            (400, post(KEY, "", &ask)),
            (400, post(KEY, version, "{oops")),
        ] {
            let answer = raw(&server, request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
        assert_eq!(fixture.stage.remaining(), 1);
        assert!(raw(&server, post(KEY, version, &ask)).await.contains("message_stop"));
        let answer = raw(&server, post(KEY, version, &ask)).await;
        assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains("MOCK_SCRIPT_EXHAUSTED"));
    }

    #[tokio::test]
    async fn thinking_returns_with_its_signature() {
        let thinks =
            Reply::call("t", "{}").with_reasoning("let me think").with_finish("tool_calls");
        let (fixture, server) = serve(Script::sequence([thinks, Reply::text("done")])).await;
        let mut input = user("hi");
        input.tools = tools(&["t"]);
        let chunks = fixture.ask(input.clone()).await;
        let Some(StreamChunk::Finish { replay_state, .. }) = chunks.last() else { panic!() };
        let state = serde_json::to_value(replay_state).unwrap();
        let mut answer = Message::clone(&assistant(blocks(&chunks)));
        answer.source = Source::model(PROVIDER, "m", Some(&state));
        input.messages.push(Arc::new(answer));
        input.messages.push(Arc::new(Message::tool("r", &"call-1".into(), true, vec![])));
        // The server refuses a signature that it did not give.
        assert_eq!(blocks(&fixture.ask(input).await), [ContentBlock::text("done")]);
        let sent = &server.requests()[1].json["messages"];
        assert_eq!(sent[1]["content"][0]["thinking"], "let me think");
        assert_eq!(sent[2]["content"][0]["is_error"], true);
    }

    #[tokio::test]
    async fn unanswered_calls_are_refused_as_by_the_provider() {
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
    async fn a_key_that_the_provider_quotes_is_redacted() {
        let quoting = |after: Option<usize>| {
            let error = Fault::new(FaultKind::Error).with_message(format!("bad key {KEY}"));
            Reply::text("a b c").with_fault(Fault { after_chunks: after, ..error })
        };
        let (fixture, server) = serve(Script::sequence([quoting(None), quoting(Some(1))])).await;
        for _ in 0..2 {
            let chunks = fixture.ask(user("hi")).await;
            assert_eq!(failure(&chunks).message, "bad key [redacted]");
        }
        let adapter = Anthropic::new(config(&server)).unwrap();
        let shown = format!("{adapter:?} {:?} {server:?} {:?}", config(&server), server.requests());
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[tokio::test]
    async fn an_effort_that_the_model_lacks_and_an_option_that_the_wire_refuses_are_not_sent() {
        let (fixture, server) = serve(Script::new().reply(Reply::text("x"))).await;
        let prepare = async |effort: Option<&str>, temperature| {
            let config = CallConfig {
                provider: PROVIDER.into(),
                model: "claude-opus-5-5".into(),
                reasoning_effort: effort.map(str::to_owned),
                temperature,
                ..CallConfig::default()
            };
            fixture.registry.prepare(config, &CancelToken::new()).await
        };
        let error = prepare(Some("off"), None).await.unwrap_err();
        assert_eq!(error.code(), "UNSUPPORTED_REASONING_EFFORT");
        let call = prepare(None, Some(0.2)).await.unwrap();
        assert_eq!(call.request(user("hi")).unwrap_err().code(), "UNSUPPORTED_OPTION");
        assert!(server.requests().is_empty());
        let chunks = fixture.ask(user("hi")).await;
        assert_eq!(finish(&chunks), &playhouse_messages::chunk::FinishReason::Stop);
    }
}
