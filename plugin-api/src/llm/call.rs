//! Model calls on their way to an adapter, through the listeners that wrap their streams.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    config::{CallConfig, ToolList},
    event::StepAt,
    id::SessionId,
    message::SharedMessage,
    request::FrozenRequest,
    tool_history::ToolProjection,
};

use super::{
    ChunkStream, LlmError, LlmRegistry, LoadedImages, Purpose,
    normalise::{finished, terminal_chunk},
    prepare::{CONFIG_CHANGED, DISPATCHED_TWICE},
};
use crate::{
    agent::Agent,
    cancel::CancelToken,
    hook::{HookResult, panic_failure},
    scope::Scope,
};

/// A model's answer on its way through stream listeners. A failure of the model is a `Finish` chunk;
/// an `Err` is one of a listener, and the last item.
pub type ModelStream = BoxStream<'static, HookResult<StreamChunk>>;

/// A model call as stream listeners see it.
#[derive(Debug, Clone)]
pub enum ModelCall {
    /// An agent's step asks. What it asks stands in the log, so a listener passes it on as it is.
    Step(StepCall),
    /// A program or plugin asks. Everything may be changed, the route too.
    Direct(Box<DirectCall>),
}

/// An agent's request. It cannot be changed, and another one does not reach the adapter that was
/// prepared for it.
///
/// ```compile_fail,E0616
/// fn reroute(mut call: playhouse_plugin_api::llm::StepCall) {
///     call.config.model = "another".to_owned();
/// }
/// ```
#[derive(Clone)]
pub struct StepCall(Arc<Request>);

struct Request {
    agent: Agent,
    at: StepAt,
    config: CallConfig,
    frozen: FrozenRequest,
    cancel: CancelToken,
}

/// A call that was built by hand, for [`LlmRegistry::call`].
#[derive(Debug, Clone)]
pub struct DirectCall {
    /// The configuration, without the adapter's defaults.
    pub config: CallConfig,
    /// What is asked.
    pub input: CallInput,
}

/// What a call outside an agent's loop asks.
#[derive(Debug, Clone, Default)]
pub struct CallInput {
    /// The conversation.
    pub messages: Vec<SharedMessage>,
    /// The bytes of its images.
    pub images: LoadedImages,
    /// The tools to declare.
    pub tools: ToolList,
    /// The session, for attribution.
    pub session_id: Option<SessionId>,
    /// What the call is for, if not an agent's step.
    pub purpose: Option<Purpose>,
    /// For whom it is: the stream listeners of this scope, and of those above it, hear of the call.
    /// The registry's scope if absent.
    pub scope: Option<Scope>,
    /// Fires when the caller no longer wants the answer.
    pub cancel: CancelToken,
}

impl ModelCall {
    /// The call's configuration; of an agent's request, with defaults filled in.
    pub fn config(&self) -> &CallConfig {
        match self {
            Self::Step(call) => call.config(),
            Self::Direct(call) => &call.config,
        }
    }

    /// The conversation, as a route without any capability gets it.
    pub fn messages(&self) -> Vec<SharedMessage> {
        match self {
            Self::Step(call) => {
                let messages = &call.request().messages;
                let mut plain = call.plain();
                messages.messages().filter_map(|message| plain.message(message)).collect()
            }
            Self::Direct(call) => call.input.messages.clone(),
        }
    }

    /// The tools, as a route without any capability gets them.
    pub fn tools(&self) -> ToolList {
        match self {
            Self::Step(call) => call.plain().declarations().clone(),
            Self::Direct(call) => call.input.tools.clone(),
        }
    }

    /// The session, if the call is for one.
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            Self::Step(call) => Some(call.agent().id()),
            Self::Direct(call) => call.input.session_id.as_ref(),
        }
    }

    /// Fires when the caller no longer wants the answer.
    pub fn cancel(&self) -> &CancelToken {
        match self {
            Self::Step(call) => &call.0.cancel,
            Self::Direct(call) => &call.input.cancel,
        }
    }
}

impl StepCall {
    /// An agent's request under its prepared configuration.
    pub fn new(
        agent: Agent,
        at: StepAt,
        config: CallConfig,
        request: FrozenRequest,
        cancel: CancelToken,
    ) -> Self {
        Self(Arc::new(Request { agent, at, config, frozen: request, cancel }))
    }

    /// Whose.
    pub fn agent(&self) -> &Agent {
        &self.0.agent
    }

    /// The open step.
    pub fn at(&self) -> StepAt {
        self.0.at
    }

    /// The configuration with defaults filled in.
    pub fn config(&self) -> &CallConfig {
        &self.0.config
    }

    /// What is asked, before it is projected for a route.
    pub fn request(&self) -> &FrozenRequest {
        &self.0.frozen
    }

    fn plain(&self) -> ToolProjection<'_> {
        ToolProjection::new(None, &self.0.frozen.header.tools, None, [])
    }

    /// Whether `call` is this very request, as it must be to reach the adapter.
    fn is(&self, call: &ModelCall) -> bool {
        matches!(call, ModelCall::Step(call) if Arc::ptr_eq(&self.0, &call.0))
    }
}

impl fmt::Debug for StepCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepCall")
            .field("agent", &self.0.agent)
            .field("at", &self.0.at)
            .field("config", &self.0.config)
            .finish_non_exhaustive()
    }
}

impl LlmRegistry {
    /// Sends a call from outside an agent's loop through the stream listeners to the adapter of the
    /// route that it then names. Whatever goes wrong, a missing adapter or a listener that fails
    /// included, is a `Finish` chunk. Dropping the stream aborts the call.
    pub fn call(&self, config: CallConfig, input: CallInput) -> ChunkStream {
        let (registry, cancel) = (self.clone(), input.cancel.clone());
        let scope = input.scope.clone().unwrap_or_else(|| self.scope().clone());
        if self.on_stream().is_empty_for(&scope) {
            return registry.answer(DirectCall { config, input }).flatten_stream().boxed();
        }
        let call = ModelCall::Direct(Box::new(DirectCall { config, input }));
        let base = move |call| {
            let registry = registry.clone();
            async move {
                match call {
                    ModelCall::Direct(call) => Ok(registry.answer(*call).await.map(Ok).boxed()),
                    ModelCall::Step(_) => Err(frozen()),
                }
            }
        };
        let wrapped = self.on_stream().run(&scope, call, base);
        let stream = wrapped.map(|stream| match stream {
            Ok(stream) => contained(stream),
            Err(failure) => futures::stream::iter([Err(failure)]).boxed(),
        });
        up_to_finish(finished(stream.flatten_stream().boxed(), cancel))
    }

    async fn answer(self, call: DirectCall) -> ChunkStream {
        let DirectCall { config, input } = call;
        let cancel = input.cancel.clone();
        let sent = async {
            let call = self.prepare(config, &cancel).await?;
            call.stream(call.request(input)?)
        };
        sent.await.unwrap_or_else(|error| one(terminal_chunk(error.into(), &cancel)))
    }

    /// Sends an agent's request through the stream listeners. `send` hands it to the adapter that was
    /// prepared for it, and runs at most once: a listener that asks twice gets a `Finish` chunk of
    /// code `INVALID_PREPARED_CALL`, and so does one that passes on another configuration.
    ///
    /// # Errors
    ///
    /// A listener's failure before there was a stream; one of code `INVALID_PREPARED_CALL` if it
    /// passed on anything but the request it got.
    pub async fn stream_step<F>(&self, call: StepCall, send: F) -> HookResult<ModelStream>
    where
        F: FnOnce() -> ModelStream + Send + 'static,
    {
        let (prepared, scope) = (call.clone(), call.agent().scope().clone());
        let unsent = Mutex::new(Some(send));
        let base = move |passed: ModelCall| {
            let refuse = |reason| {
                let error = LlmError::InvalidPreparedCall { reason };
                Ok(one(terminal_chunk(error.into(), passed.cancel())).map(Ok).boxed())
            };
            std::future::ready(if passed.config() != prepared.config() {
                refuse(CONFIG_CHANGED)
            } else if !prepared.is(&passed) {
                Err(frozen())
            } else {
                let send = unsent.lock().unwrap_or_else(PoisonError::into_inner).take();
                send.map_or_else(|| refuse(DISPATCHED_TWICE), |send| Ok(send()))
            })
        };
        self.on_stream().run(&scope, ModelCall::Step(call), base).await.map(contained)
    }
}

fn frozen() -> Failure {
    let reason = "an agent's request cannot be changed: pass on the call that the listener got";
    LlmError::InvalidPreparedCall { reason }.into()
}

fn one(chunk: StreamChunk) -> ChunkStream {
    futures::stream::iter([chunk]).boxed()
}

/// What a listener streams after the first finish does not count, nor is it waited for.
fn up_to_finish(stream: ChunkStream) -> ChunkStream {
    let more = |stream: Option<ChunkStream>| async move {
        let mut stream = stream?;
        let chunk = stream.next().await?;
        let more = !matches!(chunk, StreamChunk::Finish { .. });
        Some((chunk, more.then_some(stream)))
    };
    futures::stream::unfold(Some(stream), more).boxed()
}

/// A listener's stream that panics fails; it is not polled again.
fn contained(stream: ModelStream) -> ModelStream {
    let caught = AssertUnwindSafe(stream).catch_unwind();
    caught.map(|item| item.unwrap_or_else(|panic| Err(panic_failure(&*panic)))).boxed()
}
