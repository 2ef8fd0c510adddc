//! What is told of runs, for those who watch.

use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::agent::Agent;
use serde::{Deserialize, Serialize};

use crate::{Meta, WorkflowStop};

/// Something happened in a run. Told, in order, to the listeners that the parent's scope admits:
/// one start, then the rest, and one end.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkflowNotice {
    /// The run.
    pub run: String,
    /// The agent for which it runs.
    pub parent: Agent,
    /// What happened.
    pub kind: NoticeKind,
}

/// What happened in a run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum NoticeKind {
    /// It began.
    Start {
        /// What it says of itself.
        meta: Meta,
    },
    /// It entered a phase. Not told after a cancel.
    Phase {
        /// The phase's title.
        title: String,
    },
    /// It said something. Not told after a cancel.
    Log {
        /// What.
        text: String,
    },
    /// A child was started.
    AgentStart {
        /// Its number in the run, from 1, in the order of the calls.
        seq: u32,
        /// What it is called.
        label: String,
        /// The phase that it belongs to.
        phase: Option<String>,
        /// The child.
        child: SessionId,
    },
    /// A child has ended; exactly one for each start.
    AgentEnd {
        /// Its number in the run.
        seq: u32,
        /// What it is called.
        label: String,
        /// The phase that it belongs to.
        phase: Option<String>,
        /// The child.
        child: SessionId,
        /// How it ended.
        outcome: AgentOutcome,
    },
    /// The run has its result. What is left of its children is being disposed.
    End {
        /// How it ended.
        stop_reason: WorkflowStop,
        /// Why, unless it completed.
        error: Option<Failure>,
        /// How many children it asked for.
        agents_started: u32,
    },
}

/// How a child of a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum AgentOutcome {
    /// It did what it was asked to.
    Completed,
    /// It did not, or has no structured result though it was to have one.
    Failed,
    /// It was cancelled, or the run ended before it.
    Cancelled,
}
