//! The seam that the loop is: whoever answers [`AgentMessage`]s drives agents.

mod loop_fn;

use std::sync::Arc;

use futures::future::BoxFuture;
pub use loop_fn::{LoopFn, OpenTurn, loop_fn};
use playhouse_messages::{chunk::Failure, protocol::AgentMessage};
use ractor::{ActorCell, ActorRef};

use crate::{agent::Agent, world::World};

/// Starts the actor that drives an agent: the loop of this library, or another. A small one is best
/// made with [`loop_fn`].
pub trait AgentFactory: Send + Sync + 'static {
    /// Starts the driver, linked to `start.supervisor`, without waiting for long work. Called again
    /// with [`Life::Successor`] after each death.
    fn start(
        &self,
        start: AgentStart,
    ) -> BoxFuture<'static, Result<ActorRef<AgentMessage>, Failure>>;
}

/// What a driver starts with.
#[derive(Debug, Clone)]
pub struct AgentStart {
    /// The agent to drive.
    pub agent: Agent,
    /// The world that it lives in.
    pub world: Arc<World>,
    /// Whom to link to.
    pub supervisor: ActorCell,
    /// Which life of the agent begins.
    pub life: Life,
}

/// Which life of an agent begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The first, or one in place of a first that died before the agent's creation was over. Input is
    /// held back until [`AgentMessage::Maintained`].
    First,
    /// A later one: the log may hold an open turn, and input that was sent to be run.
    Successor,
}
