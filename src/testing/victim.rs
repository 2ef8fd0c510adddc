//! Actors to kill.

use playhouse_plugin_api::{agent::Agent, slot::Slot, world::World};
use ractor::Message;

/// An actor that an agent depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Victim {
    /// The one that drives the loop.
    Agent,
    /// The one that holds the right to append.
    Session,
    /// The one that writes to the store; there is none for a session in memory.
    Writer,
    /// The one that restarts those three, which die with it.
    Supervisor,
    /// The one of this provider route.
    Provider(String),
}

impl Victim {
    pub(super) async fn kill(&self, world: &World, agent: &Agent) -> bool {
        match self {
            Self::Agent => kill(&agent.cell().actor).await,
            Self::Session => kill(&agent.session().cell().appender).await,
            Self::Writer => kill(&agent.session().cell().writer).await,
            Self::Supervisor => kill(&agent.cell().supervisor).await,
            Self::Provider(route) => kill(&world.providers.slot(route)).await,
        }
    }
}

/// Kills by signal: no `post_stop`, state and mailbox are dropped.
async fn kill<M: Message>(slot: &Slot<M>) -> bool {
    let Some(victim) = slot.live() else { return false };
    victim.kill();
    slot.next(Some(victim.get_id())).await.is_ok()
}
