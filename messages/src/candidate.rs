//! An event before or after its commit, as the checks see it.

use crate::event::{Event, EventBody, NewEvent, Seq, SurfaceOp};

/// The parts of an event that decide whether it may stand at `seq`. A live append and a replay are
/// checked through the same view, so that a log which was written can be read.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Where the event stands or would stand.
    pub seq: Seq,
    /// What happened.
    pub body: &'a EventBody,
    /// How it changes the surface.
    pub surface: Option<SurfaceOp>,
    /// What it derives from.
    pub sources: &'a [Seq],
    /// Whether a reader that does not know the kind may skip it.
    pub ignorable: bool,
}

impl<'a> Candidate<'a> {
    /// A new event that would stand at `seq`.
    pub fn new(seq: Seq, event: &'a NewEvent) -> Self {
        let NewEvent { body, surface, sources, ignorable } = event;
        Self { seq, body, surface: *surface, sources, ignorable: *ignorable }
    }

    /// Whether it replaces nodes of the surface.
    pub fn is_replacement(&self) -> bool {
        matches!(self.surface, Some(SurfaceOp::Replace { .. }))
    }

    /// Whether it settles an attempt of the model.
    pub fn settles(&self) -> bool {
        match self.body {
            EventBody::AssistantAttempt(_) => true,
            EventBody::AssistantMessage(_) => !self.is_replacement(),
            _ => false,
        }
    }
}

impl<'a> From<&'a Event> for Candidate<'a> {
    fn from(event: &'a Event) -> Self {
        let Event { seq, body, surface, sources, ignorable, .. } = event;
        Self { seq: *seq, body, surface: *surface, sources, ignorable: *ignorable }
    }
}
