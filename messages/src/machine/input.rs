//! What the loop machine hears.

use std::sync::Arc;

use crate::{
    chunk::Failure,
    config::{CallConfig, ModelChoice, ToolList},
    event::{CancelCause, InboxTarget},
    id::MessageId,
    message::SharedMessage,
    prepared::Prepared,
    runtime_context::ContextSection,
    session::{InboxEdit, Reply},
    settlement::{AttemptStream, StreamEnd},
};

/// Names a caller who waits for an answer.
pub type Ticket = u64;

/// Names one piece of asynchronous work; a completion that carries another number is stale.
pub type TaskNo = u64;

/// The state of the cancel token at the moment of an input.
#[derive(Debug, Clone, Default)]
pub struct Moment {
    /// The first cause of the current activity's token.
    pub cancelled: Option<CancelCause>,
    /// How many cancels have been announced so far; each also comes as an [`Input::Cancel`].
    pub cancels_announced: u64,
}

/// One input.
#[derive(Debug)]
pub enum Input {
    /// A message for the inbox.
    Send {
        /// Who waits for it to be accepted.
        ticket: Ticket,
        /// The message.
        message: SharedMessage,
        /// Which list.
        target: InboxTarget,
        /// Whether it asks to be run.
        wake: bool,
        /// The sender may have sent it before.
        retry: bool,
    },
    /// A change of the inbox.
    Edit {
        /// Who waits for it.
        ticket: Ticket,
        /// The change.
        edit: InboxEdit,
    },
    /// An announced cancel arrives.
    Cancel {
        /// The number that the announcement got.
        announcement: u64,
        /// Who cancels.
        cause: CancelCause,
        /// Leave pending input where it is.
        keep_inbox: bool,
    },
    /// Somebody wants the idle agent for themselves.
    Maintain {
        /// Who waits for the answer.
        ticket: Ticket,
    },
    /// The maintenance is over.
    Maintained,
    /// The session answers, in the order of the commands.
    Reply(Reply),
    /// A piece of work is done.
    Done(TaskNo, Completion),
}

/// The outcome of a piece of work. An error fails the step, or the turn if no step is open.
#[derive(Debug)]
pub enum Completion {
    /// Of `Effect::Propose`.
    Proposed(Result<Proposal, Failure>),
    /// Of `Effect::Prepare`.
    Prepared(Result<Preparation, Failure>),
    /// Of `Effect::Dispatch`.
    Streamed(Streamed),
    /// Of `Effect::Recover`.
    Recovered(Result<Recovery, Failure>),
    /// Of `Effect::RunTools`: whether a result concludes the turn.
    ToolsRun(Result<bool, Failure>),
    /// Of `Effect::Stopping`.
    Stopping(Result<(), Failure>),
    /// Of `Effect::Rest`: the turn's end is as durable as the policy asks.
    Rested,
}

/// A proposed step: the pre-step decision and what the step would be run with.
#[derive(Debug, Clone)]
pub struct Proposal {
    /// Whether it opens, and with what.
    pub decision: Decision,
    /// The rendered prompt; a failed rendering fails the step, not the turn.
    pub prompt: Result<Arc<str>, Failure>,
    /// The visible tools, in order.
    pub tools: ToolList,
}

/// Whether a proposed step opens.
#[derive(Debug, Clone)]
pub enum Decision {
    /// It does not, and the driver stops.
    Reject,
    /// It does, with exactly these messages.
    Enter(Entry),
}

/// What becomes of a step whose attempt failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Recovery {
    /// The failure stands, and ends the turn.
    #[default]
    Fail,
    /// Another attempt on the route that the step captured.
    Retry,
    /// Another attempt, and all later ones of this step, on another route. Whoever says so records
    /// the choice in the log first, so that later steps follow it.
    RetryWith(ModelChoice),
}

/// What a step is entered with.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    /// The messages to log, in order.
    pub messages: Vec<SharedMessage>,
    /// Which of them is the loop's own runtime-context candidate.
    pub candidate: Option<MessageId>,
    /// A new request series starts.
    pub starts_series: bool,
}

/// A resolved call, and the runtime facts of this attempt.
#[derive(Debug, Clone)]
pub struct Preparation {
    /// What the request hooks made of the seed.
    pub proposed: CallConfig,
    /// The resolved call.
    pub prepared: Arc<Prepared>,
    /// The runtime context as it is now.
    pub context: Vec<ContextSection>,
}

/// How an attempt's stream ended.
#[derive(Debug)]
pub enum Streamed {
    /// It never started: nothing to settle, no frames were shown.
    NotStarted(Failure),
    /// It started, and its chunks are these.
    Stream {
        /// The chunks.
        stream: Box<AttemptStream>,
        /// How they stopped coming.
        end: StreamEnd,
        /// The id for a message made of them.
        message_id: MessageId,
    },
}
