//! What holds of every log that a live agent wrote, as far as the log alone shows it.
//!
//! The numbers are those of the core specification, section 8; `docs/invariants.md` says where each
//! of them is checked. A session's own checks refuse much of this on append; these are written apart
//! from them, from the events alone, so that one can be held against the other. A log of another
//! program may break them and still load.

mod fates;
mod inbox;
mod requests;
mod steps;
mod surface;

use crate::{
    candidate::Candidate,
    event::{EventBody, Seq},
    log::Log,
    validator::{Trace, Validator},
};

pub use fates::{Fate, Fates};
use inbox::Mail;
use requests::Requests;
use steps::Steps;
use surface::Nodes;

/// An invariant does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {seq} breaks invariant {number}: {text}")]
pub struct Violation {
    /// The invariant.
    pub number: u32,
    /// The event that breaks it.
    pub seq: Seq,
    /// How.
    pub text: String,
}

/// A fault without its place.
type Fault = (u32, String);

fn hold(condition: bool, number: u32, text: impl FnOnce() -> String) -> Result<(), Fault> {
    if condition { Ok(()) } else { Err((number, text())) }
}

/// Checks a whole log, which may end anywhere.
pub fn check(log: &Log) -> Result<(), Violation> {
    Invariants::of(log).map(drop)
}

/// Follows a log event by event. Clones share what they remember.
///
/// An event costs what it says, not what the log holds, but for a replacement of several nodes, which
/// may cost as much as there are nodes behind them.
#[derive(Debug, Clone, Default)]
pub struct Invariants {
    next_seq: Seq,
    steps: Steps,
    mail: Mail,
    requests: Requests,
    nodes: Nodes,
}

impl Invariants {
    /// Before the first event.
    pub fn new() -> Self {
        Self::default()
    }

    /// After a log, if none is broken.
    pub fn of(log: &Log) -> Result<Self, Violation> {
        let mut invariants = Self::new();
        log.iter().try_for_each(|event| invariants.observe(Candidate::from(&**event)))?;
        Ok(invariants)
    }

    /// Whether no turn is open.
    pub fn is_balanced(&self) -> bool {
        self.steps.turn().is_none()
    }

    /// Takes the next event, also if it breaks an invariant.
    pub fn observe(&mut self, event: Candidate<'_>) -> Result<(), Violation> {
        let verdict = self.judge(event);
        self.take(event);
        verdict.map_err(|(number, text)| Violation { number, seq: event.seq, text })
    }

    fn judge(&self, event: Candidate<'_>) -> Result<(), Fault> {
        hold(event.seq == self.next_seq, 1, || format!("{} was due", self.next_seq))?;
        self.steps.judge(event)?;
        if let EventBody::InboxSpliced(splice) = event.body {
            self.mail.judge(splice, &self.steps)?;
        }
        self.requests.judge(event, &self.steps)?;
        self.nodes.judge(event)?;
        let prompts = self.nodes.prompts();
        hold(!event.settles() || prompts <= 1 || self.requests.prompts_in_history(), 18, || {
            format!("{prompts} prompts were sent on a route that takes one")
        })
    }

    fn take(&mut self, event: Candidate<'_>) {
        self.next_seq = event.seq + 1;
        if let EventBody::InboxSpliced(splice) = event.body {
            self.mail.take(splice, &self.steps);
        }
        self.steps.take(event);
        self.requests.take(event);
        self.nodes.take(event);
    }
}

impl Trace for Invariants {
    fn follow(&mut self, event: Candidate<'_>) -> Result<(), String> {
        self.observe(event).map_err(|violation| violation.to_string())
    }

    fn fork(&self) -> Box<dyn Trace> {
        Box::new(self.clone())
    }
}

/// Refuses what breaks an invariant: a fault of the loop, a tool executor or a plugin shows where it
/// is made, and not in a request that a provider refuses.
#[derive(Debug, Clone, Copy, Default)]
pub struct InvariantsHold;

impl Validator for InvariantsHold {
    fn name(&self) -> &str {
        "invariants"
    }

    fn trace(&self) -> Box<dyn Trace> {
        Box::new(Invariants::new())
    }
}

#[cfg(test)]
mod tests;
