//! From inputs to effects: the part of the agent's actor that knows no model, tool or hook.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use playhouse_messages::{
    machine::{Completion, Effect, Input, Machine, Status, TaskNo, Ticket},
    protocol::{AgentMessage, CommandNo, SessionMessage},
    session::{Accepted, Command, Edited, InboxEdit, Reply},
    session_state::AppendError,
};
use playhouse_plugin_api::{
    agent::{Agent, AgentFault, AnnouncedCancel},
    points::StatusChange,
    session::fresh_origin,
    world::World,
};
use ractor::{ActorCell, ActorRef, RpcReplyPort};
use tokio::task::JoinSet;
use tracing::{Instrument, Span};

use super::work;

/// The state of an agent's actor.
pub struct Shell {
    agent: Agent,
    world: Arc<World>,
    supervisor: Arc<ActorCell>,
    myself: ActorRef<AgentMessage>,
    machine: Machine,
    waiters: BTreeMap<Ticket, Waiter>,
    idle: Vec<RpcReplyPort<()>>,
    /// Tells this life's commands from those of others.
    origin: u64,
    next: u64,
    /// Commands without an answer, in order: what a restarted session is sent again.
    unanswered: VecDeque<(CommandNo, Command)>,
    /// The turn that was traced last, and the step of it.
    turn_span: (u32, Span),
    step_span: (u32, Span),
    /// All asynchronous work; it ends with the actor.
    tasks: JoinSet<()>,
}

/// Somebody who waits for the machine's answer.
pub(super) enum Waiter {
    Accepted(RpcReplyPort<Result<Accepted, AppendError>>),
    Edited(RpcReplyPort<Result<Edited, AppendError>>),
    Maintenance(RpcReplyPort<bool>),
}

impl Shell {
    pub(super) fn new(
        agent: Agent,
        world: Arc<World>,
        supervisor: Arc<ActorCell>,
        myself: ActorRef<AgentMessage>,
        machine: Machine,
    ) -> Self {
        Self {
            agent,
            world,
            supervisor,
            myself,
            machine,
            waiters: BTreeMap::new(),
            idle: Vec::new(),
            origin: fresh_origin(),
            next: 0,
            unanswered: VecDeque::new(),
            turn_span: (0, Span::none()),
            step_span: (0, Span::none()),
            tasks: JoinSet::new(),
        }
    }

    pub(super) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Forgets tasks that have ended.
    pub(super) fn reap(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }

    pub(super) fn wait(&mut self, waiter: Waiter) -> Ticket {
        self.next += 1;
        self.waiters.insert(self.next, waiter);
        self.next
    }

    pub(super) fn input(&mut self, input: Input) {
        let moment = self.agent.cell().moment();
        for effect in self.machine.on(input, &moment) {
            self.perform(effect);
        }
        if self.machine.is_at_rest() {
            for waiter in self.idle.drain(..) {
                let _ = waiter.send(());
            }
        }
    }

    pub(super) fn cancel(&mut self, cancel: AnnouncedCancel) {
        let AnnouncedCancel { announcement, cause, keep_inbox } = cancel;
        let sent = self.unanswered.len();
        self.input(Input::Cancel { announcement, cause: cause.clone(), keep_inbox });
        // What drops pending input has to outlive this actor.
        let is_clear = |(_, command): &&_| matches!(command, Command::Edit(InboxEdit::Clear));
        if let Some((number, _)) = self.unanswered.iter().skip(sent).find(is_clear) {
            self.agent.cell().set_clearing(*number, cause);
        }
    }

    pub(super) fn when_idle(&mut self, reply: RpcReplyPort<()>) {
        if self.machine.is_at_rest() {
            let _ = reply.send(());
        } else {
            self.idle.push(reply);
        }
    }

    /// Sends a command to the session. If the session's actor is between two lives, its successor is
    /// sent it again.
    pub(super) fn command(&mut self, command: Command) {
        self.next += 1;
        let number = CommandNo { origin: self.origin, number: self.next };
        self.unanswered.push_back((number, command.clone()));
        self.send_command(number, command);
    }

    fn send_command(&self, number: CommandNo, command: Command) {
        let to = self.myself.clone();
        let message = SessionMessage::Command { number, command, to };
        let _ = self.agent.session().cell().appender.cast(message);
    }

    pub(super) fn resend(&self) {
        for (number, command) in &self.unanswered {
            self.send_command(*number, command.clone());
        }
    }

    pub(super) fn reply(&mut self, number: CommandNo, reply: Reply) {
        // Answers come in order; one that comes again, from a session that was sent the command
        // twice, finds another at the front.
        if self.unanswered.front().is_some_and(|(front, _)| *front == number) {
            self.unanswered.pop_front();
            self.agent.cell().answered(number);
            self.input(Input::Reply(reply));
        }
    }

    fn perform(&mut self, effect: Effect) {
        let cell = self.agent.cell();
        match effect {
            Effect::Command(command) => self.command(command),
            Effect::NewToken => cell.new_token(),
            Effect::Fire(cause) => {
                cell.token().cancel(cause);
            }
            Effect::Status(status) => self.tell_status(status),
            Effect::Report { turn, step, failure } => {
                let agent = self.agent.id().clone();
                tracing::warn!(%agent, turn, step, %failure, "a turn failed");
                let fault = AgentFault { agent, turn, step, failure };
                self.world.hooks.error.tell(self.agent.scope(), &fault);
                cell.tell_error(fault);
            }
            Effect::EndAttempt(outcome) => {
                if let Some(attempt) = self.agent.session().cell().feed().current() {
                    attempt.end(outcome);
                }
            }
            Effect::Accepted(ticket, outcome) => {
                if let Some(Waiter::Accepted(reply)) = self.waiters.remove(&ticket) {
                    self.acknowledge(reply, outcome);
                }
            }
            Effect::Edited(ticket, outcome) => {
                if let Some(Waiter::Edited(reply)) = self.waiters.remove(&ticket) {
                    let _ = reply.send(outcome);
                }
            }
            Effect::Maintenance(ticket, granted) => {
                if let Some(Waiter::Maintenance(reply)) = self.waiters.remove(&ticket) {
                    let _ = reply.send(granted);
                }
            }
            Effect::Propose { task, at, choice, claimed, owed } => {
                let job = self.job();
                self.run(task, at.turn, at.step, async move {
                    Completion::Proposed(work::propose(job, at, choice, claimed, owed).await)
                });
            }
            Effect::Prepare { task, at, choice, seed } => {
                let job = self.job();
                self.run(task, at.turn, at.step, async move {
                    Completion::Prepared(work::prepare(job, at, choice, seed).await)
                });
            }
            Effect::Dispatch { task, at, attempt, prepared, request } => {
                cell.attempts().store(attempt, Ordering::Relaxed);
                let job = self.job();
                self.run(task, at.turn, at.step, async move {
                    let route = prepared.config.route();
                    let span = tracing::info_span!("request", attempt, %route);
                    let streamed = work::dispatch(job, at, attempt, prepared, *request);
                    Completion::Streamed(streamed.instrument(span).await)
                });
            }
            Effect::Recover { task, at, prepared, failure } => {
                let job = self.job();
                self.run(task, at.turn, at.step, async move {
                    Completion::Recovered(work::recover(job, at, prepared, failure).await)
                });
            }
            Effect::RunTools { task, at, calls } => {
                let job = self.job();
                let supervisor = self.supervisor.clone();
                self.run(task, at.turn, at.step, async move {
                    Completion::ToolsRun(work::run_tools(job, at, calls, &supervisor).await)
                });
            }
            Effect::Stopping { task, turn } => {
                let job = self.job();
                self.run(task, turn, 0, async move {
                    Completion::Stopping(work::stopping(job, turn).await)
                });
            }
            Effect::Rest { task } => {
                let job = self.job();
                let turn = self.machine.turn();
                self.run(task, turn, 0, async move {
                    work::rest(job, turn).await;
                    Completion::Rested
                });
            }
        }
    }

    fn tell_status(&self, status: Status) {
        if self.agent.status() == status {
            return;
        }
        self.agent.cell().set_status(status);
        let change = StatusChange { agent: self.agent.clone(), status };
        self.world.hooks.status.tell(self.agent.scope(), &change);
    }

    /// Answers a sender: at once, or once the store has caught up.
    fn acknowledge(
        &mut self,
        reply: RpcReplyPort<Result<Accepted, AppendError>>,
        outcome: Result<Accepted, AppendError>,
    ) {
        let session = self.agent.session().clone();
        if !session.is_behind() {
            let _ = reply.send(outcome);
            return;
        }
        self.tasks.spawn(async move {
            session.caught_up().await;
            let _ = reply.send(outcome);
        });
    }

    /// The span of a step, or of its turn for work outside steps. One of each is kept, so that all
    /// work of a step is in the same one.
    fn span(&mut self, turn: u32, step: u32) -> Span {
        if self.turn_span.0 != turn {
            let span = tracing::info_span!(parent: self.agent.span(), "turn", turn);
            self.turn_span = (turn, span);
            self.step_span = (0, Span::none());
        }
        if step == 0 {
            return self.turn_span.1.clone();
        }
        if self.step_span.0 != step {
            let span = tracing::info_span!(parent: &self.turn_span.1, "step", step);
            self.step_span = (step, span);
        }
        self.step_span.1.clone()
    }

    fn job(&self) -> work::Job {
        work::Job {
            agent: self.agent.clone(),
            world: self.world.clone(),
            cancel: self.agent.cell().token(),
        }
    }

    /// Runs a piece of work in a task of its own, which reports back.
    fn run(
        &mut self,
        task: TaskNo,
        turn: u32,
        step: u32,
        work: impl Future<Output = Completion> + Send + 'static,
    ) {
        let myself = self.myself.clone();
        let span = self.span(turn, step);
        let report = async move {
            let completion = work.await;
            // The actor is gone only if its state, and so this task, is going.
            let _ = myself.cast(AgentMessage::Done(task, completion));
        };
        self.tasks.spawn(report.instrument(span));
    }
}
