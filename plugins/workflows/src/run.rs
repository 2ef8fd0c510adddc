//! A started workflow, as its starter sees it.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use playhouse_messages::{chunk::Failure, event::CancelCause};
use playhouse_plugin_api::{cancel::CancelToken, watch};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Meta, error::code};

/// What became of a workflow.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WorkflowResult {
    /// What it returned, plain JSON; `None` unless it completed.
    pub value: Option<Value>,
    /// How it ended.
    pub stop_reason: WorkflowStop,
    /// Why, unless it completed.
    pub error: Option<Failure>,
    /// How many children it asked for, also if they were never started.
    pub agents_started: u32,
}

/// How a workflow ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum WorkflowStop {
    /// It returned.
    Completed,
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Error,
}

/// A started workflow. Clones are the same one.
///
/// It ends by itself: when the workflow returns or fails, when it is cancelled, or when its parent is
/// disposed; then nothing of it stays behind. Dropping it ends nothing.
#[derive(Clone)]
pub struct WorkflowRun(Arc<Inner>);

struct Inner {
    id: String,
    meta: Meta,
    control: Arc<Control>,
    progress: watch::Receiver<Progress>,
}

/// What a run's host is told from outside.
#[derive(Default)]
pub(crate) struct Control {
    reason: OnceLock<String>,
    pub(crate) cancel: CancelToken,
    pub(crate) dispose: CancelToken,
}

/// How far a run is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) result: Option<WorkflowResult>,
    /// Nothing is left, or the time to wait for that is over.
    pub(crate) disposed: Option<Result<(), Failure>>,
}

impl Control {
    pub(crate) fn reason(&self) -> String {
        self.reason.get().cloned().unwrap_or_else(|| "no reason was given".to_owned())
    }
}

impl WorkflowRun {
    pub(crate) fn new(
        id: String,
        meta: Meta,
        control: Arc<Control>,
        progress: watch::Receiver<Progress>,
    ) -> Self {
        Self(Arc::new(Inner { id, meta, control, progress }))
    }

    /// Unique in a harness.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// What the workflow says of itself.
    pub fn meta(&self) -> &Meta {
        &self.0.meta
    }

    /// What becomes of it. Dropping the future stops the wait, not the run.
    pub async fn result(&self) -> WorkflowResult {
        let mut progress = self.0.progress.clone();
        let settled = progress.wait_for(|progress| progress.result.is_some()).await;
        let result = settled.ok().and_then(|progress| progress.result.clone());
        // Only the end of the whole runtime takes a host away.
        result.unwrap_or_else(|| WorkflowResult {
            value: None,
            stop_reason: WorkflowStop::Cancelled,
            error: Some(Failure::new(code::CANCELLED, "the runtime of the workflow has ended")),
            agents_started: 0,
        })
    }

    /// Cancels it: its children are cancelled, a script ends at once, a native workflow has the
    /// engine's grace to end by itself. Idempotent; the first reason counts.
    pub fn cancel(&self, reason: impl Into<String>) {
        let control = &self.0.control;
        let _ = control.reason.set(reason.into());
        control.cancel.cancel(CancelCause::User);
    }

    /// Cancels it, disposes its children, and waits until nothing of it is left: for at most twice the
    /// engine's grace. Idempotent.
    ///
    /// # Errors
    ///
    /// `WORKFLOW_LEFTOVERS` says what is still there then. It goes on ending, and is counted by
    /// [`WorkflowEngine::live`](crate::WorkflowEngine::live).
    pub async fn dispose(&self) -> Result<(), Failure> {
        self.0.control.dispose.cancel(CancelCause::Disposed);
        let mut progress = self.0.progress.clone();
        let disposed = progress.wait_for(|progress| progress.disposed.is_some()).await;
        disposed.ok().and_then(|progress| progress.disposed.clone()).unwrap_or(Ok(()))
    }
}

impl fmt::Debug for WorkflowRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkflowRun")
            .field("id", &self.0.id)
            .field("name", &self.0.meta.name)
            .finish_non_exhaustive()
    }
}
