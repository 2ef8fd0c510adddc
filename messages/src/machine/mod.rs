//! The turn and step machine: the loop's every decision, without a clock, a task or an await.
//!
//! The agent's actor feeds it [`Input`]s and performs the [`Effect`]s it returns. The rules are
//! those of the core specification, section 4; the two that its actors add:
//!
//! - **A cancel is announced before it queues.** Tasks see the token fire at once. Completions and
//!   replies that arrive while an announced cancel is still on its way are parked until it is here,
//!   so no turn closes, and no latched wake replays, ahead of a cancel that came first.
//! - **The session answers later.** Commands are sent without waiting, in order. A wake that
//!   arrives while a closing command is on its way is remembered, so none is lost.

mod effect;
mod front;
mod input;
mod refusal;
mod stage;
mod step;

use std::collections::VecDeque;

pub use effect::{Effect, Status};
pub use input::{
    Completion, Decision, Entry, Input, Moment, Preparation, Proposal, Recovery, Streamed, TaskNo,
    Ticket,
};
use stage::Stage;

use crate::{
    chunk::Failure,
    config::ModelChoice,
    event::{BudgetSpent, StepAt, TurnEndReason},
    repair::UnsettledTail,
    session::{Claimed, Closed, Command, Repaired, Reply},
    session_state::AppendError,
};

/// What an agent was made with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoopOptions {
    /// The route to use while the session records no choice.
    pub initial: Option<ModelChoice>,
    /// The output limit of one request, in tokens.
    pub max_tokens: Option<u64>,
    /// The most steps of one turn; 0 for no limit.
    pub max_steps: u32,
}

/// The machine of one agent instance.
#[derive(Debug)]
pub struct Machine {
    options: LoopOptions,
    phase: Phase,
    /// Commands whose replies are due, oldest first.
    awaiting: VecDeque<Awaiting>,
    /// The last announced cancel that has arrived.
    cancels_handled: u64,
    /// Inputs that wait for an announced cancel.
    parked: VecDeque<Input>,
    tasks: TaskNo,
    attempts: u64,
    header_logged: bool,
    generation_mark: u64,
    last_turn: u32,
    /// The end of a turn came with the log, perhaps by repair, and may not be durable yet.
    unrested: bool,
    disposed: bool,
}

#[derive(Debug)]
enum Phase {
    /// The log is being balanced after a restart; wakes are latched.
    Repairing {
        wake: bool,
    },
    Idle,
    /// Somebody has the agent for themselves; wakes are latched.
    Maintenance {
        wake: bool,
    },
    Running(Run),
}

#[derive(Debug)]
struct Run {
    turn: u32,
    /// The last step that was opened in the turn.
    step: u32,
    stage: Stage,
    /// How the turn would end if nothing more came.
    ends: Option<Ends>,
    /// A waking send arrived after the cancel: run it once idle.
    latch: bool,
    /// A waking send arrived while no turn was sure to claim it: run it if none did.
    reopen: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Completed,
    MaxTokens,
}

#[derive(Debug)]
enum Awaiting {
    Accept { ticket: Ticket, opens: bool },
    Edit(Ticket),
    Clear,
    Driver,
}

impl Run {
    /// A run whose turn is closed.
    fn closed(turn: u32) -> Self {
        let stage = Stage::Closing { stop: true };
        Self { turn, step: 0, stage, ends: None, latch: false, reopen: false }
    }
}

impl Machine {
    /// A machine for a session whose log is balanced, held in maintenance until
    /// [`Input::Maintained`]: how creation keeps early input from running.
    ///
    /// `content` is the surface's content generation at attachment, `turn` the last turn; `wake`
    /// opens another once it is released.
    pub fn held(options: LoopOptions, content: u64, turn: u32, cancels: u64, wake: bool) -> Self {
        Self {
            options,
            phase: Phase::Maintenance { wake },
            awaiting: VecDeque::new(),
            cancels_handled: cancels,
            parked: VecDeque::new(),
            tasks: 0,
            attempts: 0,
            header_logged: false,
            generation_mark: content,
            last_turn: turn,
            unrested: turn > 0,
            disposed: false,
        }
    }

    /// A machine that takes over from one that died: it first balances the log, then runs what was
    /// sent to be run. `cancels` is the number of cancels announced so far: they died with the
    /// predecessor's mailbox. `attempts` continues its count.
    /// `tail` is what was shown of an attempt that the predecessor did not settle.
    pub fn successor(
        options: LoopOptions,
        cancels: u64,
        attempts: u64,
        tail: Option<UnsettledTail>,
    ) -> (Self, Command) {
        let mut machine = Self::held(options, 0, 0, cancels, false);
        machine.phase = Phase::Repairing { wake: false };
        machine.attempts = attempts;
        machine.awaiting.push_back(Awaiting::Driver);
        (machine, Command::Repair { tail })
    }

    /// Whether nothing runs, is reserved, or is being closed.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// Whether it is idle, and its log holds all that it was told to do: a cancel of an idle agent is
    /// over when what waited is gone.
    pub fn is_at_rest(&self) -> bool {
        self.is_idle() && self.awaiting.is_empty()
    }

    /// The turn that is open, or the last one that was.
    pub fn turn(&self) -> u32 {
        match &self.phase {
            Phase::Running(run) => run.turn,
            _ => self.last_turn,
        }
    }

    /// The open step, if one is.
    pub fn step(&self) -> Option<StepAt> {
        match &self.phase {
            Phase::Running(run) if run.stage.has_step() => {
                Some(StepAt { turn: run.turn, step: run.step })
            }
            _ => None,
        }
    }

    /// Takes one input; returns what is to be done, in order.
    pub fn on(&mut self, input: Input, moment: &Moment) -> Vec<Effect> {
        let mut out = Vec::new();
        self.take(input, moment, &mut out);
        out
    }

    fn take(&mut self, input: Input, moment: &Moment, out: &mut Vec<Effect>) {
        let expects_cancel = moment.cancels_announced > self.cancels_handled;
        match input {
            Input::Send { ticket, message, target, wake, retry } => {
                self.send(ticket, message, target, wake, retry, moment, out);
            }
            Input::Edit { ticket, edit } => {
                self.command(Awaiting::Edit(ticket), Command::Edit(edit), out);
            }
            Input::Cancel { announcement, cause, keep_inbox } => {
                self.cancel(announcement, cause.clone(), keep_inbox, out);
                // The announcement fired the token before it queued; what was parked sees it so.
                let moment = Moment {
                    cancelled: moment.cancelled.clone().or(Some(cause)),
                    cancels_announced: moment.cancels_announced,
                };
                while moment.cancels_announced <= self.cancels_handled {
                    let Some(input) = self.parked.pop_front() else { break };
                    self.take(input, &moment, out);
                }
            }
            Input::Maintain { ticket } => {
                let granted = self.is_idle() && !self.disposed;
                if granted {
                    self.phase = Phase::Maintenance { wake: false };
                    out.push(Effect::NewToken);
                }
                out.push(Effect::Maintenance(ticket, granted));
            }
            input if expects_cancel => self.parked.push_back(input),
            Input::Maintained => {
                if let Phase::Maintenance { wake } = self.phase {
                    self.phase = Phase::Idle;
                    let unrested = std::mem::take(&mut self.unrested);
                    if wake && !self.disposed {
                        self.open(true, out);
                    } else if unrested {
                        self.phase = Phase::Running(Run::closed(self.last_turn));
                        self.rest(out);
                    }
                }
            }
            Input::Reply(reply) => self.reply(reply, moment, out),
            Input::Done(task, completion) => self.done(task, completion, moment, out),
        }
    }

    /// Leaves idle for a turn that a command in flight opens.
    fn begin_run(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Running(Run {
            turn: self.last_turn,
            step: 0,
            stage: Stage::Opening,
            ends: None,
            latch: false,
            reopen: false,
        });
        out.push(Effect::NewToken);
        out.push(Effect::Status(Status::Running));
    }

    /// Opens a turn from idle over what is pending.
    fn open(&mut self, only_if_pending: bool, out: &mut Vec<Effect>) {
        self.begin_run(out);
        self.command(Awaiting::Driver, Command::OpenTurn { only_if_pending }, out);
    }

    fn command(&mut self, awaiting: Awaiting, command: Command, out: &mut Vec<Effect>) {
        self.awaiting.push_back(awaiting);
        out.push(Effect::Command(command));
    }

    fn drive(&mut self, command: Command, out: &mut Vec<Effect>) {
        self.command(Awaiting::Driver, command, out);
    }

    fn next_task(&mut self) -> TaskNo {
        self.tasks += 1;
        self.tasks
    }

    fn reply(&mut self, reply: Reply, moment: &Moment, out: &mut Vec<Effect>) {
        let Some(awaiting) = self.awaiting.pop_front() else {
            debug_assert!(false, "a reply without a command: {reply:?}");
            return;
        };
        match (awaiting, reply) {
            (Awaiting::Accept { ticket, opens }, Reply::Accepted(accepted)) => {
                let opened = accepted.opened.clone();
                out.push(Effect::Accepted(ticket, Ok(accepted)));
                if opens {
                    self.opened(opened, moment, out);
                }
            }
            (Awaiting::Accept { ticket, opens }, Reply::Refused(error)) => {
                out.push(Effect::Accepted(ticket, Err(error)));
                if opens {
                    self.rest_idle(out);
                }
            }
            (Awaiting::Edit(ticket), Reply::Edited(edited)) => {
                out.push(Effect::Edited(ticket, Ok(edited)));
            }
            (Awaiting::Edit(ticket), Reply::Refused(error)) => {
                out.push(Effect::Edited(ticket, Err(error)));
            }
            (Awaiting::Clear, Reply::Refused(error)) => self.report(error.into(), out),
            (Awaiting::Clear, _) => {}
            (Awaiting::Driver, reply) => self.driver_reply(reply, moment, out),
            (awaiting, reply) => debug_assert!(false, "{awaiting:?} answered by {reply:?}"),
        }
    }

    fn driver_reply(&mut self, reply: Reply, moment: &Moment, out: &mut Vec<Effect>) {
        match reply {
            Reply::Opened(claimed) => self.opened(claimed.map(Ok), moment, out),
            Reply::Claimed(claimed) => self.propose(claimed, moment, out),
            Reply::Closed(Closed::Steered) => {
                // The turn goes on: what arrived meanwhile is its driver's to claim.
                if let Phase::Running(run) = &mut self.phase {
                    run.reopen = false;
                }
                if !self.aborted(moment, out) {
                    self.claim(out);
                }
            }
            Reply::Closed(Closed::Ended { pending }) => self.closed(pending, moment, out),
            Reply::Repaired(repaired) => self.repaired(repaired, out),
            Reply::Refused(error) => self.refused(error, moment, out),
            reply => self.step_reply(reply, moment, out),
        }
    }

    fn repaired(&mut self, repaired: Repaired, out: &mut Vec<Effect>) {
        self.generation_mark = repaired.generation;
        self.last_turn = repaired.last_turn;
        let Phase::Repairing { wake } = self.phase else { return };
        self.phase = Phase::Idle;
        // What woke it meanwhile was accepted behind the repair, which has not seen it.
        let wake = wake && !self.disposed;
        if wake && (repaired.pending || self.last_turn == 0) || repaired.prompts && !self.disposed {
            self.open(true, out);
        } else if self.last_turn == 0 {
            // Nothing has run, so there is no end to make durable; a session that nobody has used
            // must leave no trace.
            out.push(Effect::Status(Status::Idle));
        } else {
            // The closers are as durable as any turn's end before idle is announced. The
            // predecessor may have died running, so it is announced.
            self.phase = Phase::Running(Run { reopen: wake, ..Run::closed(self.last_turn) });
            self.rest(out);
        }
    }

    fn opened(
        &mut self,
        opened: Option<Result<Claimed, AppendError>>,
        moment: &Moment,
        out: &mut Vec<Effect>,
    ) {
        match opened {
            Some(Ok(claimed)) => {
                if let Phase::Running(run) = &mut self.phase {
                    run.turn = claimed.turn;
                    // Whatever waits is this turn's driver's to claim now.
                    run.reopen = false;
                    self.last_turn = claimed.turn;
                }
                self.propose(claimed, moment, out);
            }
            Some(Err(error)) => {
                self.report(error.into(), out);
                self.rest_idle(out);
            }
            None => self.rest_idle(out),
        }
    }

    /// S0 to S3: abort check, capture of the model choice, assembly and pre-step chain.
    fn propose(&mut self, claimed: Claimed, moment: &Moment, out: &mut Vec<Effect>) {
        if self.aborted(moment, out) {
            return;
        }
        let choice = claimed.choice.or_else(|| self.options.initial.clone());
        let Some(choice) = choice.filter(|c| !c.provider.is_empty() && !c.model.is_empty()) else {
            self.fail_turn(
                Failure::new(
                    "NO_MODEL",
                    "the agent has no provider and model: record a model selection in the session, \
                     or set both in the agent's options",
                ),
                out,
            );
            return;
        };
        let task = self.next_task();
        let Phase::Running(run) = &mut self.phase else { return };
        let at = StepAt { turn: run.turn, step: run.step + 1 };
        run.stage = Stage::Proposing { task, choice: choice.clone() };
        let owed = run.step > 0 && run.ends.is_none();
        out.push(Effect::Propose { task, at, choice, claimed: claimed.messages, owed });
    }

    /// S14: claims steering for a further step, unless the turn has had its steps.
    fn claim(&mut self, out: &mut Vec<Effect>) {
        let limit = self.options.max_steps;
        let Phase::Running(run) = &mut self.phase else { return };
        if limit != 0 && run.step >= limit {
            let spent = BudgetSpent {
                resource: "steps".to_owned(),
                limit: u64::from(limit),
                used: u64::from(run.step),
            };
            self.close(TurnEndReason::Budget(spent), true, out);
            return;
        }
        run.stage = Stage::Claiming;
        self.drive(Command::Claim, out);
    }

    /// Closes the turn as its cancel says, if its token has fired and no step is open.
    fn aborted(&mut self, moment: &Moment, out: &mut Vec<Effect>) -> bool {
        let Some(cause) = &moment.cancelled else { return false };
        self.close(cause.clone().into(), true, out);
        true
    }

    /// Closes the turn with an error that `agent/error` also tells.
    fn fail_turn(&mut self, failure: Failure, out: &mut Vec<Effect>) {
        self.fail_step(0, failure, out);
    }

    /// As [`Machine::fail_turn`], for a failure of a step.
    fn fail_step(&mut self, step: u32, failure: Failure, out: &mut Vec<Effect>) {
        out.push(Effect::Report { turn: self.turn(), step, failure: failure.clone() });
        let failure = failure.loggable();
        self.close(TurnEndReason::Error(failure), true, out);
    }

    /// Sends the closing command. `stop`: the driver stops even if input waits.
    fn close(&mut self, reason: TurnEndReason, stop: bool, out: &mut Vec<Effect>) {
        let Phase::Running(run) = &mut self.phase else { return };
        run.stage = Stage::Closing { stop };
        let turn = run.turn;
        let unless_steered = !stop;
        self.drive(Command::CloseTurn { turn, reason, unless_steered }, out);
    }

    /// T4: on to the next turn, or to rest.
    fn closed(&mut self, pending: bool, moment: &Moment, out: &mut Vec<Effect>) {
        let Phase::Running(run) = &mut self.phase else { return };
        let Stage::Closing { stop } = run.stage else {
            debug_assert!(false, "closed in {:?}", run.stage);
            return;
        };
        let go_on = !stop && (pending || run.reopen) && moment.cancelled.is_none();
        if !go_on || self.disposed {
            self.rest(out);
            return;
        }
        run.step = 0;
        run.ends = None;
        run.latch = false;
        run.reopen = false;
        run.stage = Stage::Opening;
        out.push(Effect::NewToken);
        self.drive(Command::OpenTurn { only_if_pending: true }, out);
    }

    /// The driver stops: once the end is durable, idle.
    fn rest(&mut self, out: &mut Vec<Effect>) {
        let task = self.next_task();
        if let Phase::Running(run) = &mut self.phase {
            run.stage = Stage::Resting { task };
            out.push(Effect::Rest { task });
        }
    }

    fn rest_idle(&mut self, out: &mut Vec<Effect>) {
        let Phase::Running(run) = &self.phase else { return };
        let wake = (run.latch || run.reopen) && !self.disposed;
        self.phase = Phase::Idle;
        out.push(Effect::Status(Status::Idle));
        if wake {
            self.open(true, out);
        }
    }

    fn report(&self, failure: Failure, out: &mut Vec<Effect>) {
        let step = match &self.phase {
            Phase::Running(run) if run.stage.has_step() => run.step,
            _ => 0,
        };
        out.push(Effect::Report { turn: self.turn(), step, failure });
    }
}

#[cfg(test)]
mod tests;
