//! The adapter that plays a script in process.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    config::Route,
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    llm::{EncodeInput, Frame, FrameInput, LlmAdapter, LlmRequest, ModelInfo, RetryPolicy},
};

use super::{Conversation, FaultKind, Gate, Script, Stage, plan::Step};
use crate::plain_wire;

/// A model that plays a script. Clones share the stage.
#[derive(Debug, Clone)]
pub struct ScriptedAdapter {
    stage: Arc<Stage>,
    model: ModelInfo,
    retry_policy: Option<RetryPolicy>,
}

impl ScriptedAdapter {
    /// An adapter that plays this script.
    pub fn new(script: Script) -> Self {
        Self::on(Stage::new(script))
    }

    /// An adapter on a stage that others may share.
    pub fn on(stage: Arc<Stage>) -> Self {
        let model = ModelInfo {
            input_modalities: Some(vec!["text".into()]),
            context_window: Some(128_000),
            ..ModelInfo::default()
        };
        Self { stage, model, retry_policy: None }
    }

    /// With these facts for every model; provider, id and, if empty, name are filled in.
    #[must_use]
    pub fn with_model(mut self, model: ModelInfo) -> Self {
        self.model = model;
        self
    }

    /// Taking these modalities, `text` and `image`; text alone unless told otherwise.
    #[must_use]
    pub fn with_modalities<'a>(mut self, modalities: impl IntoIterator<Item = &'a str>) -> Self {
        let modalities = modalities.into_iter().map(str::to_owned).collect();
        self.model.input_modalities = Some(modalities);
        self
    }

    /// With this retry policy.
    #[must_use]
    pub fn with_retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.retry_policy = Some(policy);
        self
    }

    /// The stage: gates and recorded requests.
    pub fn stage(&self) -> &Arc<Stage> {
        &self.stage
    }

    /// The requests so far. See [`Stage::captured`].
    pub fn captured(&self) -> Vec<LlmRequest> {
        self.stage.captured()
    }

    /// Checks that the sequence was played to its end. See [`Stage::assert_consumed`].
    ///
    /// # Panics
    ///
    /// If replies are left.
    #[track_caller]
    pub fn assert_consumed(&self) {
        self.stage.assert_consumed();
    }

    /// The gate of this name.
    pub fn gate(&self, name: &str) -> Arc<Gate> {
        self.stage.gate(name)
    }
}

impl LlmAdapter for ScriptedAdapter {
    fn retry_policy(&self, _provider: &str) -> Option<RetryPolicy> {
        self.retry_policy.clone()
    }

    fn resolve<'a>(
        &'a self,
        route: &'a Route,
        _cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
        let mut model = self.model.clone();
        model.provider = route.provider.clone();
        model.id = route.model.clone();
        if model.name.is_empty() {
            model.name = route.model.clone();
        }
        async { Ok(model) }.boxed()
    }

    fn encode(&self, input: &EncodeInput<'_>) -> Result<Bytes, Failure> {
        plain_wire::encode(input.message)
    }

    fn frame(&self, request: &FrameInput<'_>) -> Result<Frame, Failure> {
        plain_wire::frame(request)
    }

    fn stream(&self, request: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
        self.stage.capture(&request);
        let steps = match self.stage.answer(&Conversation::of(&request)) {
            Ok((steps, _)) => steps,
            Err(failure) => return futures::stream::iter([Err(failure)]).boxed(),
        };
        let play = Play { stage: self.stage.clone(), steps: steps.into(), cancel: request.cancel };
        futures::stream::unfold(play, |mut play| async move {
            let item = play.next().await?;
            Some((item, play))
        })
        .boxed()
    }
}

struct Play {
    stage: Arc<Stage>,
    steps: VecDeque<Step>,
    cancel: CancelToken,
}

impl Play {
    async fn next(&mut self) -> Option<Result<StreamChunk, Failure>> {
        let cancel = self.cancel.clone();
        loop {
            let step = self.steps.pop_front()?;
            if cancel.is_cancelled() {
                return Some(Err(self.aborted()));
            }
            let went_on = match step {
                Step::Chunk(chunk) => return Some(Ok(chunk)),
                Step::Wait(duration) => cancel.race(tokio::time::sleep(duration)).await,
                Step::Gate(name) => cancel.race(self.stage.gate(&name).pass()).await,
                Step::Fault(FaultKind::Stall, _) => cancel.race(std::future::pending::<()>()).await,
                Step::Fault(FaultKind::Cut, _) => return None,
                Step::Fault(_, failure) => return Some(Err(failure)),
            };
            if went_on.is_none() {
                return Some(Err(self.aborted()));
            }
        }
    }

    fn aborted(&mut self) -> Failure {
        self.steps.clear();
        Failure::new("ABORTED", "scripted request aborted by caller")
    }
}
