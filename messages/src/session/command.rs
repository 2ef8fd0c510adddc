//! What may be asked of a session. Each command is one atomic message to its actor: nothing comes
//! between the events that it appends.

use std::sync::Arc;

use crate::{
    chunk::Failure,
    config::{Header, ModelChoice, ToolList},
    event::{InboxTarget, NewEvent, Seq, SharedEvent, StepAt, TurnEndReason},
    id::MessageId,
    message::SharedMessage,
    prepared::Prepared,
    repair::UnsettledTail,
    request::FrozenRequest,
    runtime_context::ContextSection,
    session_state::AppendError,
};

/// A command to a session.
#[derive(Debug, Clone)]
pub enum Command {
    /// Puts a message into the inbox, and opens a turn over it if told to.
    Accept(Accept),
    /// Changes the inbox otherwise.
    Edit(InboxEdit),
    /// Opens a turn and claims its input.
    OpenTurn {
        /// Do nothing if the inbox is empty.
        only_if_pending: bool,
    },
    /// Claims next-step input for a further step of the open turn.
    Claim,
    /// Opens a step.
    StartStep(StepAt),
    /// Commits what a request needs, and freezes the request.
    Admit(Box<Admission>),
    /// Commits the settlement of an attempt.
    Settle(Box<NewEvent>),
    /// Closes a step.
    EndStep {
        /// Which.
        at: StepAt,
        /// First record a result for each unanswered tool call.
        recover: bool,
    },
    /// Closes the turn.
    CloseTurn {
        /// Which.
        turn: u32,
        /// Why.
        reason: TurnEndReason,
        /// Only if no next-step input waits.
        unless_steered: bool,
    },
    /// Closes what a crash left open.
    Repair {
        /// The stream of an attempt that never settled.
        tail: Option<UnsettledTail>,
    },
    /// Appends events of plugins and tools, all or none.
    Append(Vec<NewEvent>),
}

/// A message on its way into the inbox.
#[derive(Debug, Clone)]
pub struct Accept {
    /// The message. Its id must be new to the log.
    pub message: SharedMessage,
    /// Which list.
    pub target: InboxTarget,
    /// Open a turn and claim its input.
    pub open: bool,
    /// The sender may have sent it before: an id that the log knows is a success then.
    pub retry: bool,
}

/// A change of the inbox other than a send or a claim.
#[derive(Debug, Clone)]
pub enum InboxEdit {
    /// Puts a message at the front of a list.
    Prepend {
        /// The message.
        message: SharedMessage,
        /// Which list.
        target: InboxTarget,
    },
    /// Replaces a pending message in its place.
    Replace {
        /// The pending message.
        id: MessageId,
        /// What takes its place.
        with: SharedMessage,
    },
    /// Removes a pending message.
    Remove {
        /// The pending message.
        id: MessageId,
    },
    /// Removes everything: next-step first.
    Clear,
    /// Removes and inserts by position, normalised as array splices are.
    Splice {
        /// Which list.
        target: InboxTarget,
        /// Negative counts from the end; clamped.
        start: i64,
        /// Clamped to what is there.
        delete: i64,
        /// What takes the place.
        insert: Vec<SharedMessage>,
    },
}

/// What a request is admitted with.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The step.
    pub at: StepAt,
    /// The accepted messages; only the first attempt of a step has them.
    pub users: Option<Vec<SharedMessage>>,
    /// Which of them is the loop's own runtime-context candidate.
    pub candidate: Option<MessageId>,
    /// The runtime context as it is now.
    pub context: Vec<ContextSection>,
    /// The rendered system prompt.
    pub prompt: Arc<str>,
    /// The visible tools.
    pub tools: ToolList,
    /// The prepared call.
    pub prepared: Arc<Prepared>,
    /// The pre-step decision starts a series, and this is its step's first attempt.
    pub starts_series: bool,
    /// This agent instance has logged a header before.
    pub header_logged: bool,
    /// The surface's content generation at attachment or at the last request.
    pub generation_mark: u64,
}

/// What a session answers. Each command has its own kind, or [`Reply::Refused`].
#[derive(Debug, Clone)]
pub enum Reply {
    /// To [`Command::Accept`].
    Accepted(Accepted),
    /// To [`Command::Edit`].
    Edited(Edited),
    /// To [`Command::OpenTurn`]; `None` if nothing was pending.
    Opened(Option<Claimed>),
    /// To [`Command::Claim`].
    Claimed(Claimed),
    /// To [`Command::StartStep`].
    StepStarted(Standing),
    /// To [`Command::Admit`].
    Admitted(Box<Admitted>),
    /// To [`Command::Settle`].
    Settled(Settled),
    /// To [`Command::EndStep`].
    StepEnded(StepEnded),
    /// To [`Command::CloseTurn`].
    Closed(Closed),
    /// To [`Command::Repair`].
    Repaired(Repaired),
    /// To [`Command::Append`].
    Appended(Vec<SharedEvent>),
    /// The log refused an event of the command.
    Refused(AppendError),
}

/// A message is in the inbox.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// Its id.
    pub id: MessageId,
    /// The splice that brought it; `None` for a retry that had arrived before.
    pub seq: Option<Seq>,
    /// The turn that was opened over it, if one was asked for: an error if `turn/start` was refused.
    pub opened: Option<Result<Claimed, AppendError>>,
}

/// The inbox was changed.
#[derive(Debug, Clone)]
pub struct Edited {
    /// What left it.
    pub removed: Vec<SharedMessage>,
    /// What entered it.
    pub inserted: Vec<SharedMessage>,
}

/// Input was claimed for a step.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The open turn.
    pub turn: u32,
    /// Next-step input in order, then the prompt.
    pub messages: Vec<SharedMessage>,
    /// The session's choice of model, if it has one.
    pub choice: Option<ModelChoice>,
}

/// What the next request starts from.
#[derive(Debug, Clone)]
pub struct Standing {
    /// The latest logged header.
    pub header: Option<Arc<Header>>,
}

/// A request was admitted.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// The request.
    pub request: FrozenRequest,
    /// The surface's content generation when it was built.
    pub generation: u64,
    /// Why a strict provider would refuse the request.
    pub fault: Option<Failure>,
}

/// An attempt was settled.
#[derive(Debug, Clone)]
pub struct Settled {
    /// The settlement's seq.
    pub seq: Seq,
    /// Its type.
    pub kind: &'static str,
    /// What a retry starts from.
    pub standing: Standing,
}

/// A step was closed.
#[derive(Debug, Clone)]
pub struct StepEnded {
    /// Next-step input waits.
    pub steered: bool,
    /// A recovery result could not be recorded.
    pub unrecovered: Option<Failure>,
}

/// What became of a request to close the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// It is closed.
    Ended {
        /// Input waits for a further turn.
        pending: bool,
    },
    /// Next-step input arrived first; the turn is open.
    Steered,
}

/// The log is balanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repaired {
    /// Input waits.
    pub pending: bool,
    /// Next-turn input waits, which was sent to be run.
    pub prompts: bool,
    /// The surface's content generation.
    pub generation: u64,
    /// The last turn that was opened; 0 for none.
    pub last_turn: u32,
}
