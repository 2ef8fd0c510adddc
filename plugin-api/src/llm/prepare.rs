//! Prepared calls: a route bound, a model resolved and defaults filled, once.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use playhouse_messages::{
    chunk::Failure,
    config::{
        AdapterDefaults, CallConfig, RequestContext, Route, SystemPromptUpdate, ToolList,
        ToolUpdate,
    },
    history::HistoryEntry,
    message::SharedMessage,
    prepared::{Prepared, Ticket},
};

use super::{
    CallInput, ChunkStream, EncodeInput, Frame, FrameInput, LlmAdapter, LlmError, LlmRegistry,
    LlmRequest, LoadedImages, ModelInfo, ModelPart, Purpose, RequestBody, RetryPolicy, normalise,
    normalise::{panicked, terminal_chunk},
    project,
    registry::RouteEntry,
};
use crate::cancel::CancelToken;

pub(super) const CONFIG_CHANGED: &str = "prepared LLM call config changed before adapter dispatch";
pub(super) const DISPATCHED_TWICE: &str = "a prepared LLM call can only be dispatched once";

impl LlmRegistry {
    /// Binds the route's registration, resolves the model and fills in defaults. What the call needs
    /// is fixed from here on, whatever becomes of the route.
    ///
    /// # Errors
    ///
    /// `NO_ADAPTER`, `INVALID_MODEL_*`, `UNSUPPORTED_REASONING_EFFORT`, or what the adapter reports.
    pub async fn prepare(
        &self,
        config: CallConfig,
        cancel: &CancelToken,
    ) -> Result<PreparedCall, LlmError> {
        let (entry, peers) = self.bind(&config.provider)?;
        let route = config.route();
        let resolved = AssertUnwindSafe(async { entry.adapter.resolve(&route, cancel).await });
        let model = match cancel.race(resolved.catch_unwind()).await {
            Some(Ok(resolved)) => resolved.map_err(LlmError::Adapter)?,
            Some(Err(panic)) => return Err(LlmError::Adapter(panicked(panic.as_ref()))),
            None => {
                let message = "the call was cancelled while its model was resolved";
                return Err(LlmError::Adapter(Failure::new("ABORTED", message)));
            }
        };
        check_model(&route.provider, &route.model, &model)?;
        let (config, adapter_defaults) = fill_defaults(config, &model)?;
        let encoding = EncodingKey {
            route,
            registration: entry.registration,
            hides_images: project::hides_images(model.input_modalities.as_deref()),
            peers: peers.into(),
        };
        Ok(PreparedCall {
            entry,
            encoding,
            config,
            adapter_defaults,
            model,
            used: AtomicBool::new(false),
        })
    }
}

/// A call that is ready to be sent, once.
pub struct PreparedCall {
    entry: RouteEntry,
    encoding: EncodingKey,
    config: CallConfig,
    adapter_defaults: AdapterDefaults,
    model: ModelInfo,
    used: AtomicBool,
}

/// Under what a message's encoding may be kept: while the key is equal, so are the bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EncodingKey {
    pub(super) route: Route,
    registration: u64,
    hides_images: bool,
    /// The routes whose replay state the adapter gets back: those that the same instance serves.
    peers: Arc<[Arc<str>]>,
}

impl PreparedCall {
    /// The configuration with defaults filled in.
    pub fn config(&self) -> &CallConfig {
        &self.config
    }

    /// Which fields of it are the adapter's.
    pub fn adapter_defaults(&self) -> AdapterDefaults {
        self.adapter_defaults
    }

    /// The provider route.
    pub fn provider(&self) -> &str {
        &self.encoding.route.provider
    }

    /// What is known of the model.
    pub fn model(&self) -> &ModelInfo {
        &self.model
    }

    /// The context window in tokens, if known.
    pub fn context_window(&self) -> Option<u64> {
        self.model.context_window
    }

    /// The modalities that the model takes, if known.
    pub fn input_modalities(&self) -> Option<&[String]> {
        self.model.input_modalities.as_deref()
    }

    /// How the route takes a changed system prompt.
    pub fn system_prompt_update(&self) -> Option<SystemPromptUpdate> {
        self.model.system_prompt_update
    }

    /// How the route takes a changed tool set.
    pub fn tool_update(&self) -> Option<ToolUpdate> {
        self.model.tool_update
    }

    /// How a failure may be retried.
    pub fn retry_policy(&self) -> &RetryPolicy {
        &self.entry.retry_policy
    }

    /// The facts of the route that the log keeps.
    pub fn request_context(&self) -> RequestContext {
        RequestContext {
            provider: self.encoding.route.provider.clone(),
            model: self.encoding.route.model.clone(),
            context_window: self.context_window(),
            system_prompt_update: self.system_prompt_update(),
        }
    }

    /// What the loop is told of the call, under the ticket that finds the call again.
    pub fn facts(&self, ticket: Ticket) -> Prepared {
        Prepared {
            ticket: Some(ticket),
            config: self.config.clone(),
            adapter_defaults: self.adapter_defaults,
            context_window: self.context_window(),
            system_prompt_update: self.system_prompt_update(),
            tool_update: self.tool_update(),
            retry_policy: Some(self.retry_policy().clone()),
        }
    }

    /// The message as this route may see it: without images if the model takes text only, and
    /// without the replay state of routes that another adapter instance served when the call was
    /// prepared. The same pointer if nothing is left out.
    pub fn project(&self, message: &SharedMessage) -> SharedMessage {
        let provider = message.source.get("provider").unwrap_or_default();
        let owns = self.encoding.peers.iter().any(|peer| &**peer == provider);
        project::project(message, self.encoding.hides_images, !owns)
    }

    /// Under what encodings may be kept.
    pub fn encoding_key(&self) -> &EncodingKey {
        &self.encoding
    }

    /// The message's wire bytes under this route, projected. Callers keep and reuse them under the
    /// [`PreparedCall::encoding_key`].
    ///
    /// # Errors
    ///
    /// What the adapter refuses, such as `UNSUPPORTED_CONTENT`.
    pub fn encode(
        &self,
        message: &SharedMessage,
        images: &LoadedImages,
    ) -> Result<Bytes, LlmError> {
        let message = self.project(message);
        let input = EncodeInput { route: &self.encoding.route, message: &message, images };
        contained(|| self.entry.adapter.encode(&input))
    }

    /// The wire bytes around these messages, which are projected.
    ///
    /// # Errors
    ///
    /// What the adapter refuses, such as `UNSUPPORTED_OPTION`.
    pub fn frame(
        &self,
        messages: &[SharedMessage],
        tools: &ToolList,
        purpose: Option<Purpose>,
    ) -> Result<Frame, LlmError> {
        let input = FrameInput { config: &self.config, messages, tools, purpose };
        contained(|| self.entry.adapter.frame(&input))
    }

    /// A whole request, everything projected and encoded anew. For calls outside an agent's loop,
    /// which keeps the bytes of old messages instead.
    ///
    /// # Errors
    ///
    /// As [`PreparedCall::encode`] and [`PreparedCall::frame`].
    pub fn request(&self, input: CallInput) -> Result<LlmRequest, LlmError> {
        let CallInput { messages, images, tools, session_id, purpose, cancel, .. } = input;
        let outgoing = self.outgoing(messages.into_iter().map(|it| HistoryEntry::new(0, it)));
        let messages = outgoing.messages();
        let frame = self.frame(&messages, &tools, purpose)?;
        let body = RequestBody::new(frame, outgoing.encode(&images)?);
        let config = self.config.clone();
        Ok(LlmRequest { config, messages, tools, session_id, purpose, body, cancel })
    }

    /// Sends the call to the adapter, below all stream listeners. Dropping the stream aborts it.
    ///
    /// # Errors
    ///
    /// `INVALID_PREPARED_CALL` for a second use, or if the request's config is not this call's (which
    /// does not use the call up). Everything later is a `Finish` chunk.
    pub fn stream(&self, request: LlmRequest) -> Result<ChunkStream, LlmError> {
        if request.config != self.config {
            return Err(LlmError::InvalidPreparedCall { reason: CONFIG_CHANGED });
        }
        if self.used.swap(true, Ordering::AcqRel) {
            return Err(LlmError::InvalidPreparedCall { reason: DISPATCHED_TWICE });
        }
        let cancel = request.cancel.clone();
        let start = AssertUnwindSafe(|| self.entry.adapter.stream(request));
        Ok(match std::panic::catch_unwind(start) {
            Ok(stream) => normalise(stream, cancel),
            Err(panic) => {
                let chunk = terminal_chunk(panicked(panic.as_ref()), &cancel);
                futures::stream::iter([chunk]).boxed()
            }
        })
    }

    /// The adapter instance that serves the call.
    pub fn adapter(&self) -> &Arc<dyn LlmAdapter> {
        &self.entry.adapter
    }
}

impl fmt::Debug for PreparedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedCall")
            .field("config", &self.config)
            .field("adapter_defaults", &self.adapter_defaults)
            .field("model", &self.model)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

/// Asks an adapter. It is foreign code: a panic of its own is a failure of the call.
pub(super) fn contained<T>(ask: impl FnOnce() -> Result<T, Failure>) -> Result<T, LlmError> {
    let answer = std::panic::catch_unwind(AssertUnwindSafe(ask));
    answer.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))).map_err(LlmError::Adapter)
}

/// Refuses a model description that the rest of the system could not use.
pub(super) fn check_model(provider: &str, id: &str, model: &ModelInfo) -> Result<(), LlmError> {
    let invalid = |part: ModelPart, reason: &str| {
        let (provider, model, reason) = (provider.to_owned(), id.to_owned(), reason.to_owned());
        Err(LlmError::InvalidModel { part, provider, model, reason })
    };
    if model.provider != provider || model.id != id {
        return invalid(ModelPart::Info, "it must keep provider and id");
    }
    if model.name.is_empty() {
        return invalid(ModelPart::Info, "its name must not be empty");
    }
    if let Some(modalities) = &model.input_modalities {
        let unknown = |modality: &String| !matches!(modality.as_str(), "text" | "image");
        if modalities.is_empty() || repeats(modalities) || modalities.iter().any(unknown) {
            let reason = "its modalities must be text and image, each once at most, not none";
            return invalid(ModelPart::Info, reason);
        }
    }
    let out_of_range = |tokens: u64| tokens == 0 || tokens > playhouse_messages::json::INTEGER_MAX;
    if model.context_window.is_some_and(out_of_range) {
        return invalid(ModelPart::Context, "its context window must be positive");
    }
    if model.default_max_tokens.is_some_and(out_of_range) {
        return invalid(ModelPart::MaxTokens, "its default output limit must be positive");
    }
    if let Some(reasoning) = &model.reasoning {
        let efforts = &reasoning.efforts;
        if efforts.is_empty() || efforts.iter().any(String::is_empty) || repeats(efforts) {
            return invalid(ModelPart::Reasoning, "its efforts must be unique and not empty");
        }
        if reasoning.default_effort.as_ref().is_some_and(|effort| !efforts.contains(effort)) {
            return invalid(ModelPart::Reasoning, "its default effort must be one of its efforts");
        }
    }
    Ok(())
}

fn repeats(items: &[String]) -> bool {
    items.iter().enumerate().any(|(index, item)| items[..index].contains(item))
}

/// An explicit limit is never clamped, and an explicit effort must be one that the model takes.
fn fill_defaults(
    mut config: CallConfig,
    model: &ModelInfo,
) -> Result<(CallConfig, AdapterDefaults), LlmError> {
    let mut defaults = AdapterDefaults::default();
    if config.max_tokens.is_none() && model.default_max_tokens.is_some() {
        config.max_tokens = model.default_max_tokens;
        defaults.max_tokens = true;
    }
    let reasoning = model.reasoning.as_ref();
    match &config.reasoning_effort {
        Some(effort) => {
            let supported = reasoning.map(|r| r.efforts.as_slice()).unwrap_or_default();
            if !supported.contains(effort) {
                return Err(LlmError::UnsupportedReasoningEffort {
                    effort: effort.clone(),
                    supported: supported.to_vec(),
                    provider: config.provider,
                    model: config.model,
                });
            }
        }
        None => {
            config.reasoning_effort = reasoning.and_then(|r| r.default_effort.clone());
            defaults.reasoning_effort = config.reasoning_effort.is_some();
        }
    }
    Ok((config, defaults))
}
