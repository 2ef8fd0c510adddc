use std::sync::Arc;

use playhouse_messages::{
    protocol::{AgentMessage, CommandNo, SessionMessage, WriterMessage},
    session::{Command, Reply, SessionCore},
    session_state::AppendError,
    validator::Validator,
};
use playhouse_plugin_api::{delay, session::SessionCell, world::World};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

/// The shell around a [`SessionCore`].
#[derive(Debug)]
pub struct SessionActor;

/// What the shell is started with.
#[derive(Debug)]
pub struct SessionArgs {
    /// The session.
    pub cell: Arc<SessionCell>,
    /// The world.
    pub world: Arc<World>,
}

/// The shell's state; gone with it, and made anew from the log.
pub struct SessionShell {
    args: SessionArgs,
    core: Option<SessionCore>,
    /// Those that the core follows.
    validators: Arc<Vec<Arc<dyn Validator>>>,
}

impl SessionShell {
    /// Runs a command once; none if nobody waits for it any more.
    fn run(
        &mut self,
        number: CommandNo,
        command: Command,
    ) -> Result<Option<Reply>, ActorProcessingErr> {
        let Self { args: SessionArgs { cell, world }, core, validators } = self;
        let view = cell.view();
        if let Some(reply) = view.answer(number) {
            return Ok(Some(reply.clone()));
        }
        if view.is_late(number) {
            return Ok(None);
        }
        drop(view);
        let core = core.as_mut().ok_or("a session takes commands once it is loaded")?;
        let active = world.validators.active();
        if !Arc::ptr_eq(&active, validators) {
            core.set_validators(&active);
            *validators = active;
        }
        let before = core.log().len();
        let reply = core.execute(command, &mut world.mint());
        // Who was overtaken is the one of two that goes: a fresh one starts from the log.
        cell.publish(core, before, number, &reply)?;
        if core.log().len() != before {
            // The writer reads the log itself; a nudge that nobody hears is made up for by the next.
            let _ = cell.writer.cast(WriterMessage::Append);
        }
        Ok(Some(reply))
    }
}

impl Actor for SessionActor {
    type Msg = SessionMessage;
    type State = SessionShell;
    type Arguments = SessionArgs;

    async fn pre_start(
        &self,
        _myself: ActorRef<SessionMessage>,
        args: SessionArgs,
    ) -> Result<SessionShell, ActorProcessingErr> {
        Ok(SessionShell { args, core: None, validators: Arc::default() })
    }

    async fn post_start(
        &self,
        _myself: ActorRef<SessionMessage>,
        state: &mut SessionShell,
    ) -> Result<(), ActorProcessingErr> {
        // In the actor's own task: what is sent meanwhile waits in the mailbox.
        state.core = Some(state.args.cell.load()?);
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<SessionMessage>,
        message: SessionMessage,
        state: &mut SessionShell,
    ) -> Result<(), ActorProcessingErr> {
        delay::before_message().await;
        match message {
            SessionMessage::Command { number, command, to } => {
                if let Some(reply) = state.run(number, command)? {
                    // A dead agent's successor starts from the log.
                    let _ = to.cast(AgentMessage::Reply { number, reply });
                }
            }
            SessionMessage::Append { number, events, reply } => {
                let appended: Result<_, AppendError> =
                    match state.run(number, Command::Append(events))? {
                        Some(Reply::Appended(events)) => Ok(events),
                        Some(Reply::Refused(error)) => Err(error),
                        other => return Err(format!("an append was answered by {other:?}").into()),
                    };
                // The caller may have given up.
                let _ = reply.send(appended);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<SessionMessage>,
        _event: SupervisionEvent,
        _state: &mut SessionShell,
    ) -> Result<(), ActorProcessingErr> {
        // It has no children; the default would stop it if it had.
        Ok(())
    }
}
