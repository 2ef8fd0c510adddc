//! The adapter that plays recordings.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

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

use super::{
    Recording, ReplayError, difference, entry::Then, performance::Performance, placeholder,
    recording::Call,
};
use crate::plain_wire;

/// When chunks come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pacing {
    /// At once.
    #[default]
    AtOnce,
    /// Each after this delay.
    Every(Duration),
    /// As they came when they were recorded; written entries at once.
    AsRecorded,
}

/// A model that plays recordings. Clones share how far each was played.
///
/// A session takes the recording of its own id, or else the first that nobody took; calls without a
/// session have one of their own. Two calls too many fail with `REPLAY_EXHAUSTED`, and a session too
/// many with `REPLAY_UNRECORDED_SESSION`.
#[derive(Debug, Clone)]
pub struct ReplayAdapter {
    performance: Arc<Performance>,
    pacing: Pacing,
    strict: bool,
    ignored: BTreeSet<String>,
    catalog: Option<Vec<ModelInfo>>,
    retry_policy: Option<RetryPolicy>,
}

impl ReplayAdapter {
    /// An adapter that plays these recordings.
    pub fn new(recordings: impl IntoIterator<Item = Recording>) -> Self {
        Self::with_anonymous(recordings, Recording::default())
    }

    /// The same, with one for calls without a session.
    pub fn with_anonymous(
        recordings: impl IntoIterator<Item = Recording>,
        anonymous: Recording,
    ) -> Self {
        let performance = Performance::new(recordings.into_iter().collect(), anonymous);
        Self {
            performance: Arc::new(performance),
            pacing: Pacing::AtOnce,
            strict: false,
            ignored: BTreeSet::new(),
            catalog: None,
            retry_policy: None,
        }
    }

    /// Compares each request with the one that was recorded: messages without their ids, tools, and
    /// all of the configuration but the route. A call that differs fails with `REPLAY_DIFFERS`,
    /// which names the first difference.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Messages whose source is of this kind are not compared, such as `runtime-context`.
    #[must_use]
    pub fn ignoring(mut self, kind: impl Into<String>) -> Self {
        self.ignored.insert(kind.into());
        self
    }

    /// When chunks come.
    #[must_use]
    pub fn paced(mut self, pacing: Pacing) -> Self {
        self.pacing = pacing;
        self
    }

    /// With these models in the place of those that were recorded.
    #[must_use]
    pub fn with_models(mut self, models: Vec<ModelInfo>) -> Self {
        self.catalog = Some(models);
        self
    }

    /// With this retry policy.
    #[must_use]
    pub fn with_retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.retry_policy = Some(policy);
        self
    }

    /// Checks that every recorded call was made.
    ///
    /// # Errors
    ///
    /// `REPLAY_LEFTOVERS`, with those that were not.
    pub fn check_consumed(&self) -> Result<(), ReplayError> {
        self.performance.check_consumed()
    }

    /// Checks that every recorded call was made.
    ///
    /// # Panics
    ///
    /// If some were not. It is meant for tests.
    #[track_caller]
    pub fn assert_consumed(&self) {
        if let Err(error) = self.check_consumed() {
            panic!("{error}");
        }
    }

    fn catalog(&self) -> Vec<&ModelInfo> {
        match &self.catalog {
            Some(models) => models.iter().collect(),
            None => self.performance.recordings().flat_map(|r| &r.models).collect(),
        }
    }

    fn answer(&self, request: &LlmRequest) -> Result<Play, Failure> {
        let (index, call) = self.performance.next(request.session_id.as_ref())?;
        if self.strict
            && let Some(recorded) = &call.request
            && let Some(difference) = difference::first(recorded, request, &self.ignored)
        {
            let message = format!("call {index} is not what was recorded: {difference}");
            return Err(Failure::new("REPLAY_DIFFERS", message));
        }
        let chunks = if call.written {
            placeholder::fill(call.entry.chunks(), request)?
        } else {
            call.entry.chunks().to_vec()
        };
        let steps = chunks.into_iter().zip(self.gaps(call)).collect::<Vec<_>>().into_iter();
        Ok(Play { steps, then: Some(call.entry.then()), cancel: request.cancel.clone() })
    }

    fn gaps<'a>(&self, call: &'a Call) -> Box<dyn Iterator<Item = Duration> + 'a> {
        match self.pacing {
            Pacing::AtOnce => Box::new(std::iter::repeat(Duration::ZERO)),
            Pacing::Every(delay) => Box::new(std::iter::repeat(delay)),
            Pacing::AsRecorded => {
                let gaps = call.gaps.iter().copied().chain(std::iter::repeat(0));
                Box::new(gaps.map(Duration::from_millis))
            }
        }
    }
}

impl LlmAdapter for ReplayAdapter {
    fn retry_policy(&self, _provider: &str) -> Option<RetryPolicy> {
        self.retry_policy.clone()
    }

    fn models<'a>(
        &'a self,
        provider: &'a str,
        _cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<Vec<ModelInfo>, Failure>> {
        let mut models: Vec<ModelInfo> = Vec::new();
        for model in self.catalog() {
            let known = models.iter().any(|known| known.id == model.id);
            if model.provider == provider && !known {
                models.push(model.clone());
            }
        }
        async { Ok(models) }.boxed()
    }

    /// What was recorded of the model; of a model that was not recorded, what was recorded of the
    /// first one, so that a recording can be played under any name.
    fn resolve<'a>(
        &'a self,
        route: &'a Route,
        _cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
        let catalog = self.catalog();
        let is = |model: &&&ModelInfo| model.provider == route.provider && model.id == route.model;
        let known = catalog.iter().find(is).or(catalog.first());
        let mut model = known.map_or_else(ModelInfo::default, |model| (*model).clone());
        model.provider = route.provider.clone();
        model.id = route.model.clone();
        model.name = route.model.clone();
        async { Ok(model) }.boxed()
    }

    fn encode(&self, input: &EncodeInput<'_>) -> Result<Bytes, Failure> {
        plain_wire::encode(input.message)
    }

    fn frame(&self, request: &FrameInput<'_>) -> Result<Frame, Failure> {
        plain_wire::frame(request)
    }

    fn stream(&self, request: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
        match self.answer(&request) {
            Err(failure) => futures::stream::iter([Err(failure)]).boxed(),
            Ok(play) => futures::stream::unfold(play, |mut play| async move {
                let item = play.next().await?;
                Some((item, play))
            })
            .boxed(),
        }
    }
}

struct Play {
    steps: std::vec::IntoIter<(StreamChunk, Duration)>,
    then: Option<Then>,
    cancel: CancelToken,
}

impl Play {
    async fn next(&mut self) -> Option<Result<StreamChunk, Failure>> {
        let cancel = self.cancel.clone();
        self.then.as_ref()?;
        let item = cancel.race(self.step()).await;
        item.unwrap_or_else(|| {
            self.then = None;
            Some(Err(Failure::new("ABORTED", "replayed request aborted by caller")))
        })
    }

    async fn step(&mut self) -> Option<Result<StreamChunk, Failure>> {
        if let Some((chunk, delay)) = self.steps.as_slice().first().cloned() {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            self.steps.next();
            return Some(Ok(chunk));
        }
        match self.then.take()? {
            Then::End => None,
            Then::Throw(failure) => Some(Err(failure)),
            Then::Hang(file) => {
                // Kept, so that the cancel which ends the wait is told.
                self.then = Some(Then::Hang(None));
                if let Some(file) = file
                    && let Err(failure) = announce(file).await
                {
                    self.then = None;
                    return Some(Err(failure));
                }
                std::future::pending().await
            }
        }
    }
}

async fn announce(file: PathBuf) -> Result<(), Failure> {
    let path = file.display().to_string();
    let written = tokio::task::spawn_blocking(move || std::fs::write(file, b"")).await;
    written.map_err(std::io::Error::other).and_then(|written| written).map_err(|cause| {
        Failure::new("REPLAY_READY_FILE", format!("ready file {path} of a hanging call: {cause}"))
    })
}
