//! Who is told that children begin and end, and that providers come and go.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::{agent::Agent, hook::Notify};

use crate::{ChildResult, StopReason};

/// Of each run its start is told, and after it exactly one end, to the listeners that the delegating
/// agent's scope admits. Of each provider its coming and its going, to all.
#[derive(Default)]
pub struct Lifecycle {
    /// A child was started; a local one stands in the registry.
    pub started: Notify<RunStarted>,
    /// Its run has a result.
    pub ended: Notify<RunEnded>,
    /// A provider came or went.
    pub provider: Notify<ProviderNotice>,
    runs: AtomicU64,
}

/// Tells runs apart, also those of one child: each life of a continuable child is a run of its own.
/// Unique in a harness while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(u64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run-{}", self.0)
    }
}

/// A child was started.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunStarted {
    /// This run.
    pub run: RunId,
    /// Who delegated.
    pub parent: Agent,
    /// Who started it.
    pub provider: String,
    /// The child, or its stand-in here if it is not local.
    pub id: SessionId,
    /// Whether the child lives in this process.
    pub local: bool,
}

/// A run has a result.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunEnded {
    /// The run.
    pub run: RunStarted,
    /// How it ended.
    pub stop_reason: StopReason,
    /// Its last answer's text, if it said something.
    pub last_message: Option<String>,
}

/// A provider came or went; for each name the two alternate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderNotice {
    /// It starts children from now on.
    Added {
        /// Its name.
        name: String,
    },
    /// It starts no more; what it started goes on.
    Removed {
        /// Its name.
        name: String,
    },
}

impl Lifecycle {
    /// Tells that a run begins. It must be ended by [`Lifecycle::end`], once.
    #[must_use = "a run that begins has an end"]
    pub fn begin(
        &self,
        parent: Agent,
        provider: impl Into<String>,
        id: &SessionId,
        local: bool,
    ) -> RunStarted {
        let run = RunId(self.runs.fetch_add(1, Ordering::Relaxed) + 1);
        let started = RunStarted { run, parent, provider: provider.into(), id: id.clone(), local };
        self.started.tell(started.parent.scope(), &started);
        started
    }

    /// Tells that it has ended. A fault without a result counts as an error.
    pub fn end(&self, run: RunStarted, result: Option<&ChildResult>) {
        let stop_reason = result.map_or(StopReason::Error, |result| result.stop_reason.clone());
        let last_message = result.map(ChildResult::text).filter(|text| !text.is_empty());
        let ended = RunEnded { run, stop_reason, last_message };
        self.ended.tell(ended.run.parent.scope(), &ended);
    }
}
