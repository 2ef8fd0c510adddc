//! Orchestration from code: children that work for one program, under one cancel.
//!
//! Whatever runs here is over when its future is: a child is disposed on every path, also when the
//! future is dropped (then behind it, and the disposal of the child's parent waits for that). Limits
//! and budgets are the agents' own, and count here as elsewhere.
//!
//! ```
//! use std::sync::Arc;
//! use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
//! use playhouse_plugin_api::{creation::NewAgent, options::AgentOptions};
//! use playhouse_subagents::{ChildGroup, ChildRequest};
//! use playhouse_supervisor::harness::Harness;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let harness = Harness::builder().start().await?;
//! # let model = Arc::new(ScriptedAdapter::new(Script::new().reply(Reply::text("on {{prompt}}"))));
//! # harness.world().models.register(["scripted"], model)?;
//! # let options = AgentOptions::new().model("scripted", "any");
//! # let parent = harness.create(NewAgent::new(options)).await?;
//! let group = ChildGroup::new(harness.world());
//! let files = ["a.txt", "b.txt", "c.txt"];
//! let notes = group.map(files, 2, |file| ChildRequest::new(&parent, file)).await;
//! let texts: Vec<_> = notes.into_iter().map(|note| Ok(note?.text())).collect();
//! # let texts: Vec<Result<String, playhouse_subagents::ChildFailed>> = texts;
//! assert_eq!(texts[1].as_deref().ok(), Some("on b.txt"));
//! assert!(harness.children(parent.id()).is_empty());
//! # harness.shutdown().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

mod failed;
mod pipeline;
mod retry;

use std::sync::Arc;

use futures::{StreamExt, stream};
use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::{cancel::CancelToken, world::World};

pub(crate) use self::failed::{stopped_code, told};
pub use self::{failed::ChildFailed, pipeline::Pipeline, retry::ChildRetries};
use crate::{
    ChildError, ChildProviders, ChildRequest, ChildResult, Run, StopReason,
    fork::{FORK, fork},
    plugin::SUBAGENTS_SERVICE,
    run::DisposedOnDrop,
    spawn::{SPAWN, spawn},
};

/// What a child of a group came to: its result, if it completed.
pub type ChildOutcome = Result<ChildResult, ChildFailed>;

/// Children under one cancel. Clones share it.
///
/// A request that has a token of its own is cancelled by that too.
#[derive(Debug, Clone)]
#[must_use]
pub struct ChildGroup {
    world: Arc<World>,
    provider: Arc<str>,
    cancel: CancelToken,
}

impl ChildGroup {
    /// A group of fresh children.
    pub fn new(world: &Arc<World>) -> Self {
        Self { world: world.clone(), provider: SPAWN.into(), cancel: CancelToken::new() }
    }

    /// Started by the provider of this name.
    pub fn provider(mut self, name: &str) -> Self {
        self.provider = name.into();
        self
    }

    /// Cancelled when this token fires.
    pub fn cancelled_by(mut self, cancel: &CancelToken) -> Self {
        self.cancel = cancel.child();
        self
    }

    /// Cancels all children, those that are still to be started included. Whoever waits for them gets
    /// their ends, and their disposal is awaited as ever.
    pub fn cancel(&self, cause: CancelCause) {
        self.cancel.cancel(cause);
    }

    /// A group within this one, that can be cancelled alone.
    pub fn subgroup(&self) -> Self {
        Self { cancel: self.cancel.child(), ..self.clone() }
    }

    /// Runs one child: starts it, awaits its result, disposes it.
    ///
    /// # Errors
    ///
    /// [`ChildFailed`] for whatever is not a completed child that was disposed well.
    pub async fn run(&self, mut request: ChildRequest) -> ChildOutcome {
        let asked = std::mem::replace(&mut request.cancel, self.cancel.child());
        let cancel = request.cancel.clone();
        let forward = async {
            asked.cancelled().await;
            cancel.cancel(asked.cause().unwrap_or(CancelCause::Parent));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = forward => unreachable!("it never ends"),
            outcome = self.start_and_end(request) => outcome,
        }
    }

    async fn start_and_end(&self, request: ChildRequest) -> ChildOutcome {
        let parent = request.parent.scope().clone();
        let run = DisposedOnDrop::new(self.start(request).await?, parent);
        let result = run.result().await;
        let disposed = run.dispose().await;
        let result = result.map_err(ChildFailed::Fault)?;
        match (result.stop_reason == StopReason::Completed, disposed) {
            (true, Ok(())) => Ok(result),
            (false, Ok(())) => Err(ChildFailed::Stopped(Box::new(result))),
            (_, Err(failure)) => Err(ChildFailed::Disposal { result: Box::new(result), failure }),
        }
    }

    async fn start(&self, request: ChildRequest) -> Result<Run, ChildError> {
        match &*self.provider {
            SPAWN => spawn(&self.world, request).await,
            FORK => fork(&self.world, request).await,
            other => {
                let providers = self.world.services.get::<ChildProviders>(SUBAGENTS_SERVICE);
                providers
                    .map(|providers| (*providers).clone())
                    .unwrap_or_default()
                    .start(other, request)
                    .await
            }
        }
    }

    /// Runs all at once and awaits all, in the order of the requests. A child that fails fails
    /// nobody else; the slots are a limit on how many can live at once, and [`ChildGroup::map`] stays
    /// below it.
    pub async fn join_all(
        &self,
        requests: impl IntoIterator<Item = ChildRequest>,
    ) -> Vec<ChildOutcome> {
        futures::future::join_all(requests.into_iter().map(|request| self.run(request))).await
    }

    /// Runs a child for each input, at most `limit` at once (0 counts as 1). A child starts as soon as
    /// another one has ended, whichever; the outcomes are in the order of the inputs.
    pub async fn map<I>(
        &self,
        inputs: impl IntoIterator<Item = I>,
        limit: usize,
        request: impl Fn(I) -> ChildRequest,
    ) -> Vec<ChildOutcome> {
        let runs = inputs.into_iter().map(|input| self.run(request(input)));
        at_most(limit, runs).await
    }

    /// Runs all at once, and takes the first that completes. The others are cancelled, and disposed
    /// before this returns.
    ///
    /// # Errors
    ///
    /// Why each failed, in the order of the requests, if none completes.
    pub async fn race(
        &self,
        requests: impl IntoIterator<Item = ChildRequest>,
    ) -> Result<ChildResult, Vec<ChildFailed>> {
        let heat = &self.subgroup();
        let runs = requests.into_iter().enumerate();
        let mut runs: stream::FuturesUnordered<_> =
            runs.map(|(at, request)| async move { (at, heat.run(request).await) }).collect();
        let mut winner = None;
        let mut failed = Vec::new();
        while let Some((at, outcome)) = runs.next().await {
            match outcome {
                Ok(result) if winner.is_none() => {
                    winner = Some(result);
                    heat.cancel(CancelCause::Parent);
                }
                // A tie: it completed before the cancel reached it.
                Ok(_) => {}
                Err(failure) => failed.push((at, failure)),
            }
        }
        failed.sort_by_key(|(at, _)| *at);
        winner.ok_or_else(|| failed.into_iter().map(|(_, failure)| failure).collect())
    }
}

/// Runs futures, so many at once, and gives their outputs in their order.
async fn at_most<F: Future>(limit: usize, futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let numbered = futures.enumerate().map(|(at, future)| async move { (at, future.await) });
    let mut done: Vec<_> = stream::iter(numbered).buffer_unordered(limit.max(1)).collect().await;
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, output)| output).collect()
}
