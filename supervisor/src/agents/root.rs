//! The root of all agent supervisors. It owns nothing; its death means that the harness has failed.

use std::{collections::HashMap, sync::Arc, time::Duration};

use playhouse_messages::{chunk::Failure, id::SessionId, protocol::AgentsRootMessage};
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    delay,
    factory::Life,
    world::World,
};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::{task::JoinSet, time::Instant};

use super::{
    disposal,
    supervisor::{AgentSupervisor, SupervisorArgs},
};
use crate::children::stop_children;
use crate::death::death;
use crate::plugin_host::{RestartLimits, Restarts};
use crate::restart_policy::RestartBook;

/// How often an agent's supervisor may die, unless the harness's policy says otherwise.
pub const SUPERVISOR_LIMITS: RestartLimits = RestartLimits {
    max_restarts: 5,
    within: Duration::from_secs(30),
    first_delay: Duration::from_millis(1),
    max_delay: Duration::from_secs(1),
};

/// The root.
#[derive(Debug)]
pub struct AgentsRoot;

/// Its state.
pub struct Roots {
    world: Arc<World>,
    book: RestartBook,
    supervised: HashMap<ActorId, Agent>,
    restarts: HashMap<SessionId, Restarts>,
    tasks: JoinSet<()>,
}

impl Roots {
    async fn adopt(
        &mut self,
        agent: Agent,
        life: Life,
        myself: &ActorRef<AgentsRootMessage>,
    ) -> Result<(), Failure> {
        let (world, book) = (self.world.clone(), self.book.clone());
        let args = SupervisorArgs { agent: agent.clone(), world, book, life };
        let spawned =
            AgentSupervisor::spawn_linked(None, AgentSupervisor, args, myself.get_cell()).await;
        let (supervisor, _) = spawned.map_err(|fault| {
            let text = format!("the supervisor of agent \"{}\": {fault}", agent.id());
            Failure::new("SPAWN_FAILED", text)
        })?;
        if life == Life::Successor {
            self.book.restarted();
        }
        self.supervised.insert(supervisor.get_id(), agent);
        Ok(())
    }

    fn died(&mut self, id: ActorId, why: &str, myself: &ActorRef<AgentsRootMessage>) {
        let Some(agent) = self.supervised.remove(&id) else { return };
        agent.cell().supervisor.vacate(id);
        if *agent.cell().disposal().borrow() == Disposal::Disposed {
            self.restarts.remove(agent.id());
            return;
        }
        let restarts = self.restarts.entry(agent.id().clone()).or_default();
        let id = agent.id().clone();
        match restarts.died(Instant::now(), &self.book.policy.supervisors) {
            Some(delay) => {
                tracing::warn!(agent = %id, why, ?delay, "an agent's supervisor died; restarting it");
                myself.send_after(delay, move || AgentsRootMessage::Restart { id });
            }
            None => {
                tracing::error!(agent = %id, why, "an agent's supervisor keeps dying");
                let text = format!("the supervisor of agent \"{id}\" keeps dying: {why}");
                let (world, failure) = (self.world.clone(), Failure::new("RESTART_LIMIT", text));
                agent.cell().set_disposal(Disposal::Disposing { keep_inbox: true });
                self.tasks.spawn(async move {
                    if let Err(failure) = disposal::abandon(&world, &agent, failure).await {
                        tracing::error!(agent = %agent.id(), %failure, "disposal failed");
                    }
                });
            }
        }
    }
}

impl Actor for AgentsRoot {
    type Msg = AgentsRootMessage;
    type State = Roots;
    type Arguments = (Arc<World>, RestartBook);

    async fn pre_start(
        &self,
        _myself: ActorRef<AgentsRootMessage>,
        (world, book): (Arc<World>, RestartBook),
    ) -> Result<Roots, ActorProcessingErr> {
        let (supervised, restarts) = (HashMap::new(), HashMap::new());
        Ok(Roots { world, book, supervised, restarts, tasks: JoinSet::new() })
    }

    async fn handle(
        &self,
        myself: ActorRef<AgentsRootMessage>,
        message: AgentsRootMessage,
        state: &mut Roots,
    ) -> Result<(), ActorProcessingErr> {
        delay::before_message().await;
        while state.tasks.try_join_next().is_some() {}
        match message {
            AgentsRootMessage::Adopt { id, reply } => {
                let adopted = match state.world.agents.made(&id) {
                    Some(agent) => state.adopt(agent, Life::First, &myself).await,
                    None => Err(Failure::new("UNKNOWN_AGENT", format!("no agent \"{id}\""))),
                };
                let _ = reply.send(adopted);
            }
            AgentsRootMessage::Remove { id } => {
                state.restarts.remove(&id);
            }
            AgentsRootMessage::Restart { id } => {
                let Some(agent) = state.world.agents.made(&id) else { return Ok(()) };
                if let Err(failure) = state.adopt(agent, Life::Successor, &myself).await {
                    tracing::error!(agent = %id, %failure, "an agent's supervisor does not start");
                }
            }
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        myself: ActorRef<AgentsRootMessage>,
        _state: &mut Roots,
    ) -> Result<(), ActorProcessingErr> {
        stop_children(&myself).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<AgentsRootMessage>,
        event: SupervisionEvent,
        state: &mut Roots,
    ) -> Result<(), ActorProcessingErr> {
        if let Some((child, why)) = death(event) {
            state.died(child.get_id(), &why, &myself);
        }
        Ok(())
    }
}
