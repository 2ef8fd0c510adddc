//! The schedule of a tool batch: which call of an assistant message does what, and when.
//!
//! A pure machine. It is told what happened ([`Input`]) and says what to do next ([`Effect`]). One
//! *lane* does everything that has an order (classify, log, policy, commit), one thing at a time;
//! only bodies overlap.
//!
//! What it keeps, whatever settles when:
//! - results are committed in the model's order, each after its own `tool/call`;
//! - an exclusive call starts when everything before it is committed, and nothing starts before it
//!   is committed;
//! - at most `cap` bodies hold a slot. A call holds its slot from the start of its body until its
//!   result is committed, so that at most `cap` results wait for an earlier one;
//! - after an abort nothing new starts, what has started is awaited and committed, and every other
//!   call gets a pair of call and "aborted before dispatch" result;
//! - after a failure nothing new starts and nothing more is committed; what has started is awaited,
//!   and the first failure is the outcome.

use std::num::NonZeroUsize;

use crate::chunk::Failure;

/// Whether a call may overlap with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Concurrency {
    /// It runs alone.
    Exclusive,
    /// It may overlap with other parallel calls.
    Parallel,
}

/// What policy says of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyOutcome {
    /// Its body is to run.
    Dispatch,
    /// It has a result already (denied, failed, aborted).
    Settled,
}

/// What happened. Calls are named by their index in the message.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The call of [`Effect::Classify`] has this mode.
    Classified(Concurrency),
    /// `tool/call` is in the log.
    Logged(usize),
    /// Policy has decided.
    PolicyDone(usize, PolicyOutcome),
    /// The body has ended.
    BodySettled(usize),
    /// The result is in the log, of [`Effect::Commit`] or [`Effect::AbortPair`].
    Committed {
        /// The call.
        index: usize,
        /// The result ends the turn.
        concludes: bool,
    },
    /// The batch was cancelled.
    AbortSeen,
    /// What was under way for this call cannot be done: the log refused, or the executor is broken.
    /// A failed tool is no such failure; it has a result.
    Failed(usize, Failure),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Say how the call would run now.
    Classify(usize),
    /// Append `tool/call`.
    LogCall(usize),
    /// Run what precedes the body.
    RunPolicy(usize),
    /// Start the body. After an abort, the body's own check of the token makes the result.
    StartBody(usize),
    /// Run what follows the body, append `tool/result`, hand its contexts on.
    Commit(usize),
    /// Append `tool/call` and an "aborted before dispatch" result.
    AbortPair(usize),
    /// The batch is over. `Ok` says whether a result ends the turn.
    Finish(Result<bool, Failure>),
}

/// The one thing with an order that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Free,
    Classify(usize),
    Log(usize),
    Policy(usize),
    Commit(usize),
    Abort(usize),
}

/// Where a started call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// `tool/call` and policy.
    Starting,
    /// Its body runs.
    Running,
    /// It has a result that is not committed, and whether it holds a slot.
    Settled { slot: bool },
    /// Its result is committed.
    Committed,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct Batch {
    len: usize,
    cap: usize,
    /// The started calls; always a prefix of the batch.
    calls: Vec<Call>,
    committed: usize,
    lane: Lane,
    /// An exclusive call has started and is not committed.
    barrier: bool,
    /// The next call is exclusive and waits; asked again after the next commit, because a commit
    /// may change how calls are classified.
    held: bool,
    aborted: bool,
    failure: Option<Failure>,
    concluded: bool,
    begun: bool,
    finished: bool,
}

impl Batch {
    /// A batch of `len` calls with at most `cap` slots.
    pub fn new(len: usize, cap: NonZeroUsize) -> Self {
        Self {
            len,
            cap: cap.get(),
            calls: Vec::with_capacity(len),
            committed: 0,
            lane: Lane::Free,
            barrier: false,
            held: false,
            aborted: false,
            failure: None,
            concluded: false,
            begun: false,
            finished: false,
        }
    }

    /// Begins. To be called once; an [`Input::AbortSeen`] may come before it.
    pub fn begin(&mut self) -> Vec<Effect> {
        self.begun = true;
        let mut effects = Vec::new();
        self.advance(&mut effects);
        effects
    }

    /// Takes an input and says what to do next.
    ///
    /// An input that nothing asked for is a defect of the caller, and fails the batch.
    pub fn apply(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.finished {
            return effects;
        }
        match input {
            Input::AbortSeen => self.aborted = true,
            Input::Failed(index, failure) => self.fail(index, failure),
            input => {
                if let Err(input) = self.progress(input, &mut effects) {
                    let text = format!("tool batch: {input:?} was not asked for ({:?})", self.lane);
                    self.failure.get_or_insert(Failure::new("TOOL_BATCH_PROTOCOL", text));
                }
            }
        }
        if self.begun {
            self.advance(&mut effects);
        }
        effects
    }

    /// Whether the batch has failed.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    fn progress(&mut self, input: Input, effects: &mut Vec<Effect>) -> Result<(), Input> {
        match (input, self.lane) {
            (Input::Classified(mode), Lane::Classify(index)) => {
                self.lane = Lane::Free;
                let alone = self.committed == self.calls.len();
                if self.aborted || self.failure.is_some() {
                    // Nothing new starts.
                } else if mode == Concurrency::Exclusive && !alone {
                    self.held = true;
                } else {
                    self.barrier = mode == Concurrency::Exclusive;
                    self.calls.push(Call::Starting);
                    self.take_lane(Lane::Log(index), Effect::LogCall(index), effects);
                }
            }
            (Input::Logged(index), Lane::Log(at)) if index == at => {
                self.lane = Lane::Free;
                // After an abort the call, being recorded, still gets its own result from policy.
                if self.failure.is_none() {
                    self.take_lane(Lane::Policy(index), Effect::RunPolicy(index), effects);
                }
            }
            (Input::PolicyDone(index, outcome), Lane::Policy(at)) if index == at => {
                self.lane = Lane::Free;
                if self.failure.is_some() || outcome == PolicyOutcome::Settled {
                    self.calls[index] = Call::Settled { slot: false };
                } else {
                    self.calls[index] = Call::Running;
                    effects.push(Effect::StartBody(index));
                }
            }
            (Input::BodySettled(index), _) if self.calls.get(index) == Some(&Call::Running) => {
                self.calls[index] = Call::Settled { slot: true };
            }
            (Input::Committed { index, concludes }, Lane::Commit(at)) if index == at => {
                self.lane = Lane::Free;
                self.calls[index] = Call::Committed;
                self.committed += 1;
                self.concluded |= concludes;
                // An exclusive call is the only uncommitted one, so this was its commit.
                self.barrier = false;
                self.held = false;
            }
            (Input::Committed { index, .. }, Lane::Abort(at)) if index == at => {
                self.lane = Lane::Free;
                self.calls.push(Call::Committed);
                self.committed += 1;
            }
            (input, _) => return Err(input),
        }
        Ok(())
    }

    fn fail(&mut self, index: usize, failure: Failure) {
        self.failure.get_or_insert(failure);
        let lane = match self.lane {
            Lane::Free => None,
            Lane::Classify(at)
            | Lane::Log(at)
            | Lane::Policy(at)
            | Lane::Commit(at)
            | Lane::Abort(at) => Some(at),
        };
        if lane == Some(index) {
            self.lane = Lane::Free;
        } else if self.calls.get(index) == Some(&Call::Running) {
            self.calls[index] = Call::Settled { slot: true };
        }
    }

    fn advance(&mut self, effects: &mut Vec<Effect>) {
        if self.lane != Lane::Free || self.finished {
            return;
        }
        if self.failure.is_some() {
            if !self.calls.contains(&Call::Running)
                && let Some(failure) = self.failure.clone()
            {
                self.finish(Err(failure), effects);
            }
            return;
        }
        let (started, next) = (self.calls.len(), self.committed);
        if matches!(self.calls.get(next), Some(Call::Settled { .. })) {
            self.take_lane(Lane::Commit(next), Effect::Commit(next), effects);
        } else if started == self.len {
            if self.committed == self.len {
                self.finish(Ok(self.concluded), effects);
            }
        } else if self.aborted {
            if self.committed == started {
                self.take_lane(Lane::Abort(started), Effect::AbortPair(started), effects);
            }
        } else if !self.barrier && !self.held && self.slots() < self.cap {
            self.take_lane(Lane::Classify(started), Effect::Classify(started), effects);
        }
    }

    fn slots(&self) -> usize {
        let holds = |call: &&Call| matches!(call, Call::Running | Call::Settled { slot: true });
        self.calls[self.committed..].iter().filter(holds).count()
    }

    fn take_lane(&mut self, lane: Lane, effect: Effect, effects: &mut Vec<Effect>) {
        self.lane = lane;
        effects.push(effect);
    }

    fn finish(&mut self, outcome: Result<bool, Failure>, effects: &mut Vec<Effect>) {
        self.finished = true;
        effects.push(Effect::Finish(outcome));
    }
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests;
