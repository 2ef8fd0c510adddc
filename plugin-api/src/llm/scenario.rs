//! The numbered scenarios of the model seam.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk},
    config::{CallConfig, Route},
    content::ContentBlock,
    event::CancelCause,
    message::{Message, Source},
    prepared::Ticket,
};
use serde_json::json;

use super::*;

pub(super) type Item = Result<StreamChunk, Failure>;

pub(super) struct Fake {
    model: Mutex<ModelInfo>,
    items: Vec<Item>,
    pub(super) resolved: AtomicUsize,
    pub(super) dropped: Arc<AtomicUsize>,
}

impl Fake {
    pub(super) fn new(items: Vec<Item>) -> Arc<Self> {
        let model = ModelInfo { name: "M".into(), ..ModelInfo::default() };
        Arc::new(Self {
            model: Mutex::new(model),
            items,
            resolved: AtomicUsize::new(0),
            dropped: Arc::default(),
        })
    }

    fn with_model(change: impl FnOnce(&mut ModelInfo)) -> Arc<Self> {
        let fake = Self::new(vec![Ok(stop())]);
        change(&mut fake.model.lock().unwrap());
        fake
    }
}

impl LlmAdapter for Fake {
    fn resolve<'a>(
        &'a self,
        route: &'a Route,
        _cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
        self.resolved.fetch_add(1, Ordering::Relaxed);
        let mut model = self.model.lock().unwrap().clone();
        model.provider = route.provider.clone();
        model.id = route.model.clone();
        async { Ok(model) }.boxed()
    }

    fn encode(&self, input: &EncodeInput<'_>) -> Result<Bytes, Failure> {
        let message = input.message;
        Ok(serde_json::to_vec(&json!([message.text(), message.source])).unwrap().into())
    }

    fn frame(&self, _request: &FrameInput<'_>) -> Result<Frame, Failure> {
        Ok(Frame { prefix: Bytes::from_static(b"["), suffix: Bytes::from_static(b"]") })
    }

    fn stream(&self, _request: LlmRequest) -> BoxStream<'static, Item> {
        struct Count(Arc<AtomicUsize>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Count(self.dropped.clone());
        futures::stream::iter(self.items.clone())
            .map(move |item| {
                let _held = &count;
                assert!(item != Err(Failure::unknown("panic")), "bang");
                item
            })
            .boxed()
    }
}

pub(super) fn stop() -> StreamChunk {
    StreamChunk::Finish { reason: FinishReason::Stop, replay_state: None }
}

pub(super) fn usage() -> StreamChunk {
    StreamChunk::Usage { usage: Default::default() }
}

pub(super) fn config(provider: &str) -> CallConfig {
    CallConfig { provider: provider.into(), model: "m".into(), ..CallConfig::default() }
}

async fn prepare(registry: &LlmRegistry, config: CallConfig) -> Result<PreparedCall, LlmError> {
    registry.prepare(config, &CancelToken::new()).await
}

pub(super) fn register(
    registry: &LlmRegistry,
    providers: &[&str],
    adapter: Arc<Fake>,
) -> AdapterRegistration {
    registry.register(providers.iter().copied(), adapter).unwrap()
}

async fn run(items: Vec<Item>, cancel: &CancelToken) -> Vec<StreamChunk> {
    let registry = LlmRegistry::new();
    let _registration = register(&registry, &["p"], Fake::new(items));
    let call = prepare(&registry, config("p")).await.unwrap();
    let input = CallInput { cancel: cancel.clone(), ..CallInput::default() };
    call.stream(call.request(input).unwrap()).unwrap().collect().await
}

fn ids(registry: &LlmRegistry) -> Vec<String> {
    registry.providers().into_iter().map(|info| info.id).collect()
}

#[test]
fn llm_21_register_is_atomic() {
    let registry = LlmRegistry::new();
    let _b = register(&registry, &["b"], Fake::new(vec![]));
    let changes = registry.changes();
    let error = registry.register(["a", "b"], Fake::new(vec![])).unwrap_err();
    assert_eq!(error.code(), "DUPLICATE_ADAPTER");
    let error = registry.register(["c", "c"], Fake::new(vec![])).unwrap_err();
    assert_eq!(error.code(), "DUPLICATE_ADAPTER");
    for providers in [vec![], vec![""]] {
        let error = registry.register(providers, Fake::new(vec![])).unwrap_err();
        assert_eq!(error.code(), "INVALID_ADAPTER");
    }
    assert_eq!(ids(&registry), ["b"]);
    assert!(!changes.has_changed().unwrap());
}

#[test]
fn llm_22_a_stale_handle_leaves_the_newer_registration_alone() {
    let registry = LlmRegistry::new();
    let old = register(&registry, &["p"], Fake::new(vec![]));
    old.dispose();
    let _new = register(&registry, &["p"], Fake::new(vec![]));
    old.dispose();
    drop(old.into_guard());
    assert_eq!(ids(&registry), ["p"]);
}

#[tokio::test]
async fn llm_23_replace_moves_routes_in_one_step() {
    let registry = LlmRegistry::new();
    let first = register(&registry, &["a", "b"], Fake::new(vec![]));
    let _other = register(&registry, &["z"], Fake::new(vec![]));
    let mut changes = registry.changes();
    let before = *changes.borrow_and_update();
    first.replace(["c", "b"]).unwrap();
    assert_eq!(*changes.borrow_and_update(), before + 1);
    assert_eq!(ids(&registry), ["b", "z", "c"]);
    assert_eq!(first.replace(["z"]).unwrap_err().code(), "DUPLICATE_ADAPTER");
    assert_eq!(ids(&registry), ["b", "z", "c"]);
    first.replace(Vec::<&str>::new()).unwrap();
    assert_eq!(prepare(&registry, config("b")).await.unwrap_err().code(), "NO_ADAPTER");
    first.dispose();
    assert_eq!(first.replace(["b"]).unwrap_err().code(), "REGISTRATION_DISPOSED");
}

/// Watchers run in tasks of their own: no failure of theirs reaches who registers.
#[tokio::test]
async fn llm_24_a_watcher_that_panics_costs_neither_the_registration_nor_the_others() {
    let registry = LlmRegistry::new();
    let (mut first, mut second) = (registry.changes(), registry.changes());
    let fails = tokio::spawn(async move {
        first.changed().await.unwrap();
        panic!("boom");
    });
    let hears = tokio::spawn(async move { second.changed().await.map(|()| *second.borrow()) });
    let _registration = register(&registry, &["p"], Fake::new(vec![]));
    assert!(fails.await.unwrap_err().is_panic());
    assert_eq!((ids(&registry), hears.await.unwrap().unwrap()), (vec!["p".to_owned()], 1));
}

#[test]
fn a_guard_disposes_when_dropped() {
    let registry = LlmRegistry::new();
    let guard = register(&registry, &["p"], Fake::new(vec![])).into_guard();
    assert_eq!(ids(&registry), ["p"]);
    drop(guard);
    assert!(ids(&registry).is_empty());
}

#[tokio::test]
async fn llm_25_a_failing_stream_ends_in_one_error_finish() {
    let failure = Failure::new("SERVER", "down");
    let finish = StreamChunk::Finish {
        reason: FinishReason::Error { failure: failure.clone() },
        replay_state: None,
    };
    let cancel = CancelToken::new();
    assert_eq!(run(vec![Err(failure.clone())], &cancel).await, vec![finish.clone()]);
    let late = vec![Ok(usage()), Err(failure), Ok(stop())];
    assert_eq!(run(late, &cancel).await, [usage(), finish.clone()]);
    // The last finish counts: what fails after its own finish has failed.
    let after = vec![Ok(stop()), Err(Failure::new("SERVER", "down"))];
    assert_eq!(run(after, &cancel).await, [stop(), finish]);
}

#[tokio::test]
async fn llm_26_a_failure_under_cancel_or_with_code_aborted_is_aborted() {
    let aborted = |failure: Failure| StreamChunk::Finish {
        reason: FinishReason::Aborted { failure },
        replay_state: None,
    };
    let server = Failure { status: Some(503), ..Failure::new("SERVER", "down") };
    let cancelled = CancelToken::new();
    cancelled.cancel(CancelCause::User);
    assert_eq!(run(vec![Err(server.clone())], &cancelled).await, [aborted(server)]);
    let own = Failure::new("ABORTED", "gone");
    assert_eq!(run(vec![Err(own.clone())], &CancelToken::new()).await, [aborted(own)]);
}

#[tokio::test]
async fn llm_27_dropping_the_stream_drops_the_adapters() {
    let registry = LlmRegistry::new();
    let fake = Fake::new(vec![Ok(usage()), Ok(stop())]);
    let _registration = register(&registry, &["p"], fake.clone());
    let call = prepare(&registry, config("p")).await.unwrap();
    let mut stream = call.stream(call.request(CallInput::default()).unwrap()).unwrap();
    assert_eq!(stream.next().await, Some(usage()));
    assert_eq!(fake.dropped.load(Ordering::Relaxed), 0);
    drop(stream);
    assert_eq!(fake.dropped.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_stream_without_finish_a_panic_and_a_broken_order_are_failures_of_the_attempt() {
    let code = |chunks: Vec<StreamChunk>| match chunks.last() {
        Some(StreamChunk::Finish { reason: FinishReason::Error { failure }, .. }) => {
            failure.code.clone()
        }
        other => panic!("{other:?}"),
    };
    let cancel = CancelToken::new();
    assert_eq!(code(run(vec![Ok(usage())], &cancel).await), "STREAM_CLOSED");
    assert_eq!(code(run(vec![Err(Failure::unknown("panic"))], &cancel).await), "UNKNOWN");
    // Checked while developing only.
    if cfg!(debug_assertions) {
        let twice = vec![Ok(usage()), Ok(usage()), Ok(stop())];
        assert_eq!(code(run(twice, &cancel).await), protocol_check::Violation::CODE);
    }
}

#[tokio::test]
async fn llm_28_facts_that_the_log_refuses_are_dropped() {
    let broken = Failure {
        status: Some(7),
        provider_retry_after_ms: Some(0),
        request_id: Some(String::new()),
        ..Failure::new("", "")
    };
    let chunks = run(vec![Err(broken)], &CancelToken::new()).await;
    let failure = Failure::unknown("LLM adapter failed");
    let reason = FinishReason::Error { failure };
    assert_eq!(chunks, [StreamChunk::Finish { reason, replay_state: None }]);
}

#[tokio::test]
async fn llm_29_an_unsupported_effort_is_refused_before_any_call() {
    let registry = LlmRegistry::new();
    let high = Reasoning { efforts: vec!["high".into()], default_effort: None };
    let _a = register(&registry, &["a"], Fake::with_model(|model| model.reasoning = Some(high)));
    let _b = register(&registry, &["b"], Fake::new(vec![]));
    for provider in ["a", "b"] {
        let config = CallConfig { reasoning_effort: Some("e".into()), ..config(provider) };
        let error = prepare(&registry, config).await.unwrap_err();
        assert_eq!(error.code(), "UNSUPPORTED_REASONING_EFFORT");
        assert!(error.to_string().contains("does not support reasoning effort \"e\""));
    }
}

#[tokio::test]
async fn llm_30_defaults_are_filled_and_marked() {
    let registry = LlmRegistry::new();
    let fake = Fake::with_model(|model| {
        model.default_max_tokens = Some(100);
        model.reasoning = Some(Reasoning {
            efforts: vec!["low".into(), "high".into()],
            default_effort: Some("high".into()),
        });
    });
    let _registration = register(&registry, &["p"], fake.clone());
    let call = prepare(&registry, config("p")).await.unwrap();
    assert_eq!(call.config().max_tokens, Some(100));
    assert_eq!(call.config().reasoning_effort.as_deref(), Some("high"));
    let defaults = call.adapter_defaults();
    assert!(defaults.max_tokens && defaults.reasoning_effort);
    let facts = call.facts(Ticket::new(7));
    assert_eq!((facts.ticket, &facts.config), (Some(Ticket::new(7)), call.config()));
    assert_eq!(facts.retry_policy, Some(RetryPolicy::default()));
    let explicit =
        CallConfig { max_tokens: Some(5000), reasoning_effort: Some("low".into()), ..config("p") };
    let call = prepare(&registry, explicit.clone()).await.unwrap();
    assert_eq!(call.config(), &explicit);
    assert!(call.adapter_defaults().is_empty());
    assert_eq!(fake.resolved.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn model_descriptions_are_checked() {
    type Spoil = fn(&mut ModelInfo);
    let bad: [(&str, Spoil); 7] = [
        ("INVALID_MODEL_INFO", |model| model.name.clear()),
        ("INVALID_MODEL_INFO", |model| model.input_modalities = Some(vec!["smell".into()])),
        ("INVALID_MODEL_CONTEXT", |model| model.context_window = Some(0)),
        ("INVALID_MODEL_MAX_TOKENS", |model| model.default_max_tokens = Some(1 << 60)),
        ("INVALID_MODEL_REASONING", |model| model.reasoning = Some(Reasoning::default())),
        ("INVALID_MODEL_REASONING", |model| {
            let efforts = vec!["a".to_owned(), "a".to_owned()];
            model.reasoning = Some(Reasoning { efforts, default_effort: None });
        }),
        ("INVALID_MODEL_REASONING", |model| {
            let default_effort = Some("b".to_owned());
            model.reasoning = Some(Reasoning { efforts: vec!["a".into()], default_effort });
        }),
    ];
    for (code, spoil) in bad {
        let registry = LlmRegistry::new();
        let _registration = register(&registry, &["p"], Fake::with_model(spoil));
        assert_eq!(prepare(&registry, config("p")).await.unwrap_err().code(), code);
    }
}

#[tokio::test]
async fn llm_31_a_prepared_call_outlives_its_route_and_serves_once() {
    let registry = LlmRegistry::new();
    let registration = register(&registry, &["p"], Fake::new(vec![Ok(usage()), Ok(stop())]));
    let call = prepare(&registry, config("p")).await.unwrap();
    registration.dispose();
    let _other = register(&registry, &["p"], Fake::new(vec![]));
    let request = call.request(CallInput::default()).unwrap();
    let chunks: Vec<_> = call.stream(request.clone()).unwrap().collect().await;
    assert_eq!(chunks, [usage(), stop()]);
    assert_eq!(call.stream(request).err().unwrap().code(), "INVALID_PREPARED_CALL");
}

#[tokio::test]
async fn llm_32_a_changed_config_is_refused_and_does_not_use_the_call_up() {
    let registry = LlmRegistry::new();
    let _registration = register(&registry, &["p"], Fake::new(vec![Ok(stop())]));
    let call = prepare(&registry, config("p")).await.unwrap();
    let request = call.request(CallInput::default()).unwrap();
    let mut changed = request.clone();
    changed.config.model = "other".into();
    assert_eq!(call.stream(changed).err().unwrap().code(), "INVALID_PREPARED_CALL");
    assert!(call.stream(request).is_ok());
}

#[tokio::test]
async fn llm_33_without_an_adapter_a_direct_call_ends_in_an_error() {
    let registry = LlmRegistry::new();
    let chunks: Vec<_> = registry.call(config("p"), CallInput::default()).collect().await;
    let failure = Failure::new("NO_ADAPTER", "no adapter registered for provider \"p\"");
    let reason = FinishReason::Error { failure };
    assert_eq!(chunks, [StreamChunk::Finish { reason, replay_state: None }]);
    assert_eq!(registry.retry_policy("p"), None);
    let _registration = register(&registry, &["p"], Fake::new(vec![Ok(stop())]));
    let chunks: Vec<_> = registry.call(config("p"), CallInput::default()).collect().await;
    assert_eq!(chunks, [stop()]);
}

#[tokio::test]
async fn llm_34_a_text_only_model_gets_a_placeholder_for_an_image() {
    let registry = LlmRegistry::new();
    let text_only = |model: &mut ModelInfo| model.input_modalities = Some(vec!["text".into()]);
    let _registration = register(&registry, &["p"], Fake::with_model(text_only));
    let _unknown = register(&registry, &["q"], Fake::new(vec![]));
    let image = ContentBlock::Image {
        attachment: json!({"attachmentId": "sha256:0123456789abcdef"}),
        offloaded: false,
    };
    let message = Arc::new(Message::tool("r", &"c".into(), false, vec![image]));
    let call = prepare(&registry, config("p")).await.unwrap();
    assert!(call.project(&message).text().contains("01234567"));
    assert!(message.text().is_empty());
    let call = prepare(&registry, config("q")).await.unwrap();
    assert!(Arc::ptr_eq(&call.project(&message), &message));
}

#[tokio::test]
async fn llm_35_replay_state_of_another_adapter_instance_is_stripped() {
    let registry = LlmRegistry::new();
    let first = register(&registry, &["p", "q"], Fake::new(vec![]));
    let mut message = Message::user("a", "x");
    message.source = Source::model("p", "m", Some(&json!({"response": 1})));
    let message = Arc::new(message);
    // The same instance under another route is the same instance.
    let call = prepare(&registry, config("q")).await.unwrap();
    assert!(Arc::ptr_eq(&call.project(&message), &message));
    let key = call.encoding_key().clone();
    // The route that the state came by moves to a new instance; the call that is bound stays as it is.
    first.replace(["q"]).unwrap();
    let _second = register(&registry, &["p"], Fake::new(vec![]));
    assert!(Arc::ptr_eq(&call.project(&message), &message));
    let call = prepare(&registry, config("q")).await.unwrap();
    assert_eq!(call.project(&message).source, Source::model("p", "m", None));
    assert_ne!(call.encoding_key(), &key);
}

#[tokio::test]
async fn a_bad_retry_policy_is_refused() {
    let normal = |codes: &[&str], backoff| RetryPolicy::Normal {
        max_retries: 0,
        retryable_codes: codes.iter().map(|code| (*code).to_owned()).collect(),
        backoff,
    };
    let backoff = Backoff::default();
    assert_eq!(normal(&[], backoff).check(), Ok(()));
    assert!(normal(&["A", "A"], backoff).check().is_err());
    assert!(normal(&[""], backoff).check().is_err());
    for backoff in [
        Backoff { initial_delay_ms: 0, ..backoff },
        Backoff { max_delay_ms: 1, ..backoff },
        Backoff { max_delay_ms: 1 << 40, ..backoff },
        Backoff { jitter_ratio: 1.5, ..backoff },
        Backoff { jitter_ratio: f64::NAN, ..backoff },
    ] {
        assert!(RetryPolicy::Always { backoff }.check().is_err(), "{backoff:?}");
    }
}

#[tokio::test]
async fn cancel_ends_a_preparation_that_hangs() {
    struct Hangs;
    impl LlmAdapter for Hangs {
        fn resolve<'a>(
            &'a self,
            _route: &'a Route,
            _cancel: &'a CancelToken,
        ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
            std::future::pending().boxed()
        }
        fn encode(&self, _input: &EncodeInput<'_>) -> Result<Bytes, Failure> {
            Ok(Bytes::new())
        }
        fn frame(&self, _request: &FrameInput<'_>) -> Result<Frame, Failure> {
            Ok(Frame::default())
        }
        fn stream(&self, _request: LlmRequest) -> BoxStream<'static, Item> {
            futures::stream::empty().boxed()
        }
    }
    let registry = LlmRegistry::new();
    let _registration = registry.register(["p"], Arc::new(Hangs)).unwrap();
    let cancel = CancelToken::new();
    let mut prepared = Box::pin(registry.prepare(config("p"), &cancel));
    assert!(futures::poll!(&mut prepared).is_pending());
    cancel.cancel(CancelCause::User);
    assert_eq!(prepared.await.unwrap_err().code(), "ABORTED");
}
