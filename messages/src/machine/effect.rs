//! What the loop machine wants done.

use std::sync::Arc;

use super::input::{TaskNo, Ticket};
use crate::{
    chunk::Failure,
    config::{CallConfig, ModelChoice},
    content::ToolCallBlock,
    event::{CancelCause, StepAt},
    frame::FrameOutcome,
    message::SharedMessage,
    prepared::Prepared,
    request::FrozenRequest,
    session::{Accepted, Command, Edited},
    session_state::AppendError,
};

/// One effect. The shell performs them in order.
#[derive(Debug)]
pub enum Effect {
    /// Send a command to the session; its reply comes back as an input.
    Command(Command),
    /// Install a fresh cancel token for the activity that begins.
    NewToken,
    /// Fire the current token; the first cause wins.
    Fire(CancelCause),
    /// The public status changed.
    Status(Status),
    /// Assemble prompt and tools, and run the pre-step chain.
    Propose {
        /// To be echoed.
        task: TaskNo,
        /// The step that would open.
        at: StepAt,
        /// The captured choice of model.
        choice: ModelChoice,
        /// The claimed messages.
        claimed: Vec<SharedMessage>,
        /// Whether the step comes even without messages: tool results wait for the model.
        owed: bool,
    },
    /// Run the request chain, prepare the call, gather the runtime facts.
    Prepare {
        /// To be echoed.
        task: TaskNo,
        /// The open step.
        at: StepAt,
        /// The captured choice of model.
        choice: ModelChoice,
        /// What the request chain starts from.
        seed: CallConfig,
    },
    /// Checkpoint, then send the request and consume its stream.
    Dispatch {
        /// To be echoed.
        task: TaskNo,
        /// The open step.
        at: StepAt,
        /// Counts the attempts of this agent instance, from 1.
        attempt: u64,
        /// The bound call.
        prepared: Arc<Prepared>,
        /// The request.
        request: Box<FrozenRequest>,
    },
    /// The attempt's live stream ends.
    EndAttempt(FrameOutcome),
    /// Run the request-error chain.
    Recover {
        /// To be echoed.
        task: TaskNo,
        /// The open step.
        at: StepAt,
        /// The failed call.
        prepared: Arc<Prepared>,
        /// The provider's facts.
        failure: Failure,
    },
    /// Run a batch of tool calls.
    RunTools {
        /// To be echoed.
        task: TaskNo,
        /// The open step.
        at: StepAt,
        /// The calls in model order.
        calls: Vec<ToolCallBlock>,
    },
    /// Run the turn-stopping listeners.
    Stopping {
        /// To be echoed.
        task: TaskNo,
        /// The open turn.
        turn: u32,
    },
    /// Make the turn's end durable, as far as the policy asks, before idle is announced.
    Rest {
        /// To be echoed.
        task: TaskNo,
    },
    /// Something failed that the log may not show.
    Report {
        /// The turn, or the last one.
        turn: u32,
        /// The step, 0 if none was open.
        step: u32,
        /// What failed.
        failure: Failure,
    },
    /// Answer a sender.
    Accepted(Ticket, Result<Accepted, AppendError>),
    /// Answer an editor.
    Edited(Ticket, Result<Edited, AppendError>),
    /// Answer somebody who wants maintenance: granted or busy.
    Maintenance(Ticket, bool),
}

/// The public status of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// No turn is open or about to open.
    Idle,
    /// Turns run.
    Running,
}
