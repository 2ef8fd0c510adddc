//! Calls from outside a loop, through stream listeners.

use std::{
    future::ready,
    sync::{Arc, Mutex, atomic::Ordering},
};

use futures::{StreamExt, TryStreamExt};
use playhouse_messages::{
    chunk::{Failure, FinishReason, StreamChunk},
    event::CancelCause,
};

use super::{
    scenario::{Fake, config, register, stop, usage},
    *,
};
use crate::{
    hook::{HookResult, Next},
    scope::Scope,
};

type Rest = Next<ModelCall, ModelStream>;

fn registry() -> (LlmRegistry, Scope) {
    let scope = Scope::root("root");
    (LlmRegistry::at(scope.clone()), scope)
}

async fn ask(registry: &LlmRegistry, provider: &str) -> Vec<StreamChunk> {
    registry.call(config(provider), CallInput::default()).collect().await
}

fn failed(code: &str, message: &str) -> StreamChunk {
    let reason = FinishReason::Error { failure: Failure::new(code, message) };
    StreamChunk::Finish { reason, replay_state: None }
}

fn plays(items: Vec<HookResult<StreamChunk>>) -> HookResult<ModelStream> {
    Ok(futures::stream::iter(items).boxed())
}

#[tokio::test]
async fn a_listener_wraps_chunks_in_the_order_of_registration() {
    let (registry, scope) = registry();
    let _registration = register(&registry, &["p"], Fake::new(vec![Ok(usage()), Ok(stop())]));
    let seen = Arc::new(Mutex::new(Vec::new()));
    for name in ["outer", "inner"] {
        let seen = seen.clone();
        let listener = move |call: ModelCall, next: Rest| {
            let seen = seen.clone();
            async move {
                let look = move |chunk: &StreamChunk| {
                    let finish = matches!(chunk, StreamChunk::Finish { .. });
                    seen.lock().unwrap().push((name, finish));
                };
                Ok(next.run(call).await?.inspect_ok(look).boxed())
            }
        };
        registry.on_stream().add(&scope, listener).unwrap();
    }
    assert_eq!(ask(&registry, "p").await, [usage(), stop()]);
    let order = [("inner", false), ("outer", false), ("inner", true), ("outer", true)];
    assert_eq!(*seen.lock().unwrap(), order);
}

#[tokio::test]
async fn a_call_that_was_built_by_hand_may_be_rerouted() {
    let (registry, scope) = registry();
    let (first, second) = (Fake::new(vec![]), Fake::new(vec![Ok(stop())]));
    let _first = register(&registry, &["p"], first.clone());
    let _second = register(&registry, &["q"], second.clone());
    let reroute = |mut call: ModelCall, next: Rest| {
        if let ModelCall::Direct(call) = &mut call {
            call.config.provider = "q".to_owned();
        }
        next.run(call)
    };
    registry.on_stream().add(&scope, reroute).unwrap();
    assert_eq!(ask(&registry, "p").await, [stop()]);
    let resolved = |fake: &Fake| fake.resolved.load(Ordering::Relaxed);
    assert_eq!((resolved(&first), resolved(&second)), (0, 1));
}

#[tokio::test]
async fn whatever_a_listener_does_wrong_a_call_ends_with_a_finish() {
    type Listener = fn(ModelCall, Rest) -> HookResult<ModelStream>;
    let mine = || Failure::new("MINE", "x");
    let cases: [(Listener, Vec<StreamChunk>); 5] = [
        (|_, _| Err(Failure::new("MINE", "x")), vec![failed("MINE", "x")]),
        (|_, _| panic!("boom"), vec![failed("PANIC", "panicked: boom")]),
        (
            |_, _| plays(vec![Ok(usage()), Err(Failure::new("MINE", "x")), Ok(stop())]),
            vec![usage(), failed("MINE", &mine().message)],
        ),
        (
            |_, _| Ok(futures::stream::poll_fn(|_| panic!("boom")).boxed()),
            vec![failed("PANIC", "panicked: boom")],
        ),
        (
            |_, _| plays(vec![Ok(usage())]),
            vec![usage(), failed("STREAM_CLOSED", "the model stream ended without a finish")],
        ),
    ];
    for (listener, expected) in cases {
        let (registry, scope) = registry();
        let _registration = register(&registry, &["p"], Fake::new(vec![Ok(stop())]));
        let listener = move |call, next| ready(listener(call, next));
        registry.on_stream().add(&scope, listener).unwrap();
        assert_eq!(ask(&registry, "p").await, expected);
    }
}

#[tokio::test]
async fn dropping_a_wrapped_stream_drops_the_adapter_s() {
    let (registry, scope) = registry();
    let fake = Fake::new(vec![Ok(usage()), Ok(stop())]);
    let _registration = register(&registry, &["p"], fake.clone());
    let pass = |call: ModelCall, next: Rest| async move {
        Ok(next.run(call).await?.inspect_ok(|_| ()).boxed())
    };
    registry.on_stream().add(&scope, pass).unwrap();
    let mut stream = registry.call(config("p"), CallInput::default());
    assert_eq!(stream.next().await, Some(usage()));
    assert_eq!(fake.dropped.load(Ordering::Relaxed), 0);
    drop(stream);
    assert_eq!(fake.dropped.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_failure_after_a_cancel_is_an_abort() {
    let (registry, scope) = registry();
    registry.on_stream().add(&scope, |_, _| ready(Err(Failure::new("MINE", "x")))).unwrap();
    let cancel = CancelToken::new();
    cancel.cancel(CancelCause::User);
    let input = CallInput { cancel, ..CallInput::default() };
    let chunks: Vec<_> = registry.call(config("p"), input).collect().await;
    let reason = FinishReason::Aborted { failure: Failure::new("MINE", "x") };
    assert_eq!(chunks, [StreamChunk::Finish { reason, replay_state: None }]);
}

#[tokio::test]
async fn listeners_hear_the_calls_of_their_scope_and_of_those_below() {
    let (registry, root) = registry();
    let (left, right) = (root.child("left").unwrap(), root.child("right").unwrap());
    let heard = Arc::new(Mutex::new(Vec::new()));
    for (name, scope) in [("root", &root), ("left", &left)] {
        let heard = heard.clone();
        let listener = move |call, next: Rest| {
            heard.lock().unwrap().push(name);
            next.run(call)
        };
        registry.on_stream().add(scope, listener).unwrap();
    }
    for (scope, expected) in
        [(None, vec!["root"]), (Some(left), vec!["root", "left"]), (Some(right), vec!["root"])]
    {
        heard.lock().unwrap().clear();
        let input = CallInput { scope, ..CallInput::default() };
        assert_eq!(registry.call(config("p"), input).count().await, 1);
        assert_eq!(*heard.lock().unwrap(), expected);
    }
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn llm_33_a_listener_serves_a_route_without_an_adapter() {
        let (registry, scope) = registry();
        let serve = |call: ModelCall, next: Rest| async move {
            if call.config().provider == "mine" {
                plays(vec![Ok(stop())])
            } else {
                next.run(call).await
            }
        };
        registry.on_stream().add(&scope, serve).unwrap();
        assert_eq!(ask(&registry, "mine").await, [stop()]);
        let missing = failed("NO_ADAPTER", "no adapter registered for provider \"p\"");
        assert_eq!(ask(&registry, "p").await, [missing]);
    }
}
