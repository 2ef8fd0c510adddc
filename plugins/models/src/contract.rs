//! What every adapter promises, whatever is behind it.

use std::{future::Future, sync::Arc};

use futures::{StreamExt, future::join_all};
use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk},
    config::{CallConfig, ToolList, ToolSchema},
    content::{ContentBlock, ToolCallBlock},
    event::CancelCause,
    message::{Message, Role, SharedMessage, Source},
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    llm::{
        CallInput, ChunkStream, LlmAdapter, LlmRegistry, LoadedImages, PreparedCall,
        protocol_check::ProtocolCheck,
    },
};
use serde_json::json;

use crate::scripted::{
    Arguments, Call, Chunking, Fault, FaultKind, Reply, Script, Stage, UsageSpec, When,
};

/// An adapter over a script, and what keeps it alive.
pub(crate) struct Fixture {
    pub(crate) registry: LlmRegistry,
    pub(crate) stage: Arc<Stage>,
    pub(crate) _held: Box<dyn std::any::Any + Send + Sync>,
}

pub(crate) const PROVIDER: &str = "p";

impl Fixture {
    pub(crate) fn new(
        adapter: impl LlmAdapter,
        stage: Arc<Stage>,
        held: impl Send + Sync + 'static,
    ) -> Self {
        let registry = LlmRegistry::new();
        let _ = registry.register([PROVIDER], Arc::new(adapter)).unwrap();
        Self { registry, stage, _held: Box::new(held) }
    }

    pub(crate) async fn prepare(&self) -> PreparedCall {
        let (provider, model) = (PROVIDER.to_owned(), "m".to_owned());
        let config = CallConfig { provider, model, ..CallConfig::default() };
        self.registry.prepare(config, &CancelToken::new()).await.unwrap()
    }

    pub(crate) async fn stream(&self, input: CallInput) -> ChunkStream {
        let call = self.prepare().await;
        call.stream(call.request(input).unwrap()).unwrap()
    }

    pub(crate) async fn ask(&self, input: CallInput) -> Vec<StreamChunk> {
        let chunks: Vec<_> = self.stream(input).await.collect().await;
        ProtocolCheck::check_all(&chunks).unwrap();
        chunks
    }
}

pub(crate) fn user(text: &str) -> CallInput {
    CallInput { messages: vec![Arc::new(Message::user("u", text))], ..CallInput::default() }
}

pub(crate) fn tools(names: &[&str]) -> ToolList {
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

pub(crate) fn assistant(content: Vec<ContentBlock>) -> SharedMessage {
    let source = Source::model(PROVIDER, "m", None);
    Arc::new(Message { role: Role::Assistant, content, source, ..Message::user("a", "") })
}

pub(crate) fn blocks(chunks: &[StreamChunk]) -> Vec<ContentBlock> {
    let block = |chunk: &StreamChunk| match chunk {
        StreamChunk::BlockEnd { block, .. } => Some(block.clone()),
        _ => None,
    };
    chunks.iter().filter_map(block).collect()
}

pub(crate) fn finish(chunks: &[StreamChunk]) -> &FinishReason {
    match chunks.last() {
        Some(StreamChunk::Finish { reason, .. }) => reason,
        other => panic!("no finish but {other:?}"),
    }
}

#[track_caller]
pub(crate) fn failure(chunks: &[StreamChunk]) -> &Failure {
    match finish(chunks) {
        FinishReason::Error { failure } => failure,
        other => panic!("no error but {other:?}"),
    }
}

fn tokens(chunks: &[StreamChunk]) -> usize {
    chunks.iter().filter(|chunk| chunk.is_token()).count()
}

/// The suite. `make` puts an adapter over a script.
pub(crate) async fn contract<F: Future<Output = Fixture>>(make: impl Fn(Script) -> F) {
    contract_of_fixed_answers(&make).await;
    keeps_concurrent_calls_apart(&make).await;
}

/// The suite without what only an adapter can do whose answers depend on the request.
pub(crate) async fn contract_of_fixed_answers<F: Future<Output = Fixture>>(
    make: impl Fn(Script) -> F,
) {
    streams_blocks_usage_and_finish(&make).await;
    passes_arguments_raw(&make).await;
    maps_finish_reasons(&make).await;
    reports_failures(&make).await;
    honours_cancel(&make).await;
    may_be_dropped(&make).await;
    encodes_stably(&make).await;
}

async fn streams_blocks_usage_and_finish<F: Future<Output = Fixture>>(make: impl Fn(Script) -> F) {
    let usage = UsageSpec {
        input_tokens: 7,
        output_tokens: 5,
        cache_read_tokens: Some(3),
        reasoning_tokens: Some(2),
    };
    let reply = Reply::text("Hällo 😀 world").with_reasoning("let me think").with_usage(usage);
    let fixture = make(Script::sequence([reply])).await;
    let chunks = fixture.ask(user("hi")).await;
    assert_eq!(
        blocks(&chunks),
        [ContentBlock::Reasoning("let me think".into()), ContentBlock::text("Hällo 😀 world")]
    );
    assert_eq!(tokens(&chunks), 6);
    let [.., StreamChunk::Usage { usage }, _] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!((usage.input_tokens, usage.output_tokens), (7, 5));
    assert_eq!((usage.cache_read_tokens, usage.reasoning_tokens), (Some(3), Some(2)));
    assert_eq!(finish(&chunks), &FinishReason::Stop);
    fixture.stage.assert_consumed();
}

async fn passes_arguments_raw<F: Future<Output = Fixture>>(make: impl Fn(Script) -> F) {
    let raw = r#"{"b": 1,  "a":"é"#;
    let call =
        |name: &str| Call { name: name.into(), arguments: Arguments::Raw(raw.into()), id: None };
    let reply = Reply { calls: vec![call("one"), call("two")], ..Reply::text("x") };
    let fixture = make(Script::sequence([reply, Reply::text("done")])).await;
    let mut input = user("hi");
    input.tools = tools(&["one", "two"]);
    let chunks = fixture.ask(input.clone()).await;
    let expected = |id: &str, name: &str| {
        let (id, name, arguments) = (id.into(), name.into(), raw.into());
        ContentBlock::ToolCall(ToolCallBlock { id, name, arguments })
    };
    let first = blocks(&chunks);
    assert_eq!(first[1..], [expected("call-1", "one"), expected("call-2", "two")]);
    assert_eq!(finish(&chunks), &FinishReason::ToolCalls);
    // The same comes back in history, results in any order.
    input.messages.push(assistant(first));
    for id in ["call-2", "call-1"] {
        input.messages.push(Arc::new(Message::tool("t", &id.into(), true, vec![])));
    }
    assert_eq!(finish(&fixture.ask(input).await), &FinishReason::Stop);
}

async fn maps_finish_reasons<F: Future<Output = Fixture>>(make: impl Fn(Script) -> F) {
    let reply = |finish: &str| Reply::text("x").with_finish(finish);
    let fixture = make(Script::sequence([reply("length"), reply("content_filter")])).await;
    assert_eq!(finish(&fixture.ask(user("hi")).await), &FinishReason::MaxTokens);
    let chunks = fixture.ask(user("hi")).await;
    assert_eq!(failure(&chunks), &Failure::new("CONTENT_FILTER", "model stopped: content_filter"));
}

async fn reports_failures<F: Future<Output = Fixture>>(make: impl Fn(Script) -> F) {
    let text = || Reply::text("a b c");
    let limit = || Fault {
        code: Some("RATE_LIMIT".into()),
        retry_after_ms: Some(2000),
        status: Some(429),
        ..Fault::new(FaultKind::Error).with_message("slow down")
    };
    let late = |kind| text().with_fault(Fault::new(kind).after(2));
    let fixture = make(Script::sequence([
        text().with_fault(limit()),
        text().with_fault(limit().after(2)),
        late(FaultKind::Cut),
        late(FaultKind::Disconnect),
        late(FaultKind::Malformed),
        Reply::fault(FaultKind::Reset),
    ]))
    .await;
    let chunks = fixture.ask(user("hi")).await;
    assert_eq!(chunks.len(), 1);
    let refused = failure(&chunks);
    assert_eq!((refused.code.as_str(), refused.message.as_str()), ("RATE_LIMIT", "slow down"));
    assert_eq!((refused.status, refused.provider_retry_after_ms), (Some(429), Some(2000)));
    for code in ["RATE_LIMIT", "STREAM_CLOSED", "TRANSPORT", "MALFORMED_RESPONSE"] {
        let chunks = fixture.ask(user("hi")).await;
        assert_eq!(failure(&chunks).code, code);
        assert_eq!(tokens(&chunks), 2, "{code}");
        assert!(blocks(&chunks).is_empty(), "{code}");
    }
    let chunks = fixture.ask(user("hi")).await;
    assert_eq!((chunks.len(), failure(&chunks).code.as_str()), (1, "TRANSPORT"));
}

async fn honours_cancel<F: Future<Output = Fixture>>(make: impl Fn(Script) -> F) {
    let stall = Reply::text("a b").with_fault(Fault::new(FaultKind::Stall).after(1));
    let fixture = make(Script::new().reply(stall)).await;
    let aborted = |chunks: &[StreamChunk]| match finish(chunks) {
        FinishReason::Aborted { failure } => assert_eq!(failure.code, "ABORTED"),
        other => panic!("{other:?}"),
    };
    let input = user("hi");
    let mut stream = fixture.stream(input.clone()).await;
    while !stream.next().await.unwrap().is_token() {}
    assert!(futures::poll!(stream.next()).is_pending());
    input.cancel.cancel(CancelCause::User);
    aborted(&stream.collect::<Vec<_>>().await);
    // Cancelled before it began.
    let chunks = fixture.ask(input).await;
    assert_eq!(chunks.len(), 1);
    aborted(&chunks);
}

async fn may_be_dropped<F: Future<Output = Fixture>>(make: impl Fn(Script) -> F) {
    let stall = Reply::text("a b").with_fault(Fault::new(FaultKind::Stall).after(1));
    let fixture = make(Script::sequence([stall, Reply::text("ok")])).await;
    let mut stream = fixture.stream(user("hi")).await;
    stream.next().await.unwrap();
    drop(stream);
    assert_eq!(blocks(&fixture.ask(user("hi")).await), [ContentBlock::text("ok")]);
}

async fn keeps_concurrent_calls_apart<F: Future<Output = Fixture>>(make: impl Fn(Script) -> F) {
    let script = Script::new()
        .rule(When::default().user_matches("say *"), Reply::text("you said {{1}}").at_gate("all"))
        .reply(Reply::text("what?"));
    let fixture = make(script).await;
    let gate = fixture.stage.gate("all");
    let texts: Vec<String> = (0..8).map(|n| format!("say {n}")).collect();
    let open = async {
        gate.arrived(texts.len()).await;
        gate.open();
    };
    let (answers, ()) =
        futures::join!(join_all(texts.iter().map(|text| fixture.ask(user(text)))), open);
    for (n, chunks) in answers.iter().enumerate() {
        assert_eq!(blocks(chunks), [ContentBlock::text(format!("you said {n}"))]);
    }
}

async fn encodes_stably<F: Future<Output = Fixture>>(make: impl Fn(Script) -> F) {
    let fixture = make(Script::new().reply(Reply::text("x").chunked(Chunking::Whole))).await;
    let call = fixture.prepare().await;
    let mut input = user("hi");
    input.messages.insert(0, Arc::new(Message::system("s", "be brief")));
    input.tools = tools(&["one"]);
    let body = |input: &CallInput| call.request(input.clone()).unwrap().body.to_bytes();
    let first = body(&input);
    assert_eq!(first, body(&input));
    let encoded = input.messages.iter().map(|m| call.encode(m, &LoadedImages::new()).unwrap());
    // A system prompt may stand in the frame instead.
    let encoded: Vec<_> = encoded.filter(|bytes| !bytes.is_empty()).collect();
    let frame = call.frame(&input.messages, &input.tools, None).unwrap();
    let lengths = encoded.iter().map(|bytes| bytes.len()).sum::<usize>();
    let common = frame.prefix.len() + lengths + encoded.len() - 1;
    input.messages.push(assistant(vec![ContentBlock::text("x")]));
    let second = body(&input);
    assert_eq!(first[..common], second[..common]);
    assert_eq!(first[common..], second[second.len() - (first.len() - common)..]);
    let value: serde_json::Value = serde_json::from_slice(&second).unwrap();
    assert_eq!(value["messages"].as_array().unwrap().len(), encoded.len() + 1);
}

#[tokio::test]
async fn the_scripted_adapter_keeps_the_contract() {
    contract(|script| async {
        let stage = Stage::new(script);
        Fixture::new(crate::scripted::ScriptedAdapter::on(stage.clone()), stage, ())
    })
    .await;
}
