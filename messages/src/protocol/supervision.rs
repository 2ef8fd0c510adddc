use ractor::RpcReplyPort;

use crate::{chunk::Failure, id::SessionId};

/// The actors that an agent's supervisor keeps alive. Tool executors are linked to it too, and are
/// not restarted: their started calls have an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The loop.
    Agent,
    /// The right to append.
    Session,
    /// The write handle.
    Writer,
}

/// To an agent's supervisor.
#[derive(Debug)]
pub enum AgentSupervisorMessage {
    /// End the agent's work, release what it holds, and stop.
    Dispose {
        /// Leave pending input in the log.
        keep_inbox: bool,
        /// The failures of the way down, if any.
        reply: RpcReplyPort<Result<(), Failure>>,
    },
    /// A backoff has passed.
    Restart(Part),
    /// The disposal task is done.
    Disposed(Result<(), Failure>),
}

/// To the root of all agents' supervisors.
#[derive(Debug)]
pub enum AgentsRootMessage {
    /// Start a supervisor for an agent that the registry holds.
    Adopt {
        /// The agent.
        id: SessionId,
        /// Answered once its supervisor runs.
        reply: RpcReplyPort<Result<(), Failure>>,
    },
    /// The agent is gone: do not restart its supervisor.
    Remove {
        /// The agent.
        id: SessionId,
    },
    /// A backoff has passed.
    Restart {
        /// The agent.
        id: SessionId,
    },
}
