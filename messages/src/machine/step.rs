//! What happens between `step/start` and `step/end`: attempts, settlement, tools.

use std::sync::Arc;

use super::{
    Completion, Decision, Effect, Ends, Entry, Machine, Moment, Phase, Preparation, Proposal,
    Recovery, Run, Streamed, TaskNo,
};
use crate::{
    chunk::Failure,
    config::{Header, ModelChoice, ToolList},
    content::ToolCallBlock,
    event::{StepAt, TurnEndReason},
    frame::FrameOutcome,
    prepared::Prepared,
    request::{check_proposal, seed_config},
    session::{Admission, Admitted, Command, Reply, Settled, StepEnded},
    settlement::{Settlement, settle},
};

/// Where a running turn stands.
#[derive(Debug)]
pub(super) enum Stage {
    /// A command that opens the turn is on its way.
    Opening,
    /// Assembly and the pre-step chain run.
    Proposing { task: TaskNo, choice: ModelChoice },
    /// `step/start` is on its way.
    Starting(Box<Step>),
    /// The request chain and the provider's resolution run.
    Preparing { task: TaskNo, step: Box<Step> },
    /// The admission is on its way.
    Admitting { step: Box<Step>, prepared: Arc<Prepared> },
    /// The model answers.
    Streaming { task: TaskNo, step: Box<Step>, prepared: Arc<Prepared> },
    /// The settlement is on its way.
    Settling { step: Box<Step>, prepared: Arc<Prepared>, then: Then },
    /// The request-error chain runs.
    Recovering { task: TaskNo, step: Box<Step>, failure: Failure, standing: Option<Arc<Header>> },
    /// Tools run.
    Tools { task: TaskNo },
    /// `step/end` is on its way.
    Ending(Outcome),
    /// The turn-stopping listeners run.
    Stopping { task: TaskNo },
    /// The claim for a further step is on its way.
    Claiming,
    /// `turn/end` is on its way.
    Closing { stop: bool },
    /// The turn is closed, and its end is being made durable.
    Resting { task: TaskNo },
}

impl Stage {
    /// Whether a step is open, or is being closed.
    pub(super) fn has_step(&self) -> bool {
        matches!(
            self,
            Self::Preparing { .. }
                | Self::Admitting { .. }
                | Self::Streaming { .. }
                | Self::Settling { .. }
                | Self::Recovering { .. }
                | Self::Tools { .. }
                | Self::Ending(_)
        )
    }

    /// Whether what arrives may find no turn that claims it: the turn is being closed, or the
    /// command that opens one may come to nothing.
    pub(super) fn may_miss(&self) -> bool {
        matches!(self, Self::Opening | Self::Closing { .. } | Self::Resting { .. })
    }

    fn task(&self) -> Option<TaskNo> {
        match self {
            Self::Proposing { task, .. }
            | Self::Preparing { task, .. }
            | Self::Streaming { task, .. }
            | Self::Recovering { task, .. }
            | Self::Tools { task }
            | Self::Stopping { task }
            | Self::Resting { task } => Some(*task),
            _ => None,
        }
    }
}

/// What stays the same over the attempts of a step.
#[derive(Debug)]
pub(super) struct Step {
    choice: ModelChoice,
    /// A prompt that cannot be rendered fails the step that wanted it, once it is open.
    prompt: Result<Arc<str>, Failure>,
    tools: ToolList,
    /// Taken by the first admission.
    entry: Option<Entry>,
}

/// What follows a settlement.
#[derive(Debug)]
pub(super) enum Then {
    /// Run the calls, or end the step if there are none.
    Act { calls: Vec<ToolCallBlock>, max_tokens: bool },
    /// Ask the request-error chain.
    Recover(Failure),
    /// The step fails.
    Fail(Failure),
    /// The step is cancelled.
    Cancelled,
}

/// How a step ends.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The model is done, or a tool concluded the turn.
    Completed,
    /// The output limit cut the answer.
    MaxTokens,
    /// Tool results go back to the model.
    Continue,
    /// It failed; a cancel takes precedence over the failure.
    Failed(Failure),
    /// It was cancelled.
    Cancelled,
}

impl Machine {
    pub(super) fn done(
        &mut self,
        task: TaskNo,
        completion: Completion,
        moment: &Moment,
        out: &mut Vec<Effect>,
    ) {
        let Phase::Running(run) = &mut self.phase else { return };
        if run.stage.task() != Some(task) {
            return; // Work of an activity that is over.
        }
        // Each arm puts the next stage in place.
        let stage = std::mem::replace(&mut run.stage, Stage::Opening);
        let cancelled = moment.cancelled.is_some();
        match (stage, completion) {
            (Stage::Proposing { choice, .. }, Completion::Proposed(proposed)) => {
                if self.aborted(moment, out) {
                    return;
                }
                match proposed {
                    Ok(proposal) => self.enter(proposal, choice, out),
                    Err(failure) => self.fail_turn(failure, out),
                }
            }
            (Stage::Preparing { step, .. }, Completion::Prepared(prepared)) => match prepared {
                _ if cancelled => self.end_step(Outcome::Cancelled, out),
                Ok(preparation) => self.admit(step, preparation, out),
                Err(failure) => self.end_step(Outcome::Failed(failure), out),
            },
            (Stage::Streaming { step, prepared, .. }, Completion::Streamed(streamed)) => {
                self.streamed(step, prepared, streamed, cancelled, out);
            }
            (Stage::Recovering { step, failure, standing, .. }, Completion::Recovered(verdict)) => {
                match verdict {
                    _ if cancelled => self.end_step(Outcome::Cancelled, out),
                    Ok(Recovery::Retry) => self.prepare(step, standing.as_deref(), out),
                    Ok(Recovery::RetryWith(choice)) => {
                        self.prepare(Box::new(Step { choice, ..*step }), standing.as_deref(), out);
                    }
                    Ok(Recovery::Fail) => self.end_step(Outcome::Failed(failure), out),
                    Err(failure) => self.end_step(Outcome::Failed(failure), out),
                }
            }
            (Stage::Tools { .. }, Completion::ToolsRun(run)) => {
                let outcome = match run {
                    Ok(true) => Outcome::Completed,
                    Ok(false) => Outcome::Continue,
                    Err(failure) => Outcome::Failed(failure),
                };
                self.end_step(outcome, out);
            }
            (Stage::Stopping { .. }, Completion::Stopping(told)) => {
                if self.aborted(moment, out) {
                    return;
                }
                match told {
                    Ok(()) => self.finish_turn(out),
                    Err(failure) => self.fail_turn(failure, out),
                }
            }
            (Stage::Resting { .. }, Completion::Rested) => self.rest_idle(out),
            (stage, completion) => {
                debug_assert!(false, "{completion:?} in {stage:?}");
                run_of(&mut self.phase).stage = stage;
            }
        }
    }

    /// S5 to S8.
    fn enter(&mut self, proposal: Proposal, choice: ModelChoice, out: &mut Vec<Effect>) {
        let run = run_of(&mut self.phase);
        let entry = match proposal.decision.clone() {
            Decision::Reject => return self.close(TurnEndReason::Blocked, true, out),
            Decision::Enter(entry) => entry,
        };
        if entry.messages.is_empty() && run.ends.is_some() {
            return self.finish_turn(out);
        }
        if entry.messages.is_empty() && run.step == 0 {
            return self.close(TurnEndReason::Completed, true, out);
        }
        run.step += 1;
        let at = StepAt { turn: run.turn, step: run.step };
        let Proposal { prompt, tools, .. } = proposal;
        let step = Step { choice, prompt, tools, entry: Some(entry) };
        run.stage = Stage::Starting(Box::new(step));
        self.drive(Command::StartStep(at), out);
    }

    fn prepare(&mut self, step: Box<Step>, header: Option<&Header>, out: &mut Vec<Effect>) {
        let first = !self.header_logged;
        let seed = seed_config(header, first, &step.choice, self.options.max_tokens);
        let choice = step.choice.clone();
        let task = self.next_task();
        let run = run_of(&mut self.phase);
        let at = run.at();
        run.stage = Stage::Preparing { task, step };
        out.push(Effect::Prepare { task, at, choice, seed });
    }

    /// P2 to P6.
    fn admit(&mut self, mut step: Box<Step>, preparation: Preparation, out: &mut Vec<Effect>) {
        let Preparation { proposed, prepared, context } = preparation;
        if let Err(failure) = check_proposal(&step.choice, &proposed) {
            return self.end_step(Outcome::Failed(failure), out);
        }
        let run = run_of(&mut self.phase);
        let entry = step.entry.take();
        let (starts_series, candidate, users) = match entry {
            Some(entry) => (entry.starts_series, entry.candidate, Some(entry.messages)),
            None => (false, None, None),
        };
        let admission = Admission {
            at: run.at(),
            users,
            candidate,
            context,
            // A step without a prompt never gets this far.
            prompt: step.prompt.clone().unwrap_or_else(|_| Arc::from("")),
            tools: step.tools.clone(),
            prepared: prepared.clone(),
            starts_series,
            header_logged: self.header_logged,
            generation_mark: self.generation_mark,
        };
        run.stage = Stage::Admitting { step, prepared };
        self.drive(Command::Admit(Box::new(admission)), out);
    }

    pub(super) fn step_reply(&mut self, reply: Reply, moment: &Moment, out: &mut Vec<Effect>) {
        let Phase::Running(run) = &mut self.phase else { return };
        let stage = std::mem::replace(&mut run.stage, Stage::Opening);
        let cancelled = moment.cancelled.is_some();
        match (stage, reply) {
            (Stage::Starting(step), Reply::StepStarted(standing)) => match &step.prompt {
                _ if cancelled => self.end_step(Outcome::Cancelled, out),
                Err(failure) => self.end_step(Outcome::Failed(failure.clone()), out),
                Ok(_) => self.prepare(step, standing.header.as_deref(), out),
            },
            (Stage::Admitting { step, prepared }, Reply::Admitted(admitted)) => {
                let Admitted { request, generation, fault } = *admitted;
                self.header_logged = true;
                self.generation_mark = generation;
                if cancelled {
                    return self.end_step(Outcome::Cancelled, out);
                }
                if let Some(failure) = fault {
                    return self.end_step(Outcome::Failed(failure), out);
                }
                let task = self.next_task();
                self.attempts += 1;
                let run = run_of(&mut self.phase);
                let at = run.at();
                out.push(Effect::Dispatch {
                    task,
                    at,
                    attempt: self.attempts,
                    prepared: prepared.clone(),
                    request: Box::new(request),
                });
                run.stage = Stage::Streaming { task, step, prepared };
            }
            (Stage::Settling { step, prepared, then }, Reply::Settled(settled)) => {
                self.settled(step, prepared, then, settled, cancelled, out);
            }
            (Stage::Ending(outcome), Reply::StepEnded(ended)) => {
                self.step_ended(outcome, ended, moment, out);
            }
            (stage, reply) => {
                debug_assert!(false, "{reply:?} in {stage:?}");
                run_of(&mut self.phase).stage = stage;
            }
        }
    }

    fn streamed(
        &mut self,
        step: Box<Step>,
        prepared: Arc<Prepared>,
        streamed: Streamed,
        cancelled: bool,
        out: &mut Vec<Effect>,
    ) {
        let (stream, end, message_id) = match streamed {
            Streamed::NotStarted(failure) => {
                let outcome = if cancelled { Outcome::Cancelled } else { Outcome::Failed(failure) };
                return self.end_step(outcome, out);
            }
            Streamed::Stream { stream, end, message_id } => (stream, end, message_id),
        };
        let (event, then) = match settle(*stream, end, cancelled, message_id) {
            Settlement::Message { event, calls, max_tokens } => {
                (event, Then::Act { calls, max_tokens })
            }
            Settlement::Interrupted { event } | Settlement::Cancelled { event } => {
                (event, Then::Cancelled)
            }
            Settlement::Failed { event, failure } => (event, Then::Recover(failure)),
            Settlement::Thrown { event, failure } => (event, Then::Fail(failure)),
            Settlement::Unassembled { failure } => {
                out.push(Effect::EndAttempt(FrameOutcome::Abandoned));
                return self.end_step(Outcome::Failed(failure), out);
            }
        };
        run_of(&mut self.phase).stage = Stage::Settling { step, prepared, then };
        self.drive(Command::Settle(Box::new(event)), out);
    }

    fn settled(
        &mut self,
        step: Box<Step>,
        prepared: Arc<Prepared>,
        then: Then,
        settled: Settled,
        cancelled: bool,
        out: &mut Vec<Effect>,
    ) {
        let Settled { seq, kind, standing } = settled;
        let event_type = kind.to_owned();
        out.push(Effect::EndAttempt(FrameOutcome::Committed { event_type, seq }));
        match then {
            Then::Cancelled => self.end_step(Outcome::Cancelled, out),
            Then::Fail(failure) => self.end_step(Outcome::Failed(failure), out),
            Then::Recover(_) if cancelled => self.end_step(Outcome::Cancelled, out),
            Then::Recover(failure) => {
                let task = self.next_task();
                let run = run_of(&mut self.phase);
                out.push(Effect::Recover {
                    task,
                    at: run.at(),
                    prepared,
                    failure: failure.clone(),
                });
                run.stage = Stage::Recovering { task, step, failure, standing: standing.header };
            }
            Then::Act { max_tokens: true, .. } => self.end_step(Outcome::MaxTokens, out),
            Then::Act { calls, .. } if calls.is_empty() => self.end_step(Outcome::Completed, out),
            // A fired token is the executor's business: it answers every call as aborted.
            Then::Act { calls, .. } => {
                let task = self.next_task();
                let run = run_of(&mut self.phase);
                out.push(Effect::RunTools { task, at: run.at(), calls });
                run.stage = Stage::Tools { task };
            }
        }
    }

    pub(super) fn end_step(&mut self, outcome: Outcome, out: &mut Vec<Effect>) {
        let run = run_of(&mut self.phase);
        let at = run.at();
        run.stage = Stage::Ending(outcome);
        // Even after a batch that is said to be done: a call that an executor forgot would make
        // every later request of the session one that no provider takes.
        self.drive(Command::EndStep { at, recover: true }, out);
    }

    /// S10 to S14.
    fn step_ended(
        &mut self,
        outcome: Outcome,
        ended: StepEnded,
        moment: &Moment,
        out: &mut Vec<Effect>,
    ) {
        let step = run_of(&mut self.phase).step;
        if let Some(fault) = ended.unrecovered {
            let cause = match &outcome {
                Outcome::Failed(failure) => format!("[{failure}; {fault}]"),
                _ => fault.to_string(),
            };
            let text = "Step failed and its pending tool results could not be recorded";
            let failure = Failure::unknown(format!("{text}: {cause}"));
            if moment.cancelled.is_some() {
                out.push(Effect::Report { turn: self.turn(), step, failure });
                self.aborted(moment, out);
                return;
            }
            return self.fail_step(step, failure, out);
        }
        if self.aborted(moment, out) {
            return;
        }
        let run = run_of(&mut self.phase);
        let ends = match outcome {
            Outcome::Failed(failure) => return self.fail_step(step, failure, out),
            // The cancel that ended the step is no longer in force: the token it fired on was this
            // turn's, so this cannot happen; if it does, the turn has still failed.
            Outcome::Cancelled => {
                let failure = Failure::new("ABORTED", "the step was cancelled");
                return self.fail_step(step, failure, out);
            }
            Outcome::Completed => Some(Ends::Completed),
            Outcome::MaxTokens => Some(Ends::MaxTokens),
            Outcome::Continue => None,
        };
        // Once cut by the output limit, a turn stays so.
        if run.ends != Some(Ends::MaxTokens) {
            run.ends = ends;
        }
        if run.ends.is_none() || ended.steered {
            return self.claim(out);
        }
        let turn = run.turn;
        let task = self.next_task();
        run_of(&mut self.phase).stage = Stage::Stopping { task };
        out.push(Effect::Stopping { task, turn });
    }

    /// Closes the turn as its steps ended it, unless steering came first.
    pub(super) fn finish_turn(&mut self, out: &mut Vec<Effect>) {
        let reason = match run_of(&mut self.phase).ends {
            Some(Ends::MaxTokens) => TurnEndReason::MaxTokens,
            _ => TurnEndReason::Completed,
        };
        self.close(reason, false, out);
    }
}

impl Run {
    fn at(&self) -> StepAt {
        StepAt { turn: self.turn, step: self.step }
    }
}

pub(super) fn run_of(phase: &mut Phase) -> &mut Run {
    match phase {
        Phase::Running(run) => run,
        phase => unreachable!("steps run in a running phase, not in {phase:?}"),
    }
}
