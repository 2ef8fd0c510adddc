//! The agent's actor: the shell of the loop machine.
//!
//! It is the only front door for sends and cancels. Every input becomes an input of the machine,
//! every effect a command to the session or a task that reports back; no handler waits for either.
//! Its death costs the turn that was open: a successor's machine closes it by repair, takes the
//! cancels that were announced meanwhile, and runs the input that was sent to be run.

mod actor;
mod answer;
mod checkpoint;
mod host;
mod shell;
mod tail;
mod work;

use std::sync::Arc;

pub use actor::{AgentActor, AgentArgs};
use futures::future::BoxFuture;
use playhouse_messages::{chunk::Failure, protocol::AgentMessage};
use playhouse_plugin_api::factory::{AgentFactory, AgentStart};
use ractor::{Actor, ActorRef};

/// The loop of this library.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoopFactory;

impl AgentFactory for LoopFactory {
    fn start(
        &self,
        start: AgentStart,
    ) -> BoxFuture<'static, Result<ActorRef<AgentMessage>, Failure>> {
        Box::pin(async move {
            let AgentStart { agent, world, supervisor, life } = start;
            let id = agent.id().clone();
            let args = AgentArgs { agent, world, life, supervisor: Arc::new(supervisor.clone()) };
            let spawned = AgentActor::spawn_linked(None, AgentActor, args, supervisor).await;
            let (actor, _) = spawned.map_err(|fault| {
                Failure::new("SPAWN_FAILED", format!("the actor of agent \"{id}\": {fault}"))
            })?;
            Ok(actor)
        })
    }
}
