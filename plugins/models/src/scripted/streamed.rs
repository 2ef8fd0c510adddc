//! A scripted adapter whose streams a function gives, or wraps.

use bytes::Bytes;
use futures::{future::BoxFuture, stream::BoxStream};
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    config::Route,
    retry::RetryPolicy,
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    llm::{EncodeInput, Frame, FrameInput, LlmAdapter, LlmRequest, ModelInfo},
};

use super::ScriptedAdapter;

/// An adapter that is a scripted one in all but its streams: see [`ScriptedAdapter::streamed`].
pub struct Streamed<F> {
    script: ScriptedAdapter,
    stream: F,
}

impl ScriptedAdapter {
    /// Answers each request by what `stream` makes of it: of nothing, for a model that computes its
    /// answers, or of the script's own stream.
    ///
    /// ```
    /// use futures::{StreamExt, stream};
    /// use playhouse_messages::chunk::Failure;
    /// use playhouse_models::scripted::{Script, ScriptedAdapter};
    /// use playhouse_plugin_api::llm::LlmAdapter;
    ///
    /// // Each stream breaks after three chunks of what the script says.
    /// let cut = ScriptedAdapter::new(Script::team()).streamed(|script, request| {
    ///     let cut = stream::iter([Err(Failure::new("TRANSPORT", "the line is dead"))]);
    ///     script.stream(request).take(3).chain(cut).boxed()
    /// });
    /// # drop(cut);
    /// ```
    pub fn streamed<F>(self, stream: F) -> Streamed<F>
    where
        F: Fn(&Self, LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>>
            + Send
            + Sync
            + 'static,
    {
        Streamed { script: self, stream }
    }
}

impl<F> LlmAdapter for Streamed<F>
where
    F: Fn(&ScriptedAdapter, LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>>
        + Send
        + Sync
        + 'static,
{
    fn retry_policy(&self, provider: &str) -> Option<RetryPolicy> {
        self.script.retry_policy(provider)
    }

    fn resolve<'a>(
        &'a self,
        route: &'a Route,
        cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
        self.script.resolve(route, cancel)
    }

    fn encode(&self, input: &EncodeInput<'_>) -> Result<Bytes, Failure> {
        self.script.encode(input)
    }

    fn frame(&self, request: &FrameInput<'_>) -> Result<Frame, Failure> {
        self.script.frame(request)
    }

    fn stream(&self, request: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
        (self.stream)(&self.script, request)
    }
}

impl<F> std::fmt::Debug for Streamed<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streamed").field("script", &self.script).finish_non_exhaustive()
    }
}
