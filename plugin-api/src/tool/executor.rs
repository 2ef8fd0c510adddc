//! The seam between the loop and whatever runs the tool calls of one assistant message.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use playhouse_messages::{
    chunk::Failure,
    content::ToolCallBlock,
    event::{NewEvent, Seq, StepAt},
    id::MessageId,
    message::SharedMessage,
};

use ractor::ActorCell;

use crate::{agent::Agent, cancel::CancelToken, scope::Scope};

/// How long started bodies are awaited after a cancel.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// How many parallel calls run at once.
pub const DEFAULT_MAX_PARALLEL: usize = 10;

/// Runs all tool calls of one assistant message.
///
/// An executor logs what it does: for each call a `tool/call` when it starts and a `tool/result`
/// citing it, results in the model's order. After an abort it returns normally, with a result for
/// every call. An error means that the executor itself failed; what it started has ended by then,
/// and calls without a result are the caller's to close.
pub trait ToolBatchExecutor: Send + Sync + 'static {
    /// Runs the batch to its end.
    fn execute(&self, batch: ToolBatch) -> BoxFuture<'static, Result<BatchOutcome, Failure>>;
}

/// The tool calls of one assistant message, and all that an executor needs to run them.
#[derive(Clone)]
pub struct ToolBatch {
    /// The session and agent that they are for.
    pub host: Arc<dyn BatchHost>,
    /// The step that asks.
    pub at: StepAt,
    /// The calls, in the model's order.
    pub calls: Vec<ToolCallBlock>,
    /// How many parallel calls run at once; at least 1.
    pub max_parallel: usize,
    /// The turn's token.
    pub cancel: CancelToken,
    /// How long a stage that runs is awaited after a cancel.
    pub grace: Duration,
    /// Whom the batch's actor is linked to, so that it goes when that goes.
    pub supervisor: Option<ActorCell>,
    /// The span of the step; each call is traced in one of its own below it.
    pub span: tracing::Span,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchOutcome {
    /// Some successful call asked to end the turn.
    pub concluded: bool,
}

/// The session and agent that a batch runs for.
pub trait BatchHost: Send + Sync + 'static {
    /// The agent's scope.
    fn scope(&self) -> &Scope;

    /// The agent; `None` if the calls have none, and then nobody is asked for approval.
    fn agent(&self) -> Option<Agent>;

    /// Appends an event; resolves once it is accepted, with its seq.
    fn append(&self, event: NewEvent) -> BoxFuture<'static, Result<Seq, Failure>>;

    /// Puts a message at the end of the next step's input, without waking anybody.
    fn accept_context(&self, message: SharedMessage) -> BoxFuture<'static, Result<(), Failure>>;

    /// Makes what is logged so far as safe as the agent demands before a body may have effects. On
    /// an error the call gets an error result and its body does not run.
    fn checkpoint(&self) -> BoxFuture<'static, Result<(), Failure>>;

    /// A fresh id for a message.
    fn new_message_id(&self) -> MessageId;
}
