use ractor::RpcReplyPort;

use crate::{
    event::InboxTarget,
    machine::{Completion, TaskNo},
    message::SharedMessage,
    protocol::CommandNo,
    session::{Accepted, Edited, InboxEdit, Reply},
    session_state::AppendError,
};

/// To an agent: the only front door for sends and cancels.
#[derive(Debug)]
pub enum AgentMessage {
    /// Put a message into the inbox, and run it if it wakes.
    Send {
        /// The message.
        message: SharedMessage,
        /// Which list.
        target: InboxTarget,
        /// Whether to run it.
        wake: bool,
        /// The sender may have sent it to a predecessor of this actor.
        retry: bool,
        /// Answered once accepted, and later while too much is not yet durable.
        reply: RpcReplyPort<Result<Accepted, AppendError>>,
    },
    /// Change the inbox otherwise.
    Edit {
        /// The change.
        edit: InboxEdit,
        /// Answered once it stands in the log.
        reply: RpcReplyPort<Result<Edited, AppendError>>,
    },
    /// A cancel was announced on the shared token, and waits there to be taken.
    Cancel {
        /// The announcement's number.
        announcement: u64,
    },
    /// Tell when nothing runs.
    WhenIdle {
        /// Answered at the next moment of idleness, which may be now.
        reply: RpcReplyPort<()>,
    },
    /// Ask for the idle agent.
    Maintain {
        /// Whether it was granted.
        reply: RpcReplyPort<bool>,
    },
    /// Give it back.
    Maintained,
    /// The session answers a command.
    Reply {
        /// The command's number.
        number: CommandNo,
        /// The answer.
        reply: Reply,
    },
    /// A piece of work is done.
    Done(TaskNo, Completion),
    /// The session's actor is a new one: commands without an answer are sent again.
    SessionRestarted,
}
