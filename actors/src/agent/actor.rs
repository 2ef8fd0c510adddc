use std::sync::{Arc, atomic::Ordering};

use playhouse_messages::{
    event::CancelCause,
    frame::FrameOutcome,
    machine::{Input, LoopOptions, Machine},
    protocol::AgentMessage,
};
use playhouse_plugin_api::{
    agent::{Agent, AnnouncedCancel, Disposal},
    delay,
    factory::Life,
    world::World,
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};

use super::shell::{Shell, Waiter};

/// The shell around a loop machine.
#[derive(Debug)]
pub struct AgentActor;

/// What the shell is started with.
#[derive(Debug)]
pub struct AgentArgs {
    /// The agent.
    pub agent: Agent,
    /// The world.
    pub world: Arc<World>,
    /// Which life of the agent begins.
    pub life: Life,
    /// Whom the agent's tool executors are linked to.
    pub supervisor: Arc<ActorCell>,
}

impl Actor for AgentActor {
    type Msg = AgentMessage;
    type State = Shell;
    type Arguments = AgentArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<AgentMessage>,
        args: AgentArgs,
    ) -> Result<Shell, ActorProcessingErr> {
        let AgentArgs { agent, world, life, supervisor } = args;
        let cell = agent.cell();
        let options = LoopOptions {
            initial: agent.options().model.clone(),
            max_tokens: agent.options().max_tokens,
            max_steps: agent.options().max_steps,
        };
        let cancels = cell.cancels_taken();
        let (machine, repair) = match life {
            Life::First => {
                let view = agent.session().view();
                let (generation, last_turn) = (view.content_generation, view.last_turn);
                // In place of a first that died: nobody else knows that it was woken.
                let wake = cell.has_early_prompt();
                (Machine::held(options, generation, last_turn, cancels, wake), None)
            }
            Life::Successor => {
                let attempts = cell.attempts().load(Ordering::Relaxed);
                let session = agent.session();
                let attempt = session.view().failed_attempts + 1;
                let shown = session.cell().feed().current();
                let tail = shown.as_ref().and_then(|shown| shown.unsettled(attempt));
                if let Some(shown) = shown {
                    shown.end(FrameOutcome::Abandoned);
                }
                let (machine, repair) = Machine::successor(options, cancels, attempts, tail);
                (machine, Some(repair))
            }
        };
        let mut shell = Shell::new(agent, world, supervisor, myself, machine);
        if let Some(repair) = repair {
            shell.command(repair);
            if *shell.agent().cell().disposal().borrow() != Disposal::Live {
                // The predecessor may have taken that cancel; no turn opens after it.
                let cause = CancelCause::Disposed;
                shell.cancel(AnnouncedCancel { announcement: cancels, cause, keep_inbox: true });
            }
        }
        if let Some(cause) = shell.agent().cell().take_lost_cancel() {
            shell.cancel(AnnouncedCancel { announcement: cancels, cause, keep_inbox: false });
        }
        while let Some(cancel) = shell.agent().cell().take_oldest_cancel() {
            shell.cancel(cancel);
        }
        Ok(shell)
    }

    async fn handle(
        &self,
        _myself: ActorRef<AgentMessage>,
        message: AgentMessage,
        shell: &mut Shell,
    ) -> Result<(), ActorProcessingErr> {
        delay::before_message().await;
        shell.reap();
        match message {
            AgentMessage::Send { message, target, wake, retry, reply } => {
                let ticket = shell.wait(Waiter::Accepted(reply));
                shell.input(Input::Send { ticket, message, target, wake, retry });
            }
            AgentMessage::Edit { edit, reply } => {
                let ticket = shell.wait(Waiter::Edited(reply));
                shell.input(Input::Edit { ticket, edit });
            }
            AgentMessage::Cancel { announcement } => {
                // One that a predecessor's successor took already is not handled twice.
                if let Some(cancel) = shell.agent().cell().take_cancel(announcement) {
                    shell.cancel(cancel);
                }
            }
            AgentMessage::WhenIdle { reply } => shell.when_idle(reply),
            AgentMessage::Maintain { reply } => {
                let ticket = shell.wait(Waiter::Maintenance(reply));
                shell.input(Input::Maintain { ticket });
            }
            AgentMessage::Maintained => shell.input(Input::Maintained),
            AgentMessage::Reply { number, reply } => shell.reply(number, reply),
            AgentMessage::Done(task, completion) => shell.input(Input::Done(task, completion)),
            AgentMessage::SessionRestarted => shell.resend(),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<AgentMessage>,
        _event: SupervisionEvent,
        _shell: &mut Shell,
    ) -> Result<(), ActorProcessingErr> {
        // It has no children; the default would stop it if it had.
        Ok(())
    }
}
