//! The default executor of tool batches.
//!
//! - **What it owns**: the calls of one assistant message while they run. One actor a batch; its
//!   tasks live in its state.
//! - **What it guarantees**: the schedule of [`playhouse_messages::batch`]. A batch always ends once
//!   its token has fired: each stage that runs then (policy, body, post-processing) is awaited for
//!   the batch's grace time, then dropped. A body dropped so is recorded as
//!   `TOOL_OUTCOME_UNKNOWN`, reason "abandoned".
//! - **What its death costs**: killing the actor drops every running body at its next await. Calls
//!   that were recorded without a result have an unknown outcome, and the caller records that.

mod actor;
mod tasks;

use std::{
    fmt,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{chunk::Failure, protocol::ToolExecutorMessage};
use playhouse_plugin_api::tool::{BatchOutcome, ToolBatch, ToolBatchExecutor, ToolPipeline};
use ractor::{Actor, ActorCell, rpc::CallResult};

use self::actor::{Setup, ToolExecutorActor};

/// Runs tool batches, each in an actor of its own. Clones share the gauge.
#[derive(Clone)]
pub struct ToolExecutor {
    pipeline: ToolPipeline,
    supervisor: Option<ActorCell>,
    abandoned: Arc<AtomicUsize>,
}

impl ToolExecutor {
    /// An executor over this pipeline, whose actors nobody supervises.
    pub fn new(pipeline: ToolPipeline) -> Self {
        Self { pipeline, supervisor: None, abandoned: Arc::default() }
    }

    /// The same executor, its actors linked to `supervisor`: they are killed when that ends. It must
    /// override `handle_supervisor_evt`, since each batch ends with the end of a child.
    #[must_use]
    pub fn supervised_by(mut self, supervisor: ActorCell) -> Self {
        self.supervisor = Some(supervisor);
        self
    }

    /// How many stages were given up and still run: code that blocks its thread cannot be dropped.
    /// Anything that awaits is gone soon after it was given up.
    pub fn abandoned_running(&self) -> usize {
        self.abandoned.load(Ordering::Acquire)
    }

    async fn run(self, batch: ToolBatch) -> Result<BatchOutcome, Failure> {
        let Some(cap) = NonZeroUsize::new(batch.max_parallel) else {
            let text = "maxParallelToolCalls must be a positive integer";
            return Err(Failure::new("INVALID_CONFIG", text));
        };
        let supervisor = batch.supervisor.clone().or(self.supervisor);
        let setup = Setup { pipeline: self.pipeline, batch, cap, abandoned: self.abandoned };
        let spawned = match supervisor {
            Some(cell) => {
                ToolExecutorActor::spawn_linked(None, ToolExecutorActor, setup, cell).await
            }
            None => ToolExecutorActor::spawn(None, ToolExecutorActor, setup).await,
        };
        let (executor, _) = spawned.map_err(|fault| down(&fault))?;
        // If the caller is dropped, nobody waits for the calls any more, and nobody would close them.
        let mut kill = KillOnDrop(Some(executor.get_cell()));
        let answer = executor.call(|reply| ToolExecutorMessage::Start { reply }, None).await;
        kill.0 = None;
        match answer {
            Ok(CallResult::Success(ended)) => ended.map(|concluded| BatchOutcome { concluded }),
            Ok(_) => Err(down(&"it was killed while the batch ran")),
            Err(fault) => Err(down(&fault)),
        }
    }
}

fn down(cause: &dyn fmt::Display) -> Failure {
    Failure::new("TOOL_EXECUTOR_DOWN", format!("the tool executor is gone: {cause}"))
}

struct KillOnDrop(Option<ActorCell>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(cell) = &self.0 {
            cell.kill();
        }
    }
}

impl ToolBatchExecutor for ToolExecutor {
    fn execute(&self, batch: ToolBatch) -> BoxFuture<'static, Result<BatchOutcome, Failure>> {
        self.clone().run(batch).boxed()
    }
}

impl fmt::Debug for ToolExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolExecutor")
            .field("pipeline", &self.pipeline)
            .field("abandoned_running", &self.abandoned_running())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
