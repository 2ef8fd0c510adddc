//! Hostile models, listeners, policies and rules: whatever they do, a turn ends and can be told.

use std::{future::ready, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use playhouse::{
    AgentOptions, CancelCause, EventBody, NewAgent, TurnEndReason,
    messages::{
        candidate::Candidate,
        chunk::{Failure, FinishReason, StreamChunk},
        config::{CallConfig, ModelChoice, Route},
        message::Message,
        retry::{Backoff, RetryPolicy},
        validator::{Trace, Validator},
    },
    models::scripted::{Reply, Script, ScriptedAdapter},
    plugin_api::{
        cancel::CancelToken,
        hook::{HookResult, Next},
        llm::{
            CallInput, EncodeInput, Frame, FrameInput, LlmAdapter, LlmRegistry, LlmRequest,
            ModelCall, ModelInfo, ModelStream,
        },
    },
    policies::{Fallback, FallbackPolicy},
    testing::Stage,
};

type Rest = Next<ModelCall, ModelStream>;

fn choice(provider: &str) -> ModelChoice {
    ModelChoice { provider: provider.into(), model: "any".into(), reasoning_effort: None }
}

fn finish(failure: Option<Failure>) -> StreamChunk {
    let reason = failure.map_or(FinishReason::Stop, |failure| FinishReason::Error { failure });
    StreamChunk::Finish { reason, replay_state: None }
}

fn text(text: &str) -> StreamChunk {
    StreamChunk::TextDelta { index: 0, text: text.into() }
}

/// An adapter that panics in one of its methods.
struct Panics(&'static str);

impl Panics {
    fn here(&self, place: &str) {
        if self.0 == place {
            // Without the hook, which would print a trace.
            std::panic::resume_unwind(Box::new(format!("in {place}")));
        }
    }
}

impl LlmAdapter for Panics {
    fn resolve<'a>(
        &'a self,
        route: &'a Route,
        _cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
        self.here("resolve");
        let Route { provider, model } = route.clone();
        let name = model.clone();
        ready(Ok(ModelInfo { provider, id: model, name, ..ModelInfo::default() })).boxed()
    }

    fn encode(&self, _: &EncodeInput<'_>) -> Result<Bytes, Failure> {
        self.here("encode");
        Ok(Bytes::new())
    }

    fn frame(&self, _: &FrameInput<'_>) -> Result<Frame, Failure> {
        self.here("frame");
        Ok(Frame::default())
    }

    fn stream(&self, _: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
        self.here("stream");
        futures::stream::iter([Ok(finish(None))]).boxed()
    }
}

#[tokio::test]
async fn an_adapter_that_panics_anywhere_fails_its_call_by_its_own_words() {
    for place in ["resolve", "encode", "frame", "stream"] {
        let words = format!("the model adapter panicked: in {place}");
        let expected = Failure::unknown(words);
        let models = LlmRegistry::new();
        let _registration = models.register(["odd"], Arc::new(Panics(place))).unwrap();
        let config =
            CallConfig { provider: "odd".into(), model: "any".into(), ..CallConfig::default() };
        let messages = vec![Arc::new(Message::user("m", "Hi"))];
        let input = CallInput { messages, ..CallInput::default() };
        let chunks: Vec<_> = models.call(config, input).collect().await;
        assert_eq!(chunks, [finish(Some(expected.clone()))], "{place}");

        let stage = Stage::base(Script::new()).start().await.unwrap();
        let _registration = stage.world().models.register(["odd"], Arc::new(Panics(place)));
        let new = NewAgent::new(AgentOptions::new().model("odd", "any"));
        let agent = stage.harness().create(new).await.unwrap();
        let outcome = agent.prompt("Hi").await.unwrap();
        assert_eq!(outcome.reason, TurnEndReason::Error(expected), "{place}");
        stage.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_call_by_hand_ends_with_the_first_finish_of_a_listener() {
    type Listener = fn() -> ModelStream;
    let listeners: [Listener; 3] = [
        || futures::stream::iter([Ok(finish(None)), Ok(text("late")), Ok(finish(None))]).boxed(),
        || futures::stream::iter([Ok(finish(None)), Err(Failure::new("MINE", "x"))]).boxed(),
        || {
            let never = futures::stream::pending();
            futures::stream::iter([Ok(finish(None))]).chain(never).boxed()
        },
    ];
    for listener in listeners {
        let models = LlmRegistry::new();
        let stream = move |_: ModelCall, _: Rest| ready(Ok(listener()));
        let scope = playhouse::plugin_api::scope::Scope::root("mine");
        models.on_stream().add(&scope, stream).unwrap();
        let input = CallInput { scope: Some(scope), ..CallInput::default() };
        let chunks = models.call(CallConfig::default(), input).collect::<Vec<_>>();
        let chunks = tokio::time::timeout(Duration::from_secs(10), chunks).await;
        assert_eq!(chunks.expect("the call hangs"), [finish(None)]);
    }
}

/// One thread: whoever never yields keeps everybody else from running.
#[tokio::test]
async fn a_listener_that_streams_without_end_leaves_others_their_turn() {
    let stage = Stage::new(Script::new()).await.unwrap();
    let (began, mut begun) = tokio::sync::mpsc::channel(1);
    let endless = move |_: ModelCall, _: Rest| {
        let start = StreamChunk::BlockStart { index: 0, block_type: "text".into() };
        let _ = began.try_send(());
        let chunks = futures::stream::iter([start]).chain(futures::stream::repeat(text("x")));
        ready(Ok(chunks.map(Ok).boxed()) as HookResult<ModelStream>)
    };
    stage.world().models.on_stream().add(&stage.world().scope, endless).unwrap();
    let id = stage.agent().followup("Hi").await.unwrap();
    begun.recv().await.unwrap();
    stage.agent().cancel(CancelCause::User);
    let outcome = stage.agent().outcome(&id, 0).await.unwrap();
    assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
    stage.shutdown().await.unwrap();
}

const WAIT: Backoff = Backoff { initial_delay_ms: 60_000, max_delay_ms: 60_000, jitter_ratio: 0.0 };

fn once() -> RetryPolicy {
    let retryable_codes = vec!["SERVER".into()];
    RetryPolicy::Normal { max_retries: 1, retryable_codes, backoff: WAIT }
}

/// A stage whose model fails under this policy; `spare` is another route, where a step falls back.
async fn failing(policy: RetryPolicy, spare: Reply) -> Stage {
    let busy = || Reply::error("SERVER", "busy");
    let policies = FallbackPolicy::new([choice("spare")]).unwrap();
    let stage = Stage::base(Script::sequence([busy(), busy()]))
        .model(|model| model.with_retry_policy(policy))
        .harness(|harness| harness.plugin(Fallback::new(policies)))
        .start()
        .await
        .unwrap();
    for (route, reply) in [("spare", spare), ("chosen", Reply::text("by the chosen one"))] {
        let model = Arc::new(ScriptedAdapter::new(Script::new().reply(reply)));
        drop(stage.world().models.register([route], model).unwrap());
    }
    stage
}

async fn waits_to_retry(stage: &Stage) {
    let mut events = stage.agent().session().events(0);
    while events.next().await.body.kind() != "llm/retry" {}
}

#[tokio::test(start_paused = true)]
async fn a_model_selected_during_a_retry_s_wait_is_used_after_the_step_fell_back() {
    let stage = failing(once(), Reply::text("by the spare one")).await;
    let agent = stage.agent();
    let id = agent.followup("Hi").await.unwrap();
    waits_to_retry(&stage).await;
    agent.model().select(choice("chosen")).await.unwrap();
    assert_eq!(agent.outcome(&id, 0).await.unwrap().text, "by the spare one");
    assert_eq!(agent.model().pending(), Some(choice("chosen")));
    assert_eq!(agent.prompt("And now?").await.unwrap().text, "by the chosen one");
    stage.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whatever_ends_a_turn_ends_a_retry_s_wait_and_does_not_fall_back() {
    for policy in [once(), RetryPolicy::Always { backoff: WAIT }] {
        let start = tokio::time::Instant::now();
        let stage = failing(policy, Reply::text("never")).await;
        let id = stage.agent().followup("Hi").await.unwrap();
        waits_to_retry(&stage).await;
        stage.agent().steer("Wait").await.unwrap();
        stage.agent().cancel(CancelCause::User);
        let outcome = stage.agent().outcome(&id, 0).await.unwrap();
        assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));

        let other = stage.another().await.unwrap();
        other.followup("Hi").await.unwrap();
        let mut events = other.session().events(0);
        while events.next().await.body.kind() != "llm/retry" {}
        stage.shutdown().await.unwrap();
        for agent in [stage.agent(), &other] {
            let log = agent.session().log();
            assert!(!log.iter().any(|event| event.body.kind() == "llm/fallback"));
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

/// A rule that panics in one of its methods.
struct Breaks(&'static str);

impl Breaks {
    fn here(&self, place: &str) {
        if self.0 == place {
            std::panic::resume_unwind(Box::new(format!("in {place}")));
        }
    }
}

impl Validator for Breaks {
    fn name(&self) -> &str {
        "breaks"
    }

    fn trace(&self) -> Box<dyn Trace> {
        self.here("trace");
        self.fork()
    }
}

impl Trace for Breaks {
    fn follow(&mut self, event: Candidate<'_>) -> Result<(), String> {
        if event.seq > 0 {
            self.here("follow");
        }
        Ok(())
    }

    fn fork(&self) -> Box<dyn Trace> {
        self.here("fork");
        Box::new(Self(self.0))
    }
}

#[tokio::test]
async fn a_rule_that_panics_anywhere_refuses_and_kills_nobody() {
    for place in ["trace", "follow", "fork"] {
        let stage = Stage::new(Script::new().reply(Reply::text("Yes."))).await.unwrap();
        let agent = stage.agent();
        agent.prompt("There?").await.unwrap();
        agent.when_idle().await.unwrap();
        let world = stage.world();
        let rule = world.validators.register(&world.scope, Breaks(place)).unwrap();
        let event = playhouse::NewEvent::log_only(EventBody::ModelSelection(choice("scripted")));
        let refused = agent.session().append(event);
        let refused = tokio::time::timeout(Duration::from_secs(10), refused).await;
        let error = refused.expect("the append hangs").unwrap_err();
        assert_eq!(error.code(), "INVARIANT", "{place}");
        assert!(error.to_string().contains(&format!("panicked: in {place}")), "{error}");
        rule.remove();
        assert_eq!(agent.prompt("And now?").await.unwrap().text, "Yes.");
        stage.shutdown().await.unwrap();
    }
}
