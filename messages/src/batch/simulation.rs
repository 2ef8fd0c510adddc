//! A performer of effects for tests: the lane answers when told to, bodies settle when told to, and
//! a line is kept of everything.

use std::num::NonZeroUsize;

use super::*;

/// How each call of a simulated batch behaves.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// The mode, asked at each classification.
    pub modes: Vec<Concurrency>,
    /// Policy settles the call without a body.
    pub denied: Vec<bool>,
}

pub(super) struct Simulation {
    pub batch: Batch,
    pub plan: Plan,
    /// What the lane owes an answer to.
    pub pending: Option<Effect>,
    pub running: Vec<usize>,
    /// `TC i`, `POL i`, `RUN i`, `END i`, `TR i`, `ABORT i`.
    pub trace: Vec<String>,
    pub finished: Option<Result<bool, Failure>>,
    /// Which call's result ends the turn.
    pub concludes: Option<usize>,
}

impl Simulation {
    pub fn new(modes: &str, cap: usize) -> Self {
        let modes: Vec<_> = modes
            .chars()
            .map(|c| if c == 'p' { Concurrency::Parallel } else { Concurrency::Exclusive })
            .collect();
        let denied = vec![false; modes.len()];
        Self::of(Plan { modes, denied }, cap)
    }

    pub fn of(plan: Plan, cap: usize) -> Self {
        let cap = NonZeroUsize::new(cap).unwrap();
        Self {
            batch: Batch::new(plan.modes.len(), cap),
            plan,
            pending: None,
            running: Vec::new(),
            trace: Vec::new(),
            finished: None,
            concludes: None,
        }
    }

    /// Begins and lets the lane run until it has nothing to do.
    pub fn go(mut self) -> Self {
        self.begin();
        self.drain();
        self
    }

    pub fn begin(&mut self) {
        let effects = self.batch.begin();
        self.perform(effects);
    }

    pub fn input(&mut self, input: Input) {
        let effects = self.batch.apply(input);
        self.perform(effects);
    }

    /// Answers what the lane is at; `false` if it is at nothing.
    pub fn answer(&mut self) -> bool {
        let Some(pending) = self.pending.take() else { return false };
        let input = match pending {
            Effect::Classify(index) => Input::Classified(self.plan.modes[index]),
            Effect::LogCall(index) => {
                self.note("TC", index);
                Input::Logged(index)
            }
            Effect::RunPolicy(index) => {
                self.note("POL", index);
                let denied = self.plan.denied[index];
                let outcome = if denied { PolicyOutcome::Settled } else { PolicyOutcome::Dispatch };
                Input::PolicyDone(index, outcome)
            }
            Effect::Commit(index) => {
                self.note("TR", index);
                Input::Committed { index, concludes: self.concludes == Some(index) }
            }
            Effect::AbortPair(index) => {
                self.note("ABORT", index);
                Input::Committed { index, concludes: false }
            }
            effect => unreachable!("{effect:?} is not the lane's"),
        };
        self.input(input);
        true
    }

    pub fn drain(&mut self) {
        while self.answer() {}
    }

    /// Settles a body, then lets the lane run.
    pub fn settle(&mut self, index: usize) -> &mut Self {
        self.end(index);
        self.drain();
        self
    }

    pub fn end(&mut self, index: usize) {
        let at = self.running.iter().position(|running| *running == index);
        self.running.remove(at.unwrap_or_else(|| panic!("{index} does not run: {:?}", self.trace)));
        self.note("END", index);
        self.input(Input::BodySettled(index));
    }

    pub fn abort(&mut self) -> &mut Self {
        self.input(Input::AbortSeen);
        self.drain();
        self
    }

    /// The trace without policy and bodies.
    pub fn log(&self) -> Vec<&str> {
        let durable =
            |line: &&String| ["TC", "TR", "ABORT"].iter().any(|kind| line.starts_with(kind));
        self.trace.iter().filter(durable).map(String::as_str).collect()
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::StartBody(index) => {
                    self.note("RUN", index);
                    self.running.push(index);
                }
                Effect::Finish(outcome) => {
                    assert!(self.running.is_empty(), "a body outlived the batch");
                    assert!(self.finished.replace(outcome).is_none());
                }
                effect => assert!(self.pending.replace(effect).is_none(), "the lane is taken"),
            }
        }
    }

    fn note(&mut self, kind: &str, index: usize) {
        self.trace.push(format!("{kind} {index}"));
    }
}
