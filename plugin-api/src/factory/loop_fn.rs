//! A loop made of one async function.

use std::{collections::VecDeque, fmt, panic::AssertUnwindSafe, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    event::{CancelCause, TurnEndReason},
    machine::{Completion, Status},
    message::SharedMessage,
    protocol::{AgentMessage, CommandNo, SessionMessage},
    session::{Accept, Accepted, Command, Edited, InboxEdit, Reply},
    session_state::AppendError,
};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::task::JoinSet;

use super::{AgentFactory, AgentStart, Life};
use crate::{
    agent::{Agent, AgentFault, AnnouncedCancel, Disposal},
    cancel::CancelToken,
    hook::panic_failure,
    options::Durability,
    points::StatusChange,
    session::fresh_origin,
    world::World,
};

type Run = dyn Fn(OpenTurn) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync;

/// A loop made of one async function. See [`loop_fn`].
#[derive(Clone)]
pub struct LoopFn(Arc<Run>);

/// A turn that a [`LoopFn`] runs.
#[derive(Debug, Clone)]
pub struct OpenTurn {
    /// Whose.
    pub agent: Agent,
    /// Its number; `turn/start` stands in the log.
    pub turn: u32,
    /// The input that was claimed for it.
    pub messages: Vec<SharedMessage>,
    /// Fires when the turn is cancelled. The function is awaited for the grace time then, and
    /// dropped.
    pub cancel: CancelToken,
}

/// Drives agents by `run`, which is called once a turn and appends to the agent's session whatever
/// the turn is to leave behind.
///
/// All that makes input safe is kept: a message is accepted into the durable inbox, a turn is opened
/// in the log over what it claims, and closed with how `run` ended: `completed`, `error`, or
/// `aborted` if it was cancelled. Turns run one after the other; cancel, maintenance, disposal and
/// restarts are as with the loop of the library. What it has not: steps, models, tools and hooks.
///
/// ```
/// use playhouse_messages::event::NewEvent;
/// use playhouse_plugin_api::factory::{LoopFn, loop_fn};
///
/// /// Agents that note what they are told.
/// fn scribe() -> LoopFn {
///     loop_fn(|turn| async move {
///         for message in &turn.messages {
///             let note = serde_json::json!({ "text": message.text() });
///             turn.agent.session().append(NewEvent::custom("scribe/note", note).ignorable()).await?;
///         }
///         Ok(())
///     })
/// }
/// # let _ = scribe();
/// ```
pub fn loop_fn<F, Fut>(run: F) -> LoopFn
where
    F: Fn(OpenTurn) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
{
    LoopFn(Arc::new(move |turn| run(turn).boxed()))
}

impl fmt::Debug for LoopFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopFn").finish_non_exhaustive()
    }
}

impl AgentFactory for LoopFn {
    fn start(
        &self,
        start: AgentStart,
    ) -> BoxFuture<'static, Result<ActorRef<AgentMessage>, Failure>> {
        let run = self.0.clone();
        async move {
            let (supervisor, id) = (start.supervisor.clone(), start.agent.id().clone());
            let spawned = Driver::spawn_linked(None, Driver, (start, run), supervisor).await;
            let (actor, _) = spawned.map_err(|fault| {
                Failure::new("SPAWN_FAILED", format!("the actor of agent \"{id}\": {fault}"))
            })?;
            Ok(actor)
        }
        .boxed()
    }
}

/// The actor around the function.
struct Driver;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The log is being balanced.
    Repairing,
    Idle,
    /// Somebody has the agent for themselves.
    Maintenance,
    Opening,
    Running,
    Closing,
}

/// What the session is asked, and for whom.
enum Asked {
    Accept(RpcReplyPort<Result<Accepted, AppendError>>),
    Edit(RpcReplyPort<Result<Edited, AppendError>>),
    Clear,
    Driver,
}

struct State {
    agent: Agent,
    world: Arc<World>,
    run: Arc<Run>,
    myself: ActorRef<AgentMessage>,
    phase: Phase,
    /// Input was sent to be run.
    wake: bool,
    disposed: bool,
    turn: u32,
    origin: u64,
    next: u64,
    /// Commands without an answer, in order: what a restarted session is sent again.
    unanswered: VecDeque<(CommandNo, Command, Asked)>,
    idle: Vec<RpcReplyPort<()>>,
    tasks: JoinSet<()>,
}

impl State {
    fn ask(&mut self, command: Command, asked: Asked) {
        self.next += 1;
        let number = CommandNo { origin: self.origin, number: self.next };
        self.send(number, command.clone());
        self.unanswered.push_back((number, command, asked));
    }

    fn send(&self, number: CommandNo, command: Command) {
        let message = SessionMessage::Command { number, command, to: self.myself.clone() };
        // Between two lives of the session nobody hears it; its successor makes us send it again.
        let _ = self.agent.session().cell().appender.cast(message);
    }

    fn cancel(&mut self, cancel: AnnouncedCancel) {
        let AnnouncedCancel { cause, keep_inbox, .. } = cancel;
        self.disposed |= cause == CancelCause::Disposed;
        self.wake = false;
        if !keep_inbox {
            self.ask(Command::Edit(InboxEdit::Clear), Asked::Clear);
        }
        // One that came while no turn ran fired the token of the one before.
        self.agent.cell().token().cancel(cause);
    }

    fn answered(&mut self, number: CommandNo, reply: Reply) {
        if self.unanswered.front().is_none_or(|(front, ..)| *front != number) {
            return;
        }
        let Some((_, _, asked)) = self.unanswered.pop_front() else { return };
        match (asked, reply) {
            (Asked::Accept(port), Reply::Accepted(accepted)) => {
                let _ = port.send(Ok(accepted));
                self.settle();
            }
            (Asked::Accept(port), Reply::Refused(error)) => {
                let _ = port.send(Err(error));
            }
            (Asked::Edit(port), Reply::Edited(edited)) => {
                let _ = port.send(Ok(edited));
            }
            (Asked::Edit(port), Reply::Refused(error)) => {
                let _ = port.send(Err(error));
            }
            (Asked::Driver, Reply::Opened(Some(claimed))) => {
                self.turn = claimed.turn;
                self.phase = Phase::Running;
                self.start(claimed.messages);
            }
            (Asked::Driver, Reply::Repaired(repaired)) => {
                self.phase = Phase::Idle;
                self.wake |= repaired.prompts;
                self.settle();
            }
            (Asked::Driver, Reply::Closed(_) | Reply::Opened(None)) => self.rest(),
            (Asked::Driver, Reply::Refused(error)) => {
                self.tell_error(error.into());
                self.rest();
            }
            _ => {}
        }
    }

    /// Opens a turn if one is wanted and can be had; else answers those who wait for rest.
    fn settle(&mut self) {
        if self.phase != Phase::Idle {
            return;
        }
        if std::mem::take(&mut self.wake) && !self.disposed {
            self.phase = Phase::Opening;
            self.agent.cell().new_token();
            self.tell_status(Status::Running);
            self.ask(Command::OpenTurn { only_if_pending: true }, Asked::Driver);
            return;
        }
        for waiter in self.idle.drain(..) {
            let _ = waiter.send(());
        }
    }

    /// Runs the function over a turn.
    fn start(&mut self, messages: Vec<SharedMessage>) {
        let cancel = self.agent.cell().token();
        let (agent, turn) = (self.agent.clone(), self.turn);
        let turn = OpenTurn { agent, turn, messages, cancel: cancel.clone() };
        let (run, myself, grace) = (self.run.clone(), self.myself.clone(), self.world.limits.grace);
        self.tasks.spawn(async move {
            let run = AssertUnwindSafe(async { run(turn).await }).catch_unwind();
            let mut run = std::pin::pin!(run);
            let ended = match cancel.race(&mut run).await {
                Some(ended) => ended,
                None => tokio::time::timeout(grace, run).await.unwrap_or(Ok(Ok(()))),
            };
            let ended = ended.unwrap_or_else(|panic| Err(panic_failure(&*panic)));
            let _ = myself.cast(AgentMessage::Done(0, Completion::Stopping(ended)));
        });
    }

    fn ended(&mut self, ended: Result<(), Failure>) {
        let reason = match (self.agent.cell().token().cause(), ended) {
            (Some(cause), _) => cause.into(),
            (None, Ok(())) => TurnEndReason::Completed,
            (None, Err(failure)) => {
                self.tell_error(failure.clone());
                TurnEndReason::Error(failure)
            }
        };
        // After a clean end the next prompt has its turn.
        self.wake |= reason == TurnEndReason::Completed && !self.agent.inbox().is_empty();
        self.phase = Phase::Closing;
        let (turn, unless_steered) = (self.turn, false);
        self.ask(Command::CloseTurn { turn, reason, unless_steered }, Asked::Driver);
    }

    /// Makes the end of a turn durable before idle is announced.
    fn rest(&mut self) {
        let (agent, myself) = (self.agent.clone(), self.myself.clone());
        self.tasks.spawn(async move {
            if agent.durability() == Durability::Strict {
                // A failure stays with the writer, which is asked again.
                let _ = agent.session().flush().await;
            }
            let _ = myself.cast(AgentMessage::Done(0, Completion::Rested));
        });
    }

    fn tell_status(&self, status: Status) {
        self.agent.cell().set_status(status);
        let change = StatusChange { agent: self.agent.clone(), status };
        self.world.hooks.status.tell(self.agent.scope(), &change);
    }

    fn tell_error(&self, failure: Failure) {
        let agent = self.agent.id().clone();
        let fault = AgentFault { agent, turn: self.turn, step: 0, failure };
        self.world.hooks.error.tell(self.agent.scope(), &fault);
        self.agent.cell().tell_error(fault);
    }
}

impl Actor for Driver {
    type Msg = AgentMessage;
    type State = State;
    type Arguments = (AgentStart, Arc<Run>);

    async fn pre_start(
        &self,
        myself: ActorRef<AgentMessage>,
        (start, run): Self::Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let AgentStart { agent, world, life, .. } = start;
        let mut state = State {
            phase: match life {
                Life::First => Phase::Maintenance,
                Life::Successor => Phase::Repairing,
            },
            wake: false,
            disposed: *agent.cell().disposal().borrow() != Disposal::Live,
            turn: agent.session().view().last_turn,
            origin: fresh_origin(),
            next: 0,
            unanswered: VecDeque::new(),
            idle: Vec::new(),
            tasks: JoinSet::new(),
            agent,
            world,
            run,
            myself,
        };
        if life == Life::Successor {
            state.ask(Command::Repair { tail: None }, Asked::Driver);
            while let Some(cancel) = state.agent.cell().take_oldest_cancel() {
                state.cancel(cancel);
            }
        }
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<AgentMessage>,
        message: AgentMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        match message {
            AgentMessage::Send { message, target, wake, retry, reply } => {
                state.wake |= wake;
                let accept = Accept { message, target, open: false, retry };
                state.ask(Command::Accept(accept), Asked::Accept(reply));
            }
            AgentMessage::Edit { edit, reply } => {
                state.ask(Command::Edit(edit), Asked::Edit(reply));
            }
            AgentMessage::Cancel { announcement } => {
                if let Some(cancel) = state.agent.cell().take_cancel(announcement) {
                    state.cancel(cancel);
                }
            }
            AgentMessage::WhenIdle { reply } => {
                state.idle.push(reply);
                state.settle();
            }
            AgentMessage::Maintain { reply } => {
                let granted = state.phase == Phase::Idle && !state.disposed;
                if granted {
                    state.phase = Phase::Maintenance;
                    state.agent.cell().new_token();
                }
                let _ = reply.send(granted);
            }
            AgentMessage::Maintained => {
                if state.phase == Phase::Maintenance {
                    state.phase = Phase::Idle;
                    state.settle();
                }
            }
            AgentMessage::Reply { number, reply } => state.answered(number, reply),
            AgentMessage::Done(_, Completion::Stopping(ended)) => state.ended(ended),
            AgentMessage::Done(_, Completion::Rested) => {
                state.phase = Phase::Idle;
                state.tell_status(Status::Idle);
                state.settle();
            }
            AgentMessage::Done(..) => {}
            AgentMessage::SessionRestarted => {
                for (number, command, _) in &state.unanswered {
                    state.send(*number, command.clone());
                }
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<AgentMessage>,
        _event: SupervisionEvent,
        _state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        // It has no children; the default would stop it if it had.
        Ok(())
    }
}
