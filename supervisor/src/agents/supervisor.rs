//! One an agent: keeps its actors alive.
//!
//! It owns nothing but restart counts. Everything that its children need is in the world, so its own
//! death costs what the death of all of them costs: a successor starts them again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use playhouse_actors::{
    persistence::{WriterActor, WriterArgs},
    session::{SessionActor, SessionArgs},
};
use playhouse_messages::{
    chunk::Failure,
    protocol::{AgentMessage, AgentSupervisorMessage, Part},
};
use playhouse_plugin_api::{
    agent::{Agent, AgentFault, Disposal},
    delay,
    factory::{AgentStart, Life},
    world::World,
};
use ractor::{
    Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent,
};
use tokio::{task::JoinSet, time::Instant};

use super::disposal;
use crate::children::stop_children;
use crate::death::death;
use crate::plugin_host::{RestartLimits, Restarts};

/// How often the parts of an agent may die: a part that dies for good reason is back at once, one
/// that cannot live does not spin.
pub const PART_LIMITS: RestartLimits = RestartLimits {
    max_restarts: 5,
    within: Duration::from_secs(30),
    first_delay: Duration::from_millis(1),
    max_delay: Duration::from_secs(1),
};

/// The supervisor of one agent.
#[derive(Debug)]
pub struct AgentSupervisor;

/// What it is started with.
#[derive(Debug, Clone)]
pub struct SupervisorArgs {
    /// The agent.
    pub agent: Agent,
    /// The world.
    pub world: Arc<World>,
    /// Whether this is the agent's first supervisor.
    pub life: Life,
}

/// Its state.
pub struct Supervision {
    args: SupervisorArgs,
    parts: HashMap<ActorId, Part>,
    restarts: HashMap<Part, Restarts>,
    disposing: Vec<RpcReplyPort<Result<(), Failure>>>,
    under_way: bool,
    tasks: JoinSet<()>,
}

impl Supervision {
    async fn start(
        &mut self,
        part: Part,
        life: Life,
        myself: ActorCell,
    ) -> Result<(), ActorProcessingErr> {
        let SupervisorArgs { agent, world, .. } = &self.args;
        let cell = agent.session().cell();
        let id = match part {
            Part::Session => {
                let args = SessionArgs { cell: cell.clone(), world: world.clone() };
                let (actor, _) =
                    SessionActor::spawn_linked(None, SessionActor, args, myself).await?;
                let id = actor.get_id();
                cell.appender.fill(actor);
                if life == Life::Successor {
                    // Nobody else knows which commands the dead one left unanswered.
                    let _ = agent.cell().actor.cast(AgentMessage::SessionRestarted);
                }
                id
            }
            Part::Writer => {
                let Some(handle) = cell.handle().cloned() else {
                    cell.close_writer();
                    return Ok(());
                };
                let args = WriterArgs { cell: cell.clone(), handle };
                let (actor, _) = WriterActor::spawn_linked(None, WriterActor, args, myself).await?;
                let id = actor.get_id();
                cell.writer.fill(actor);
                id
            }
            Part::Agent => {
                let (agent, world) = (agent.clone(), world.clone());
                let factory = world.factory.clone();
                // One that dies while its creation goes on has run nothing, and nor may the next.
                let life = if agent.cell().is_held() { Life::First } else { life };
                let start = AgentStart { agent: agent.clone(), world, supervisor: myself, life };
                let actor = factory.start(start).await?;
                let id = actor.get_id();
                agent.cell().actor.fill(actor);
                agent.cell().send_cancels_again();
                id
            }
        };
        self.parts.insert(id, part);
        Ok(())
    }

    fn died(&mut self, id: ActorId, why: &str, myself: &ActorRef<AgentSupervisorMessage>) {
        // Tool executors come and go; only the parts are kept alive.
        let Some(part) = self.parts.remove(&id) else { return };
        let agent = &self.args.agent;
        let cell = agent.session().cell();
        let retired = match part {
            Part::Agent => {
                agent.cell().actor.vacate(id);
                agent.cell().actor.is_closed()
            }
            Part::Session => {
                cell.appender.vacate(id);
                cell.appender.is_closed()
            }
            Part::Writer => {
                cell.writer.vacate(id);
                cell.writer.is_closed()
            }
        };
        if retired || *agent.cell().disposal().borrow() == Disposal::Disposed {
            return;
        }
        let now = Instant::now();
        match self.restarts.entry(part).or_default().died(now, &PART_LIMITS) {
            Some(delay) => {
                tracing::warn!(agent = %agent.id(), ?part, why, ?delay, "an actor died; restarting it");
                myself.send_after(delay, move || AgentSupervisorMessage::Restart(part));
            }
            None => {
                let text =
                    format!("the {part:?} actor of agent \"{}\" keeps dying: {why}", agent.id());
                tracing::error!(agent = %agent.id(), ?part, why, "an actor keeps dying; the agent is disposed");
                let failure = Failure::new("RESTART_LIMIT", text);
                agent.cell().tell_error(AgentFault {
                    agent: agent.id().clone(),
                    turn: agent.session().view().last_turn,
                    step: 0,
                    failure: failure.clone(),
                });
                if self.under_way {
                    // The disposal must not wait for a part that will not be back.
                    match part {
                        Part::Agent => agent.cell().actor.close(),
                        Part::Session => cell.appender.close(),
                        Part::Writer => cell.close_writer(),
                    }
                }
                self.give_up(failure, myself);
            }
        }
    }

    /// The agent cannot go on: its log says why, and everything is released.
    fn give_up(&mut self, failure: Failure, myself: &ActorRef<AgentSupervisorMessage>) {
        if std::mem::replace(&mut self.under_way, true) {
            return;
        }
        let SupervisorArgs { agent, world, .. } = self.args.clone();
        agent.cell().set_disposal(Disposal::Disposing { keep_inbox: true });
        let myself = myself.clone();
        self.tasks.spawn(async move {
            let ended = disposal::abandon(&world, &agent, failure).await;
            let _ = myself.cast(AgentSupervisorMessage::Disposed(ended));
        });
    }

    fn dispose(&mut self, keep_inbox: bool, myself: &ActorRef<AgentSupervisorMessage>) {
        let SupervisorArgs { agent, world, .. } = self.args.clone();
        agent.cell().set_disposal(Disposal::Disposing { keep_inbox });
        if std::mem::replace(&mut self.under_way, true) {
            return;
        }
        let myself = myself.clone();
        self.tasks.spawn(async move {
            let ended = disposal::dispose(&world, &agent, keep_inbox).await;
            let _ = myself.cast(AgentSupervisorMessage::Disposed(ended));
        });
    }
}

impl Actor for AgentSupervisor {
    type Msg = AgentSupervisorMessage;
    type State = Supervision;
    type Arguments = SupervisorArgs;

    async fn pre_start(
        &self,
        _myself: ActorRef<AgentSupervisorMessage>,
        args: SupervisorArgs,
    ) -> Result<Supervision, ActorProcessingErr> {
        Ok(Supervision {
            args,
            parts: HashMap::new(),
            restarts: HashMap::new(),
            disposing: Vec::new(),
            under_way: false,
            tasks: JoinSet::new(),
        })
    }

    async fn post_start(
        &self,
        myself: ActorRef<AgentSupervisorMessage>,
        state: &mut Supervision,
    ) -> Result<(), ActorProcessingErr> {
        let life = state.args.life;
        for part in [Part::Writer, Part::Session, Part::Agent] {
            state.start(part, life, myself.get_cell()).await?;
        }
        let agent = state.args.agent.clone();
        agent.cell().supervisor.fill(myself.clone());
        // A disposal that a dead predecessor had begun is finished.
        let disposal = *agent.cell().disposal().borrow();
        if let Disposal::Disposing { keep_inbox } = disposal {
            state.dispose(keep_inbox, &myself);
        }
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<AgentSupervisorMessage>,
        message: AgentSupervisorMessage,
        state: &mut Supervision,
    ) -> Result<(), ActorProcessingErr> {
        delay::before_message().await;
        match message {
            AgentSupervisorMessage::Restart(part) => {
                state.start(part, Life::Successor, myself.get_cell()).await?;
            }
            AgentSupervisorMessage::Dispose { keep_inbox, reply } => {
                state.disposing.push(reply);
                state.dispose(keep_inbox, &myself);
            }
            AgentSupervisorMessage::Disposed(ended) => {
                // Whoever waited finds nothing of the agent running.
                stop_children(&myself).await;
                for waiter in state.disposing.drain(..) {
                    let _ = waiter.send(ended.clone());
                }
                myself.stop(None);
            }
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        myself: ActorRef<AgentSupervisorMessage>,
        _state: &mut Supervision,
    ) -> Result<(), ActorProcessingErr> {
        // Its exit would kill the children; let them finish the message they are at.
        stop_children(&myself).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<AgentSupervisorMessage>,
        event: SupervisionEvent,
        state: &mut Supervision,
    ) -> Result<(), ActorProcessingErr> {
        if let Some((child, why)) = death(event) {
            state.died(child.get_id(), &why, &myself);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::BoxFuture;
    use playhouse_actors::agent::LoopFactory;
    use playhouse_messages::{event::CancelCause, protocol::AgentMessage};
    use playhouse_plugin_api::{creation::NewAgent, factory::AgentFactory, options::AgentOptions};

    use super::*;
    use crate::harness::Harness;

    /// Cancels an agent while its successor has started and is not yet reached by anybody.
    struct CancelsInBetween;

    impl AgentFactory for CancelsInBetween {
        fn start(
            &self,
            start: AgentStart,
        ) -> BoxFuture<'static, Result<ActorRef<AgentMessage>, Failure>> {
            let (agent, life) = (start.agent.clone(), start.life);
            let started = LoopFactory.start(start);
            Box::pin(async move {
                let actor = started.await?;
                if life == Life::Successor {
                    agent.cancel(CancelCause::User);
                }
                Ok(actor)
            })
        }
    }

    #[tokio::test]
    async fn a_cancel_that_meets_a_restart_arrives() {
        let harness = Harness::builder().agent_factory(CancelsInBetween).start().await.unwrap();
        let agent = harness.create(NewAgent::new(AgentOptions::new())).await.unwrap();
        agent.inject("parked").await.unwrap();
        agent.cell().actor.live().unwrap().get_cell().kill();
        let idle = async {
            // The wait may still reach the one that dies; then it is asked again.
            agent.when_idle().await.unwrap();
            while !agent.inbox().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), idle).await.unwrap();
        harness.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_cancel_outlives_the_actor_that_took_it() {
        let harness = Harness::builder().start().await.unwrap();
        let agent = harness.create(NewAgent::new(AgentOptions::new())).await.unwrap();
        agent.inject("parked").await.unwrap();
        // Nobody runs the command by which the cancel drops what is parked.
        agent.session().cell().appender.live().unwrap().get_cell().kill();
        let actor = agent.cell().actor.live().unwrap();
        agent.cancel(CancelCause::User);
        while agent.cell().cancels_taken() == 0 {
            tokio::task::yield_now().await;
        }
        actor.get_cell().kill();
        assert_eq!(agent.inbox().len(), 1, "the command was run after all: nothing is tested");
        let dropped = async {
            while !agent.inbox().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), dropped).await.unwrap();
        harness.shutdown().await.unwrap();
    }
}
