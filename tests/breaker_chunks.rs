//! Models that stream what no model should: the turn ends with a reason, and the session goes on.

use std::{future::ready, sync::Mutex, time::Duration};

use futures::{FutureExt, StreamExt};
use playhouse::{
    ContentBlock, TurnEndReason,
    context::TokenMeter,
    messages::{
        chunk::{Failure, FinishReason, ReplayState, StreamChunk, Usage},
        content::ToolCallBlock,
        invariants,
    },
    models::scripted::{Reply, Script},
    plugin_api::{
        hook::{HookResult, Next},
        llm::{ModelCall, ModelStream},
    },
    testing::Stage,
};
use serde_json::json;

type Items = Vec<HookResult<StreamChunk>>;

fn text(index: u32, text: &str) -> StreamChunk {
    StreamChunk::TextDelta { index, text: text.into() }
}

fn finish(reason: FinishReason) -> StreamChunk {
    StreamChunk::Finish { reason, replay_state: None }
}

fn stop() -> StreamChunk {
    finish(FinishReason::Stop)
}

fn call(id: &str, name: &str, arguments: &str) -> StreamChunk {
    let (id, name, arguments) = (id.into(), name.into(), arguments.into());
    let block = ContentBlock::ToolCall(ToolCallBlock { id, name, arguments });
    StreamChunk::BlockEnd { index: 0, block }
}

fn usage(tokens: u64) -> StreamChunk {
    let cache = Some(tokens);
    let usage = Usage {
        input_tokens: tokens,
        output_tokens: tokens,
        total_tokens: cache,
        cache_read_tokens: cache,
        cache_write_tokens: cache,
        reasoning_tokens: cache,
    };
    StreamChunk::Usage { usage }
}

fn odd_failure() -> Failure {
    Failure { status: Some(9), request_id: Some(String::new()), ..Failure::new("", "") }
}

fn replay(value: serde_json::Value) -> StreamChunk {
    let state = ReplayState { response: value.clone(), blocks: Some(vec![value]) };
    StreamChunk::Finish { reason: FinishReason::Stop, replay_state: Some(state) }
}

fn hostile() -> Vec<(&'static str, Items)> {
    let image = json!({"attachmentId": "sha256:../../etc/passwd", "bytes": u64::MAX});
    let image = ContentBlock::Image { attachment: image, offloaded: false };
    let error = |failure| finish(FinishReason::Error { failure });
    let far = json!({"number": u64::MAX});
    vec![
        ("nothing", vec![]),
        ("only an end", vec![Ok(stop())]),
        ("a failure without facts", vec![Ok(error(odd_failure()))]),
        (
            "an abort that nobody asked for",
            vec![Ok(finish(FinishReason::Aborted { failure: odd_failure() }))],
        ),
        ("a thrown failure without facts", vec![Ok(text(0, "x")), Err(odd_failure())]),
        ("deltas without a block", vec![Ok(text(u32::MAX, "x")), Ok(text(7, "y")), Ok(stop())]),
        ("counts beyond integers", vec![Ok(text(0, "x")), Ok(usage(u64::MAX)), Ok(stop())]),
        ("the largest counts", vec![Ok(text(0, "x")), Ok(usage((1 << 53) - 1)), Ok(stop())]),
        ("a state beyond integers", vec![Ok(text(0, "x")), Ok(replay(far))]),
        (
            "an image of its own",
            vec![Ok(StreamChunk::BlockEnd { index: 0, block: image }), Ok(stop())],
        ),
        (
            "an unknown block",
            vec![Ok(StreamChunk::BlockStart { index: 0, block_type: "".into() }), Ok(stop())],
        ),
        ("a call without id and name", vec![Ok(call("", "", "")), Ok(stop())]),
        ("a call without a name", vec![Ok(call("c", "", "{")), Ok(stop())]),
        (
            "a call whose arguments are deep",
            vec![Ok(call("d", "none", &"[".repeat(100_000))), Ok(stop())],
        ),
        ("an id that is long", vec![Ok(call(&"i".repeat(100_000), "none", "{}")), Ok(stop())]),
    ]
}

#[tokio::test]
async fn whatever_a_model_streams_its_turn_ends_and_the_next_one_runs() {
    for (name, items) in hostile() {
        let stage = Stage::base(Script::new().reply(Reply::text("Yes."))).start().await.unwrap();
        let items = Mutex::new(Some(items));
        let once = move |call: ModelCall, next: Next<ModelCall, ModelStream>| match items
            .lock()
            .unwrap()
            .take()
        {
            Some(items) => ready(Ok(futures::stream::iter(items).boxed())).boxed(),
            None => next.run(call),
        };
        stage.world().models.on_stream().add(&stage.world().scope, once).unwrap();
        let agent = stage.agent();
        let prompted = tokio::time::timeout(Duration::from_secs(20), agent.prompt("Hi")).await;
        prompted.unwrap_or_else(|_| panic!("{name}: {}", stage.trace())).unwrap();
        agent.when_idle().await.unwrap();
        let log = agent.session().log();
        invariants::check(&log).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        TokenMeter::new().catch_up(&log).unwrap();
        let next = agent.prompt("Still there?").await.unwrap();
        assert_eq!((next.text.as_str(), next.reason), ("Yes.", TurnEndReason::Completed), "{name}");
        stage.shutdown().await.unwrap();
    }
}
