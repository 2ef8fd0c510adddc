//! Stream middleware around the requests of agents.

use std::{
    future::ready,
    sync::{Arc, Mutex},
};

use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream::BoxStream};
use playhouse::{
    AgentHandle, AgentOptions, CancelCause, EventBody, Harness, Message, NewAgent, Recovery,
    TurnEndReason,
    messages::{
        chunk::{Failure, FinishReason, StreamChunk},
        config::{CallConfig, Route},
        frame::Frame,
    },
    models::scripted::{Fault, FaultKind, Reply, Script, ScriptedAdapter},
    plugin_api::{
        cancel::CancelToken,
        hook::{HookResult, Next},
        llm::{
            CallInput, DirectCall, EncodeInput, FrameInput, LlmAdapter, LlmRequest, ModelCall,
            ModelInfo, ModelStream, StepCall,
        },
        points::RequestError,
    },
};

use super::rig::{self, Diary, Pause, kinds, soon};

type Rest = Next<ModelCall, ModelStream>;

struct Rig {
    harness: Harness,
    model: Arc<ScriptedAdapter>,
    agent: AgentHandle,
    /// What the request-error chain was asked.
    asked: Diary,
}

async fn rig(replies: impl IntoIterator<Item = Reply>) -> Rig {
    on(rig::options(), replies).await
}

async fn on(options: AgentOptions, replies: impl IntoIterator<Item = Reply>) -> Rig {
    let (harness, model, _) = rig::in_memory(replies).await;
    let agent = harness.create(NewAgent::new(options)).await.unwrap();
    let asked = Diary::default();
    let note = asked.clone();
    let listener = move |input: RequestError, next: Next<_, _>| {
        let policy = if input.retry_policy.is_some() { "with" } else { "without" };
        note.note(format!("{} {policy} a policy", input.failure.code));
        next.run(input)
    };
    harness.world().hooks.request_error.add(agent.scope(), listener).unwrap();
    Rig { harness, model, agent, asked }
}

impl Rig {
    fn stream<F, Fut>(&self, listener: F)
    where
        F: Fn(ModelCall, Rest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult<ModelStream>> + Send + 'static,
    {
        self.harness.world().models.on_stream().add(self.agent.scope(), listener).unwrap();
    }

    /// How a turn ends, and its events from the open step on.
    async fn turn(&self) -> (TurnEndReason, Vec<String>) {
        let from = self.agent.session().log().len() as usize;
        let outcome = soon(self.agent.prompt("go")).await.unwrap();
        let log = kinds(&self.agent).split_off(from);
        let step = log.iter().position(|kind| kind == "step/start").unwrap();
        (outcome.reason, log[step..].to_vec())
    }

    async fn end(self) {
        soon(self.harness.shutdown()).await.unwrap();
    }
}

fn finish() -> StreamChunk {
    StreamChunk::Finish { reason: FinishReason::Stop, replay_state: None }
}

fn text(text: &str) -> StreamChunk {
    StreamChunk::TextDelta { index: 0, text: text.into() }
}

fn plays(items: Vec<HookResult<StreamChunk>>) -> HookResult<ModelStream> {
    Ok(futures::stream::iter(items).boxed())
}

fn code(reason: &TurnEndReason) -> &str {
    match reason {
        TurnEndReason::Error(failure) => &failure.code,
        other => panic!("{other:?}"),
    }
}

fn after_admission(log: &[String]) -> &[String] {
    let context = log.iter().rposition(|kind| kind == "request/context").unwrap();
    &log[context + 1..]
}

/// The hand-built likeness of an agent's request, with another content.
fn forged(call: &ModelCall) -> ModelCall {
    let messages = vec![Arc::new(Message::user("forged", "something else"))];
    let input = CallInput { messages, ..CallInput::default() };
    ModelCall::Direct(Box::new(DirectCall { config: call.config().clone(), input }))
}

mod scenario {
    use super::*;

    #[tokio::test]
    async fn core_17_llm_33_middleware_serves_a_route_without_an_adapter() {
        let rig = on(AgentOptions::new().model("nobody", "m"), []).await;
        rig.stream(|call: ModelCall, _| {
            let asked = call.messages().last().map(|message| message.text()).unwrap_or_default();
            assert!(call.tools().is_empty() && matches!(call, ModelCall::Step(_)));
            ready(plays(vec![Ok(text(&format!("you said {asked}"))), Ok(finish())]))
        });
        let outcome = soon(rig.agent.prompt("go")).await.unwrap();
        assert_eq!(
            (outcome.text.as_str(), outcome.reason),
            ("you said go", TurnEndReason::Completed)
        );
        let log = rig.agent.session().log();
        let facts = log.iter().filter_map(|event| match &event.body {
            EventBody::RequestHeader(data) => Some(data.header.config.route().to_string()),
            EventBody::RequestContext(data) => Some(format!("{:?}", data.context_window)),
            _ => None,
        });
        assert_eq!(facts.collect::<Vec<_>>(), ["nobody/m", "None"]);
        rig.end().await;
    }

    #[tokio::test]
    async fn core_18_llm_33_a_route_that_nobody_serves_is_a_failed_attempt_without_a_policy() {
        for wrapped in [false, true] {
            let rig = on(AgentOptions::new().model("nobody", "m"), []).await;
            if wrapped {
                rig.stream(|call, next| next.run(call));
            }
            let (reason, log) = rig.turn().await;
            assert_eq!(code(&reason), "NO_ADAPTER");
            assert_eq!(after_admission(&log), ["assistant/attempt", "step/end", "turn/end"]);
            assert_eq!(rig.asked.read(), ["NO_ADAPTER without a policy"]);
            rig.end().await;
        }
    }

    #[tokio::test]
    async fn core_52_newest_47_llm_20_a_failure_of_middleware_mid_stream_is_not_recovered() {
        let rig = rig([Reply::text("Hello there"), Reply::text("yes")]).await;
        let first = Arc::new(Mutex::new(true));
        rig.stream(move |call, next: Rest| {
            let fails = std::mem::take(&mut *first.lock().unwrap());
            async move {
                let stream = next.run(call).await?;
                if !fails {
                    return Ok(stream);
                }
                let broken = futures::stream::iter([Err(Failure::unknown("the meter broke"))]);
                let cut = |item: &HookResult<StreamChunk>| {
                    ready(!matches!(item, Ok(StreamChunk::BlockEnd { .. })))
                };
                Ok(stream.take_while(cut).chain(broken).boxed())
            }
        });
        let mut frames = rig.agent.session().frames();
        let (reason, log) = rig.turn().await;
        assert_eq!(reason, TurnEndReason::Error(Failure::unknown("the meter broke")));
        assert_eq!(after_admission(&log), ["assistant/attempt", "step/end", "turn/end"]);
        assert_eq!(rig.asked.read(), [""; 0]);
        let kept = rig.agent.session().log();
        let kept = kept.iter().find_map(|event| match &event.body {
            EventBody::AssistantAttempt(attempt) => serde_json::to_string(&attempt.stream).ok(),
            _ => None,
        });
        assert!(kept.is_some_and(|stream| stream.contains("Hello")));
        assert!(matches!(soon(frames.next()).await, Some(Frame::Start { .. })));
        // Off the surface: the next request does not tell it.
        assert_eq!(rig.agent.prompt("still there?").await.unwrap().text, "yes");
        let told: Vec<_> = rig.model.captured()[1].messages.iter().map(|m| m.text()).collect();
        assert_eq!(told, ["go", "still there?"]);
        rig.end().await;
    }

    #[tokio::test]
    async fn llm_32_a_changed_config_never_reaches_the_adapter() {
        let rig = rig([]).await;
        rig.stream(|call: ModelCall, next: Rest| {
            let ModelCall::Step(step) = &call else { panic!("{call:?}") };
            let config = CallConfig { model: "another".into(), ..step.config().clone() };
            let (agent, request) = (step.agent().clone(), step.request().clone());
            let changed = StepCall::new(agent, step.at(), config, request, call.cancel().clone());
            next.run(ModelCall::Step(changed))
        });
        let (reason, log) = rig.turn().await;
        let TurnEndReason::Error(failure) = reason else { panic!("{reason:?}") };
        assert_eq!(failure.code, "INVALID_PREPARED_CALL");
        assert!(failure.message.contains("changed before adapter dispatch"), "{failure}");
        assert_eq!(after_admission(&log), ["assistant/attempt", "step/end", "turn/end"]);
        assert!(rig.model.captured().is_empty());
        rig.end().await;
    }

    /// That a request cannot be changed in place is a matter of types; another one in its place fails
    /// the step.
    #[tokio::test]
    async fn core_122_another_content_in_place_of_the_request_fails_the_step() {
        let rig = rig([]).await;
        rig.stream(|call: ModelCall, next: Rest| next.run(forged(&call)));
        let before = rig.agent.session().log().len();
        let (reason, log) = rig.turn().await;
        assert_eq!(code(&reason), "INVALID_PREPARED_CALL");
        assert_eq!(after_admission(&log), ["step/end", "turn/end"]);
        assert_eq!((before, rig.asked.read(), rig.model.captured().len()), (0, vec![], 0));
        assert_eq!(rig::user_texts(&rig.agent), ["go"]);
        rig.end().await;
    }

    #[tokio::test]
    async fn core_102_an_adapter_that_is_replaced_after_prepare_still_serves_the_call() {
        let old = Arc::new(ScriptedAdapter::new(Script::sequence([Reply::text("old")])));
        let new = Arc::new(ScriptedAdapter::new(Script::sequence([Reply::text("new")])));
        let harness = Harness::builder().start().await.unwrap();
        let models = harness.world().models.clone();
        let agent = harness.create(NewAgent::new(rig::options())).await.unwrap();
        let registration = Mutex::new(Some(models.register(["scripted"], old.clone()).unwrap()));
        let (swapped, next_model) = (models.clone(), new.clone());
        let swap = move |call: ModelCall, next: Rest| {
            if let Some(registration) = registration.lock().unwrap().take() {
                registration.dispose();
                let _ = swapped.register(["scripted"], next_model.clone()).unwrap();
            }
            next.run(call)
        };
        models.on_stream().add(agent.scope(), swap).unwrap();
        assert_eq!(soon(agent.prompt("one")).await.unwrap().text, "old");
        assert_eq!(soon(agent.prompt("two")).await.unwrap().text, "new");
        let log = agent.session().log();
        let header = log.iter().find_map(|event| match &event.body {
            EventBody::RequestHeader(data) => Some(data.header.config.clone()),
            _ => None,
        });
        assert_eq!(header.as_ref(), Some(&old.captured()[0].config));
        harness.shutdown().await.unwrap();
    }

    /// Waits in `resolve`, whether or not anybody still wants it.
    struct Resolves(Arc<Pause>, ScriptedAdapter);

    impl LlmAdapter for Resolves {
        fn resolve<'a>(
            &'a self,
            route: &'a Route,
            cancel: &'a CancelToken,
        ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
            async move {
                self.0.pass().await;
                self.1.resolve(route, cancel).await
            }
            .boxed()
        }

        fn encode(&self, input: &EncodeInput<'_>) -> Result<bytes::Bytes, Failure> {
            self.1.encode(input)
        }

        fn frame(
            &self,
            request: &FrameInput<'_>,
        ) -> Result<playhouse::plugin_api::llm::Frame, Failure> {
            self.1.frame(request)
        }

        fn stream(&self, request: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
            self.1.stream(request)
        }
    }

    #[tokio::test]
    async fn newest_16_a_cancel_while_the_call_is_prepared_leaves_an_empty_step() {
        let pause = Pause::closed();
        let script = ScriptedAdapter::new(Script::sequence([Reply::text("yes")]));
        let model = Arc::new(Resolves(pause.clone(), script.clone()));
        let harness = Harness::builder().start().await.unwrap();
        let _ = harness.world().models.register(["scripted"], model).unwrap();
        let agent = harness.create(NewAgent::new(rig::options())).await.unwrap();
        let id = agent.followup("go").await.unwrap();
        pause.arrived(1).await;
        agent.cancel(CancelCause::User);
        let outcome = soon(agent.outcome(&id, 0)).await.unwrap();
        assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
        assert_eq!(kinds(&agent)[3..], ["step/start", "step/end", "turn/end"]);
        pause.open();
        assert_eq!(soon(agent.prompt("there?")).await.unwrap().text, "yes");
        let told: Vec<_> = script.captured()[0].messages.iter().map(|m| m.text()).collect();
        assert_eq!(told, ["there?"]);
        harness.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_failure_before_there_is_a_stream_leaves_no_attempt() {
    type Listener = fn(ModelCall, Rest) -> HookResult<ModelStream>;
    let cases: [(&str, Listener); 2] =
        [("MINE", |_, _| Err(Failure::new("MINE", "x"))), ("PANIC", |_, _| panic!("boom"))];
    for (expected, listener) in cases {
        let rig = rig([]).await;
        rig.stream(move |call, next| ready(listener(call, next)));
        let mut frames = rig.agent.session().frames();
        let (reason, log) = rig.turn().await;
        assert_eq!(code(&reason), expected);
        assert_eq!(after_admission(&log), ["step/end", "turn/end"]);
        assert_eq!(rig.asked.read(), [""; 0]);
        assert!(frames.next().now_or_never().is_none(), "nothing was shown");
        rig.end().await;
    }
}

#[tokio::test]
async fn a_stream_that_panics_fails_like_one_that_throws() {
    let rig = rig([]).await;
    rig.stream(|_, _| {
        let said = futures::stream::iter([Ok(text("Well"))]);
        ready(Ok(said.chain(futures::stream::poll_fn(|_| panic!("boom"))).boxed()))
    });
    let (reason, log) = rig.turn().await;
    assert_eq!(code(&reason), "PANIC");
    assert_eq!(after_admission(&log), ["assistant/attempt", "step/end", "turn/end"]);
    assert_eq!(rig.asked.read(), [""; 0]);
    rig.end().await;
}

#[tokio::test]
async fn an_error_finish_of_middleware_is_one_of_the_model() {
    let rig = rig([]).await;
    rig.stream(|_, _| {
        let reason = FinishReason::Error { failure: Failure::new("BUSY", "x") };
        ready(plays(vec![Ok(StreamChunk::Finish { reason, replay_state: None })]))
    });
    let (reason, _) = rig.turn().await;
    assert_eq!((code(&reason), rig.asked.read()), ("BUSY", vec!["BUSY with a policy".to_owned()]));
    rig.end().await;
}

#[tokio::test]
async fn what_comes_after_the_finish_and_a_missing_finish_change_nothing() {
    for items in [
        vec![Ok(text("ok")), Ok(finish()), Ok(text("!")), Err(Failure::unknown("late"))],
        vec![Ok(text("ok"))],
    ] {
        let rig = rig([]).await;
        rig.stream(move |_, _| ready(plays(items.clone())));
        let outcome = soon(rig.agent.prompt("go")).await.unwrap();
        assert_eq!((outcome.text.as_str(), outcome.reason), ("ok", TurnEndReason::Completed));
        rig.end().await;
    }
}

#[tokio::test]
async fn a_listener_that_asks_twice_gets_one_answer() {
    let rig = rig([Reply::text("once")]).await;
    rig.stream(|call: ModelCall, next: Rest| async move {
        let first = next.clone().run(call.clone()).await?;
        let second: Vec<_> = next.run(call).await?.try_collect().await?;
        let [StreamChunk::Finish { reason: FinishReason::Error { failure }, .. }] = &second[..]
        else {
            panic!("{second:?}")
        };
        assert_eq!(failure.code, "INVALID_PREPARED_CALL");
        Ok(first)
    });
    assert_eq!(soon(rig.agent.prompt("go")).await.unwrap().text, "once");
    rig.end().await;
}

/// Tells when it is dropped.
struct Guard(Diary);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.note("dropped");
    }
}

#[tokio::test]
async fn a_cancel_reaches_through_a_wrapped_stream_and_keeps_what_was_shown() {
    let stalls = Reply::text("one two three").with_fault(Fault::new(FaultKind::Stall).after(2));
    let rig = rig([stalls, Reply::text("yes")]).await;
    let diary = Diary::default();
    let note = diary.clone();
    rig.stream(move |call, next: Rest| {
        let guard = Guard(note.clone());
        async move {
            let keep = move |_: &StreamChunk| {
                let _held = &guard;
            };
            Ok(next.run(call).await?.inspect_ok(keep).boxed())
        }
    });
    let mut frames = rig.agent.session().frames();
    let id = rig.agent.followup("go").await.unwrap();
    let is_text = |frame: Option<Frame>| match frame {
        Some(Frame::Chunks { chunks, .. }) => {
            chunks.iter().any(|timed| super::streams::text_of(&timed.chunk).is_some())
        }
        _ => false,
    };
    while !is_text(soon(frames.next()).await) {}
    assert_eq!(diary.read(), [""; 0]);
    rig.agent.cancel(CancelCause::User);
    let outcome = soon(rig.agent.outcome(&id, 0)).await.unwrap();
    assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
    assert_eq!(diary.read(), ["dropped"]);
    let log = kinds(&rig.agent);
    assert_eq!(log[log.len() - 3..], ["assistant/message", "step/end", "turn/end"]);
    assert_eq!(soon(rig.agent.prompt("there?")).await.unwrap().text, "yes");
    rig.end().await;
}

#[tokio::test]
async fn a_cancel_drops_a_listener_that_waits_before_the_stream() {
    let rig = rig([]).await;
    let (pause, diary) = (Pause::closed(), Diary::default());
    let (held, note) = (pause.clone(), diary.clone());
    rig.stream(move |call, next: Rest| {
        let (held, guard) = (held.clone(), Guard(note.clone()));
        async move {
            let _guard = guard;
            held.pass().await;
            next.run(call).await
        }
    });
    let id = rig.agent.followup("go").await.unwrap();
    pause.arrived(1).await;
    rig.agent.cancel(CancelCause::User);
    let outcome = soon(rig.agent.outcome(&id, 0)).await.unwrap();
    assert_eq!(outcome.reason, TurnEndReason::Aborted(CancelCause::User));
    assert_eq!(diary.read(), ["dropped"]);
    assert_eq!(after_admission(&kinds(&rig.agent)), ["step/end", "turn/end"]);
    assert!(rig.model.captured().is_empty());
    rig.end().await;
}

#[tokio::test]
async fn the_death_of_a_provider_is_retryable_through_middleware_too() {
    let rig = rig([Reply::text("never").at_gate("closed"), Reply::text("again")]).await;
    rig.stream(
        |call, next: Rest| async move { Ok(next.run(call).await?.inspect_ok(|_| ()).boxed()) },
    );
    let retry = |input: RequestError, _: Next<_, _>| async move {
        assert_eq!(input.failure.code, "TRANSPORT");
        Ok(Recovery::Retry)
    };
    rig.harness.world().hooks.request_error.add(rig.agent.scope(), retry).unwrap();
    let id = rig.agent.followup("go").await.unwrap();
    rig.model.gate("closed").arrived(1).await;
    rig.harness.world().providers.slot("scripted").live().unwrap().kill();
    assert_eq!(soon(rig.agent.outcome(&id, 0)).await.unwrap().text, "again");
    rig.end().await;
}
