//! Where a child's history begins.

use playhouse_messages::event::EventBody;
use playhouse_plugin_api::{
    agent::Agent,
    creation::{AgentHandle, AgentMaker, CreateError, NewAgent},
    fork::ForkPoint,
};

/// Where a child's history begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Basis {
    /// With its prompt.
    Fresh,
    /// With another session's events up to this one.
    Fork(ForkPoint),
}

impl Basis {
    /// What this agent has completed: its events up to the end of its last turn, as its log is now.
    pub fn completed_turns_of(parent: &Agent) -> Self {
        let log = parent.session().log();
        let ended = log.iter().rfind(|event| matches!(event.body, EventBody::TurnEnd(_)));
        ended.map_or(Self::Fresh, |end| Self::Fork(ForkPoint::at(parent.id().clone(), end.seq)))
    }

    /// Makes the agent that `new` describes over it.
    ///
    /// # Errors
    ///
    /// As [`AgentMaker::create`] and [`AgentMaker::fork`].
    pub async fn make(
        self,
        maker: &dyn AgentMaker,
        new: NewAgent,
    ) -> Result<AgentHandle, CreateError> {
        match self {
            Self::Fresh => maker.create(new).await,
            Self::Fork(point) => maker.fork(point, new).await,
        }
    }
}
