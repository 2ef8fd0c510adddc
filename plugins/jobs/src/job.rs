//! What a job is made from and how it looks.

use std::{fmt, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::{agent::Agent, cancel::CancelToken};
use serde::{Deserialize, Serialize};

/// Names a job: `<kind>-<n>`, counted from 1 for each kind. Easy to guess; what protects a job is
/// that others' are refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(Arc<str>);

impl JobId {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for JobId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for JobId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a job is started with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewJob {
    /// What sort of work it is; not empty. The id begins with it.
    pub kind: String,
    /// What it is for, for people and models; not empty.
    pub label: String,
    /// Bounds what a model is shown of it at once, in bytes of UTF-8; positive.
    pub output_limit_bytes: Option<usize>,
    /// The agent that it belongs to: only that session sees it, and it ends with the agent. A job
    /// without an owner is everybody's, and ends with the service.
    pub owner: Option<Agent>,
}

impl NewJob {
    /// A job without an owner.
    pub fn new(kind: impl Into<String>, label: impl Into<String>) -> Self {
        Self { kind: kind.into(), label: label.into(), output_limit_bytes: None, owner: None }
    }

    /// Belonging to this agent.
    #[must_use]
    pub fn owned_by(mut self, owner: &Agent) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Showing a model at most this many bytes at once.
    #[must_use]
    pub fn output_limit_bytes(mut self, limit: usize) -> Self {
        self.output_limit_bytes = Some(limit);
        self
    }
}

pub(crate) type CancelFn = dyn Fn(Option<&str>) -> Result<(), Failure> + Send + Sync;
pub(crate) type ReadFn = dyn FnMut() -> String + Send;

/// A job's work, as its producer hands it over.
pub struct Work {
    pub(crate) done: BoxFuture<'static, Result<JobOutcome, Failure>>,
    pub(crate) cancel: Arc<CancelFn>,
    pub(crate) read: Option<Box<ReadFn>>,
}

impl Work {
    /// Work that is over when this future is. The service runs it in a task of its own; an error
    /// or a panic of it is a failed job. It cannot be cancelled until [`Work::cancelled_by`] or
    /// [`Work::on_cancel`] says how: a kill of it fails.
    pub fn new(done: impl Future<Output = Result<JobOutcome, Failure>> + Send + 'static) -> Self {
        let cancel =
            |_: Option<&str>| Err(Failure::new("NOT_CANCELLABLE", "it cannot be cancelled"));
        Self { done: done.boxed(), cancel: Arc::new(cancel), read: None }
    }

    /// Cancelled by this: quick, and harmless when repeated. It asks for an end and does not wait
    /// for it; the reason is the killer's. An error refuses, and leaves the job running.
    #[must_use]
    pub fn on_cancel(
        mut self,
        cancel: impl Fn(Option<&str>) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Self {
        self.cancel = Arc::new(cancel);
        self
    }

    /// Cancelled by firing this token, which the work watches.
    #[must_use]
    pub fn cancelled_by(self, token: CancelToken) -> Self {
        use playhouse_messages::event::CancelCause;
        self.on_cancel(move |_| {
            token.cancel(CancelCause::Parent);
            Ok(())
        })
    }

    /// Giving output while it runs: each call returns what came since the one before. Without it a
    /// job has output only at its end, the [`JobOutcome::output`].
    #[must_use]
    pub fn reading(mut self, read: impl FnMut() -> String + Send + 'static) -> Self {
        self.read = Some(Box::new(read));
        self
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("streams", &self.read.is_some()).finish_non_exhaustive()
    }
}

/// How a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobStatus {
    /// It works.
    Running,
    /// It was told to stop, and has not yet.
    Stopping,
    /// It did what it was for.
    Completed,
    /// It was stopped.
    Killed,
    /// It failed.
    Failed,
}

impl JobStatus {
    /// Whether nothing can change any more.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Running | Self::Stopping)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Completed => "completed",
            Self::Killed => "killed",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOutcome {
    /// Terminal.
    pub(crate) status: JobStatus,
    /// A few words about the end: an exit code, an error.
    pub detail: Option<String>,
    /// What it has to say, of work that gives no output while it runs.
    pub output: Option<String>,
}

impl JobOutcome {
    /// It did what it was for.
    pub fn completed() -> Self {
        Self { status: JobStatus::Completed, detail: None, output: None }
    }

    /// It was stopped.
    pub fn killed() -> Self {
        Self { status: JobStatus::Killed, ..Self::completed() }
    }

    /// It failed.
    pub fn failed(detail: impl Into<String>) -> Self {
        Self { status: JobStatus::Failed, detail: Some(detail.into()), output: None }
    }

    /// The same end with a few words about it.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The same end with what it has to say.
    #[must_use]
    pub fn output(mut self, output: impl Into<String>) -> Self {
        self.output = Some(output.into());
        self
    }

    /// How it ended.
    pub fn status(&self) -> JobStatus {
        self.status
    }
}

/// A job at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobSnapshot {
    /// Its id.
    pub id: JobId,
    /// What sort of work it is.
    pub kind: String,
    /// What it is for.
    pub label: String,
    /// Bounds what a model is shown of it at once.
    pub output_limit_bytes: Option<usize>,
    /// The session that it belongs to.
    pub owner_session: Option<SessionId>,
    /// How it is.
    pub status: JobStatus,
    /// A few words about its end.
    pub detail: Option<String>,
    /// Epoch milliseconds.
    pub started_at: i64,
    /// Epoch milliseconds; there exactly if it is over.
    pub finished_at: Option<i64>,
    /// Whether somebody who may see it knows of its end, or asked for it.
    pub reported: bool,
}

/// What a read gave.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobOutput {
    /// What came since the last read; of work that gives output only at its end, that.
    pub text: String,
    /// The job after it.
    pub job: JobSnapshot,
}

/// What a model is shown of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PublicJob {
    id: JobId,
    kind: String,
    label: String,
    status: JobStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    started_at: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<i64>,
}

impl From<JobSnapshot> for PublicJob {
    fn from(job: JobSnapshot) -> Self {
        let JobSnapshot { id, kind, label, status, detail, started_at, finished_at, .. } = job;
        Self { id, kind, label, status, detail, started_at, finished_at }
    }
}
