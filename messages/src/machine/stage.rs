//! Where a turn stands, as values: what a stage holds is what its end needs.

use std::sync::Arc;

use super::{Entry, TaskNo};
use crate::{
    chunk::Failure,
    config::{Header, ModelChoice, ToolList},
    content::ToolCallBlock,
    prepared::Prepared,
};

/// Where a running turn stands.
#[derive(Debug)]
pub(super) enum Stage {
    /// A command that opens the turn is on its way.
    Opening,
    /// Assembly and the pre-step chain run.
    Proposing { task: TaskNo, choice: ModelChoice },
    /// `step/start` is on its way.
    Starting(Box<Step>),
    /// The request chain and the provider's resolution run.
    Preparing { task: TaskNo, step: Box<Step> },
    /// The admission is on its way.
    Admitting { step: Box<Step>, prepared: Arc<Prepared> },
    /// The model answers.
    Streaming { task: TaskNo, step: Box<Step>, prepared: Arc<Prepared> },
    /// The settlement is on its way.
    Settling { step: Box<Step>, prepared: Arc<Prepared>, then: Then },
    /// The request-error chain runs.
    Recovering { task: TaskNo, step: Box<Step>, failure: Failure, standing: Option<Arc<Header>> },
    /// Tools run.
    Tools { task: TaskNo },
    /// `step/end` is on its way.
    Ending(Outcome),
    /// The turn-stopping listeners run.
    Stopping { task: TaskNo },
    /// The claim for a further step is on its way.
    Claiming,
    /// `turn/end` is on its way.
    Closing { stop: bool },
    /// The turn is closed, and its end is being made durable.
    Resting { task: TaskNo },
}

impl Stage {
    /// Whether a step is open, or is being closed.
    pub(super) fn has_step(&self) -> bool {
        matches!(
            self,
            Self::Preparing { .. }
                | Self::Admitting { .. }
                | Self::Streaming { .. }
                | Self::Settling { .. }
                | Self::Recovering { .. }
                | Self::Tools { .. }
                | Self::Ending(_)
        )
    }

    /// Whether what arrives may find no turn that claims it: the turn is being closed, or the
    /// command that opens one may come to nothing.
    pub(super) fn may_miss(&self) -> bool {
        matches!(self, Self::Opening | Self::Closing { .. } | Self::Resting { .. })
    }

    pub(super) fn task(&self) -> Option<TaskNo> {
        match self {
            Self::Proposing { task, .. }
            | Self::Preparing { task, .. }
            | Self::Streaming { task, .. }
            | Self::Recovering { task, .. }
            | Self::Tools { task }
            | Self::Stopping { task }
            | Self::Resting { task } => Some(*task),
            _ => None,
        }
    }
}

/// What stays the same over the attempts of a step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) choice: ModelChoice,
    /// A prompt that cannot be rendered fails the step that wanted it, once it is open.
    pub(super) prompt: Result<Arc<str>, Failure>,
    pub(super) tools: ToolList,
    /// Taken by the first admission.
    pub(super) entry: Option<Entry>,
}

/// What follows a settlement.
#[derive(Debug)]
pub(super) enum Then {
    /// Run the calls, or end the step if there are none.
    Act { calls: Vec<ToolCallBlock>, max_tokens: bool },
    /// Ask the request-error chain.
    Recover(Failure),
    /// The step fails.
    Fail(Failure),
    /// The step is cancelled.
    Cancelled,
}

/// How a step ends.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The model is done, or a tool concluded the turn.
    Completed,
    /// The output limit cut the answer.
    MaxTokens,
    /// Tool results go back to the model.
    Continue,
    /// It failed; a cancel takes precedence over the failure.
    Failed(Failure),
    /// It was cancelled.
    Cancelled,
}
