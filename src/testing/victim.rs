//! Actors to kill.

use playhouse_plugin_api::{agent::Agent, slot::Slot, world::World};
use ractor::{ActorCell, Message};

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
    /// The one of the running tool batch. It has no successor.
    ToolExecutor,
}

impl Victim {
    /// Kills by signal, and waits for the successor.
    pub(super) async fn kill(&self, world: &World, agent: &Agent) -> bool {
        match self {
            Self::Agent => kill(&agent.cell().actor).await,
            Self::Session => kill(&agent.session().cell().appender).await,
            Self::Writer => kill(&agent.session().cell().writer).await,
            Self::Supervisor => kill(&agent.cell().supervisor).await,
            Self::Provider(route) => kill(&world.providers.slot(route)).await,
            Self::ToolExecutor => self.strike(world, agent),
        }
    }

    /// Kills by signal, and waits for nobody. Returns whether there was one to kill.
    pub(crate) fn strike(&self, world: &World, agent: &Agent) -> bool {
        let victim = match self {
            Self::Agent => live(&agent.cell().actor),
            Self::Session => live(&agent.session().cell().appender),
            Self::Writer => live(&agent.session().cell().writer),
            Self::Supervisor => live(&agent.cell().supervisor),
            Self::Provider(route) => live(&world.providers.slot(route)),
            Self::ToolExecutor => tool_executor(agent),
        };
        let Some(victim) = victim else { return false };
        kill_tree(&victim);
        true
    }
}

fn live<M: Message>(slot: &Slot<M>) -> Option<ActorCell> {
    slot.live().map(|actor| actor.get_cell())
}

/// Whatever hangs below the agent's supervisor and is none of its three parts.
fn tool_executor(agent: &Agent) -> Option<ActorCell> {
    let cell = agent.session().cell();
    let parts = [live(&agent.cell().actor), live(&cell.appender), live(&cell.writer)];
    let mut children = live(&agent.cell().supervisor)?.get_children();
    children.sort_by_key(ActorCell::get_id);
    children.into_iter().find(|child| !parts.iter().flatten().any(|part| part == child))
}

/// Kills an actor and all below it. They would die anyway, but ractor keeps children in no order, and
/// a simulation needs one.
pub(crate) fn kill_tree(cell: &ActorCell) {
    cell.kill();
    let mut children = cell.get_children();
    children.sort_by_key(ActorCell::get_id);
    children.iter().for_each(kill_tree);
}

/// Kills by signal: no `post_stop`, state and mailbox are dropped.
async fn kill<M: Message>(slot: &Slot<M>) -> bool {
    let Some(victim) = slot.live() else { return false };
    victim.kill();
    slot.next(Some(victim.get_id())).await.is_ok()
}
