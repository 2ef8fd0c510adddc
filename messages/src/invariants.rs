//! What holds of every log that a live agent wrote, as far as the log alone shows it.
//!
//! The numbers are those of the core specification, section 8. A session's own checks refuse much of
//! this on append; these are written apart from them, from the events alone, so that one can be held
//! against the other. A log of another program may break them and still load.

mod inbox;
mod steps;

use std::sync::Arc;

use crate::{
    candidate::Candidate,
    config::{Header, RequestContext},
    content::ContentBlock,
    event::{DeveloperMessage, Event, EventBody, Seq, SurfaceOp},
    log::Log,
};

pub use inbox::Fate;
use inbox::Mail;
use steps::Steps;

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
    let mut invariants = Invariants::new();
    log.iter().try_for_each(|event| invariants.observe(event))
}

/// Follows a log event by event.
#[derive(Debug, Clone, Default)]
pub struct Invariants {
    next_seq: Seq,
    steps: Steps,
    mail: Mail,
    nodes: Vec<Seq>,
    system_head: bool,
    systems: Vec<Seq>,
    header: Option<Arc<Header>>,
    header_before: Option<Arc<Header>>,
    /// The header that the last event was.
    fresh_header: Option<Seq>,
    context: Option<RequestContext>,
}

impl Invariants {
    /// Before the first event.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no turn is open.
    pub fn is_balanced(&self) -> bool {
        self.steps.turn().is_none()
    }

    /// What became of a message that entered the inbox.
    pub fn fate(&self, id: &crate::id::MessageId) -> Option<Fate> {
        self.mail.fate(id)
    }

    /// Takes the next event.
    pub fn observe(&mut self, event: &Event) -> Result<(), Violation> {
        let seq = event.seq;
        self.follow(event).map_err(|(number, text)| Violation { number, seq, text })
    }

    fn follow(&mut self, event: &Event) -> Result<(), Fault> {
        hold(event.seq == self.next_seq, 1, || format!("{} was due", self.next_seq))?;
        self.next_seq += 1;
        self.steps.follow(Candidate::from(event))?;
        if let EventBody::InboxSpliced(splice) = &event.body {
            self.mail.follow(splice, self.steps.turn(), self.steps.stepped())?;
        }
        self.requests(event)?;
        self.surface(event)
    }

    fn surface(&mut self, event: &Event) -> Result<(), Fault> {
        let is_system = matches!(event.body, EventBody::SystemMessage(_));
        hold(event.surface.is_some() == event.body.is_surface(), 15, || {
            format!("`{}` with surface operation {:?}", event.body.kind(), event.surface)
        })?;
        match event.surface {
            None => return Ok(()),
            Some(SurfaceOp::Append) => self.nodes.push(event.seq),
            Some(SurfaceOp::Replace { start_seq, end_seq }) => {
                let position = |seq| self.nodes.iter().position(|node| *node == seq);
                let (Some(start), Some(end)) = (position(start_seq), position(end_seq)) else {
                    return Err((15, "replaces what is no node".to_owned()));
                };
                hold(start <= end, 15, || "replaces backwards".to_owned())?;
                let shadowed = &self.nodes[start..=end];
                hold(shadowed.iter().all(|node| event.sources.contains(node)), 15, || {
                    "does not cite all that it shadows".to_owned()
                })?;
                self.nodes.splice(start..=end, [event.seq]);
            }
        }
        if is_system {
            self.systems.push(event.seq);
        }
        let head_is_system = self.nodes.first().is_some_and(|head| self.systems.contains(head));
        hold(head_is_system || !self.system_head, 16, || {
            "the prompt at the head gave way to something else".to_owned()
        })?;
        self.system_head = head_is_system;
        Ok(())
    }

    fn requests(&mut self, event: &Event) -> Result<(), Fault> {
        let fresh_header = self.fresh_header.take();
        match &event.body {
            EventBody::RequestHeader(data) => {
                use crate::config::HeaderReason::{Change, Initial, Resume, Series};
                hold(self.steps.turn().is_some(), 8, || "a header outside any turn".to_owned())?;
                let first = self.header.is_none();
                hold((data.reason == Initial) == first, 23, || {
                    format!(
                        "{:?}, though {}",
                        data.reason,
                        if first { "first" } else { "not first" }
                    )
                })?;
                let same = self.header.as_ref() == Some(&data.header);
                match data.reason {
                    Change => hold(!same, 23, || "a change to the same header".to_owned())?,
                    Series => hold(same && !data.starts_series, 23, || {
                        "a bare series with another header, or marked twice".to_owned()
                    })?,
                    Initial | Resume => {}
                }
                self.header_before = self.header.replace(data.header.clone());
                self.fresh_header = Some(event.seq);
            }
            EventBody::RequestContext(data) => {
                hold(self.steps.turn().is_some(), 8, || "a context outside any turn".to_owned())?;
                hold(self.context.as_ref() != Some(data), 25, || "the same context".to_owned())?;
                self.context = Some(data.clone());
            }
            EventBody::DeveloperMessage(data) => {
                hold(fresh_header.is_some(), 26, || "does not follow its header".to_owned())?;
                hold(data.header_seq.is_none_or(|seq| Some(seq) == fresh_header), 26, || {
                    "names another header than the one before it".to_owned()
                })?;
                self.tool_changes(data)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn tool_changes(&self, data: &DeveloperMessage) -> Result<(), Fault> {
        let names = |header: &Option<Arc<Header>>| -> Vec<String> {
            let tools = header.iter().flat_map(|header| header.tools.iter());
            tools.map(|tool| tool.name.clone()).collect()
        };
        let mut told = names(&self.header_before);
        for block in &data.message.content {
            match block {
                ContentBlock::ToolAddition { tool_name } => told.push(tool_name.clone()),
                ContentBlock::ToolRemoval { tool_name } => told.retain(|name| name != tool_name),
                _ => return Err((26, format!("a `{}` block", block.kind()))),
            }
        }
        let mut after = names(&self.header);
        told.sort();
        after.sort();
        hold(told == after, 26, || format!("tells of {told:?}, but {after:?} are declared"))
    }
}

#[cfg(test)]
mod tests;
