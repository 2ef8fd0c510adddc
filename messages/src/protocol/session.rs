use ractor::{ActorRef, RpcReplyPort};

use super::AgentMessage;
use crate::{
    event::{NewEvent, SharedEvent},
    session::Command,
    session_state::AppendError,
};

/// Numbers the commands of one agent instance to its session, so that a command which is sent again
/// after the session's actor died is answered from the log's own record, and never run twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandNo {
    /// Tells senders apart; unique within the process.
    pub origin: u64,
    /// Counts the sender's commands.
    pub number: u64,
}

/// To a session: the right to append.
#[derive(Debug)]
pub enum SessionMessage {
    /// A command of the agent's machine.
    Command {
        /// Its number.
        number: CommandNo,
        /// What to do.
        command: Command,
        /// Who is answered, by [`AgentMessage::Reply`].
        to: ActorRef<AgentMessage>,
    },
    /// Events of plugins and tools, all or none.
    Append {
        /// The request's number.
        number: CommandNo,
        /// The events.
        events: Vec<NewEvent>,
        /// Answered once accepted.
        reply: RpcReplyPort<Result<Vec<SharedEvent>, AppendError>>,
    },
}
