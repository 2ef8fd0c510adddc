//! Where plugins have a say in a tool call.

use std::sync::Arc;

use futures::future::BoxFuture;
use playhouse_messages::{content::ContentBlock, message::SharedMessage};
use serde_json::Value;

use super::{ToolCallContext, ToolOutcome};
use crate::{
    cancel::CancelToken,
    hook::{Around, Notify},
};

/// The hook points of a tool call, in the order in which they run.
#[derive(Default)]
pub struct ToolHooks {
    /// May this call run? Sees names of no tool, too. A failure is the call's result.
    ///
    /// Runs in the model's order, also when bodies overlap.
    pub pre: Around<ToolCallContext, PreVerdict>,
    /// Around the body, once for each try. A listener may give the body another token (the caller's
    /// stays fused to it), answer without the body, run it again, or answer otherwise.
    pub execute: Around<ToolExecution, ToolOutcome>,
    /// What the model sees of the result. Runs in the model's order.
    pub post: Around<ToolSettled, PostVerdict>,
    /// The final outcome, for observers.
    pub result: Notify<ToolSettled>,
}

/// What policy says before a call runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreVerdict {
    /// It may run, unless a guard denies it.
    Allow,
    /// It may not; the model reads `Error: <reason>`.
    Deny {
        /// Why.
        reason: String,
    },
    /// The [`ApprovalGate`] decides.
    Ask {
        /// For the one who is asked.
        reason: Option<String>,
    },
}

/// A call that is about to run.
#[derive(Debug, Clone)]
pub struct ToolExecution {
    /// The facts. The body gets the pipeline's own copy, whatever a listener passes on.
    pub call: ToolCallContext,
    /// What the body watches.
    pub cancel: CancelToken,
}

/// A call with its outcome.
#[derive(Debug, Clone)]
pub struct ToolSettled {
    /// The facts.
    pub call: ToolCallContext,
    /// What became of it.
    pub outcome: Arc<ToolOutcome>,
}

/// What post-processing makes of an outcome.
#[derive(Debug, Clone, PartialEq)]
pub enum PostVerdict {
    /// The outcome stands.
    Accept {
        /// What the model sees instead.
        replacement: Option<Replacement>,
        /// Messages for the next step, after those of the call itself.
        contexts: Vec<SharedMessage>,
    },
    /// The outcome becomes a failure, and the messages of the call itself are dropped.
    Block {
        /// What the model sees.
        feedback: Vec<ContentBlock>,
        /// Messages for the next step.
        contexts: Vec<SharedMessage>,
    },
}

impl PostVerdict {
    /// The outcome as it is.
    pub fn accept() -> Self {
        Self::Accept { replacement: None, contexts: Vec::new() }
    }
}

/// What takes the place of a result.
#[derive(Debug, Clone, PartialEq)]
pub enum Replacement {
    /// What the model sees; value and meta stay.
    Content(Vec<ContentBlock>),
    /// The value, shown as the tool renders it. Only for a success.
    Value(Value),
}

/// Asks somebody whether a call may run.
pub trait ApprovalGate: Send + Sync + 'static {
    /// Resolves once somebody has answered, or nobody can. The future is dropped if the call is
    /// cancelled; the question must be withdrawn then.
    fn ask(&self, call: ToolCallContext, reason: Option<String>) -> BoxFuture<'static, Approval>;
}

/// The answer of an [`ApprovalGate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// This call may run; guards still apply.
    AllowedOnce,
    /// The user said no.
    Rejected,
    /// The question was withdrawn.
    Cancelled,
    /// Nobody can be asked.
    Unavailable,
}
