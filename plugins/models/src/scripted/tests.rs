use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::join};
use playhouse_messages::{
    chunk::{FinishReason, StreamChunk},
    config::{CallConfig, ToolList, ToolSchema},
    content::ContentBlock,
    event::CancelCause,
    message::{Message, SharedMessage, Source},
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    llm::{CallInput, LlmRegistry, LlmRequest},
};
use serde_json::json;

use super::*;

fn tools(names: &[&str]) -> ToolList {
    let schema = |name: &&str| {
        Arc::new(ToolSchema {
            name: (*name).into(),
            description: "d".into(),
            parameters: json!({"type": "object"}),
            defer_loading: false,
        })
    };
    names.iter().map(schema).collect()
}

async fn request(adapter: &ScriptedAdapter, input: CallInput) -> (LlmRequest, LlmRegistry) {
    let registry = LlmRegistry::new();
    let _ = registry.register(["s"], Arc::new(adapter.clone())).unwrap();
    let config = CallConfig { provider: "s".into(), model: "m".into(), ..CallConfig::default() };
    let call = registry.prepare(config, &CancelToken::new()).await.unwrap();
    (call.request(input).unwrap(), registry)
}

async fn ask(adapter: &ScriptedAdapter, input: CallInput) -> Vec<StreamChunk> {
    let (request, registry) = request(adapter, input).await;
    let call = registry.prepare(request.config.clone(), &CancelToken::new()).await.unwrap();
    call.stream(request).unwrap().collect().await
}

fn blocks(chunks: &[StreamChunk]) -> Vec<ContentBlock> {
    let block = |chunk: &StreamChunk| match chunk {
        StreamChunk::BlockEnd { block, .. } => Some(block.clone()),
        _ => None,
    };
    chunks.iter().filter_map(block).collect()
}

fn code(chunks: &[StreamChunk]) -> String {
    match chunks.last() {
        Some(StreamChunk::Finish {
            reason: FinishReason::Error { failure } | FinishReason::Aborted { failure },
            ..
        }) => failure.code.clone(),
        other => panic!("{other:?}"),
    }
}

fn user(text: &str) -> CallInput {
    CallInput { messages: vec![Arc::new(Message::user("u", text))], ..CallInput::default() }
}

fn assistant(chunks: &[StreamChunk]) -> SharedMessage {
    let mut message = Message::user("a", "");
    message.role = playhouse_messages::message::Role::Assistant;
    message.content = blocks(chunks);
    message.source = Source::model("s", "m", None);
    Arc::new(message)
}

/// Plays an agent: calls the model until it asks for no tool, and sub-agents the same way.
async fn drive(adapter: &ScriptedAdapter, prompt: String, root: bool) -> (String, usize) {
    let mut input = user(&prompt);
    input.tools = if root { tools(&["subagent", "lookup"]) } else { tools(&["lookup"]) };
    let mut delegated = 0;
    loop {
        let chunks = ask(adapter, input.clone()).await;
        let message = assistant(&chunks);
        input.messages.push(message.clone());
        if message.tool_calls().next().is_none() {
            return (message.text(), delegated);
        }
        for call in message.tool_calls() {
            let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
            let text = if call.name == "subagent" {
                delegated += 1;
                let prompt = arguments["prompt"].as_str().unwrap().to_owned();
                Box::pin(drive(adapter, prompt, false)).await.0
            } else {
                format!("All about {}.", arguments["topic"].as_str().unwrap())
            };
            let result = Message::tool("r", &call.id, false, vec![ContentBlock::text(text)]);
            input.messages.push(Arc::new(result));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_team_delegates_three_times_and_quotes_the_answers() {
    let adapter = ScriptedAdapter::new(Script::team());
    let task = "Compare three caching strategies";
    let (report, delegated) = drive(&adapter, task.into(), true).await;
    assert_eq!(delegated, 3);
    assert!(report.contains(&format!("Report on \"{task}\"")));
    for topic in ["cost", "speed", "risk"] {
        assert!(report.contains(&format!("On {topic}: All about {topic}. For \"{task}\"")));
    }
    assert!(!report.contains("{{"));
    assert!(adapter.captured().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_team_answers_alone_without_a_subagent_tool() {
    let adapter = ScriptedAdapter::new(Script::team());
    let chunks = ask(&adapter, user("Compare")).await;
    assert!(matches!(&blocks(&chunks)[..], [ContentBlock::Text(text)] if text.contains("alone")));
}

#[tokio::test(start_paused = true)]
async fn parallel_calls_get_ids_counted_from_the_conversation() {
    let adapter = ScriptedAdapter::new(Script::team());
    let mut input = user("Compare");
    input.tools = tools(&["subagent"]);
    let ids = |chunks: &[StreamChunk]| -> Vec<String> {
        assistant(chunks).tool_calls().map(|call| call.id.to_string()).collect()
    };
    let first = ask(&adapter, input.clone()).await;
    assert_eq!(ids(&first), ["call-1", "call-2", "call-3"]);
    input.messages.extend([assistant(&first), Arc::new(Message::user("u2", "Again"))]);
    assert_eq!(ids(&ask(&adapter, input).await), ["call-4", "call-5", "call-6"]);
}

#[tokio::test]
async fn context_that_plugins_add_does_not_hide_the_prompt() {
    let script = Script::new()
        .rule(When::default().user_matches("Do *").assistant_messages(0), Reply::text("{{1}}"))
        .reply(Reply::text("no"));
    let mut input = user("Do it");
    let notice = Source::notice("reminder", "x");
    let block = vec![ContentBlock::text("mind the gap")];
    input.messages.push(Arc::new(Message::user_from("n", block, notice)));
    let chunks = ask(&ScriptedAdapter::new(script), input).await;
    assert_eq!(blocks(&chunks), [ContentBlock::text("it")]);
}

#[tokio::test(start_paused = true)]
async fn delays_pass_on_the_runtimes_clock() {
    let adapter = ScriptedAdapter::new(Script::new().reply(Reply::text("a b c").paced(500, 100)));
    let start = tokio::time::Instant::now();
    ask(&adapter, user("x")).await;
    assert_eq!(start.elapsed(), Duration::from_millis(700));
}

#[tokio::test]
async fn a_sequence_records_requests_and_ends() {
    let adapter = ScriptedAdapter::new(Script::sequence([Reply::text("one"), Reply::text("two")]));
    assert_eq!(blocks(&ask(&adapter, user("a")).await), [ContentBlock::text("one")]);
    let adapter_again = adapter.clone();
    let early = std::panic::catch_unwind(move || adapter_again.assert_consumed());
    assert!(early.is_err());
    assert_eq!(blocks(&ask(&adapter, user("b")).await), [ContentBlock::text("two")]);
    adapter.assert_consumed();
    assert_eq!(code(&ask(&adapter, user("c")).await), "MOCK_SCRIPT_EXHAUSTED");
    let texts: Vec<_> = adapter.captured().iter().map(|r| r.messages[0].text()).collect();
    assert_eq!(texts, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_gate_holds_an_answer_until_the_test_opens_it() {
    let adapter = ScriptedAdapter::new(Script::new().reply(Reply::text("x").at_gate("g")));
    let gate = adapter.gate("g");
    let open = async {
        gate.arrived(1).await;
        gate.open();
    };
    let (chunks, ()) = join(ask(&adapter, user("x")), open).await;
    assert_eq!(blocks(&chunks).len(), 1);
}

#[tokio::test]
async fn faults_come_after_the_chunks_that_they_name() {
    let run = |reply: Reply| async move {
        ask(&ScriptedAdapter::new(Script::new().reply(reply)), user("x")).await
    };
    let error = Fault { code: Some("RATE_LIMIT".into()), ..Fault::new(FaultKind::Error) };
    let late = Reply::text("a b c").with_fault(error.clone().after(2));
    let chunks = run(late).await;
    assert_eq!(chunks.iter().filter(|chunk| chunk.is_token()).count(), 2);
    assert_eq!(code(&chunks), "RATE_LIMIT");
    let early = run(Reply::text("a b c").with_fault(error)).await;
    assert_eq!(early.len(), 1);
    let cut = run(Reply::text("a b").with_fault(Fault::new(FaultKind::Cut))).await;
    assert_eq!(cut.iter().filter(|chunk| chunk.is_token()).count(), 2);
    assert_eq!(code(&cut), "STREAM_CLOSED");
}

#[tokio::test]
async fn a_stall_lasts_until_the_caller_cancels() {
    let stall = Reply::text("a b").with_fault(Fault::new(FaultKind::Stall).after(1));
    let adapter = ScriptedAdapter::new(Script::new().reply(stall));
    let mut input = user("x");
    input.cancel = CancelToken::new();
    let (request, registry) = request(&adapter, input.clone()).await;
    let call = registry.prepare(request.config.clone(), &input.cancel).await.unwrap();
    let mut stream = call.stream(request).unwrap();
    stream.next().await.unwrap();
    assert!(stream.next().await.unwrap().is_token());
    assert!(futures::poll!(stream.next()).is_pending());
    input.cancel.cancel(CancelCause::User);
    let rest: Vec<_> = stream.collect().await;
    assert_eq!(code(&rest), "ABORTED");
}

#[test]
fn a_broken_script_is_refused_with_its_place() {
    let error = Script::from_toml("[[rules]]\nreply = { txt = \"x\" }").unwrap_err();
    assert_eq!(error.code(), "INVALID_SCRIPT");
    assert!(error.to_string().contains("txt") && error.to_string().contains("line 2"), "{error}");
    let error = Script::behaviours(["success", "sulk"]).unwrap_err();
    assert!(error.to_string().contains("sulk") && error.to_string().contains("rate_limit"));
}

#[test]
fn arguments_keep_the_order_in_which_the_script_has_them() {
    let script = Script::from_toml(
        "[[rules]]\nreply = { calls = [{ name = \"t\", arguments = { z = 1, a = { y = 2, b = 3 } } }] }",
    )
    .unwrap();
    let Arguments::Json(value) = &script.rules[0].reply.calls[0].arguments else { panic!() };
    assert_eq!(value.to_string(), r#"{"z":1,"a":{"y":2,"b":3}}"#);
}

#[test]
fn the_same_seed_draws_the_same_behaviours_by_weight() {
    let draw = |seed| {
        let weighted = [("success", 3), ("rate_limit", 1), ("stall", 0)];
        Script::random(seed, 400, weighted).unwrap().sequence
    };
    let replies = draw(7);
    assert_eq!(replies, draw(7));
    assert_ne!(replies, draw(8));
    let count =
        |name| replies.iter().filter(|&r| Some(r) == Reply::behaviour(name).as_ref()).count();
    assert_eq!((replies.len(), count("stall")), (400, 0));
    assert!((250..350).contains(&count("success")), "{}", count("success"));
    assert!(Script::random(1, 5, [("success", 0)]).unwrap().sequence.is_empty());
}
