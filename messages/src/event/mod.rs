//! The event envelope and every core event.
//!
//! Events are what a session's log is made of. The core's own kinds are typed; any other kind is
//! kept as raw JSON and written back as it was read.

mod data;
mod json;

use std::sync::Arc;

pub use data::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    config::{ModelChoice, RequestContext},
    message::SharedMessage,
};

/// An event's index in its log; contiguous from 0.
pub type Seq = u64;

/// A committed event. Immutable, and shared behind an [`Arc`].
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Index in the log.
    pub seq: Seq,
    /// Epoch milliseconds; not necessarily monotone.
    pub time: i64,
    /// What happened.
    pub body: EventBody,
    /// How a surface event changes the conversation's surface; `None` on all other kinds.
    pub surface: Option<SurfaceOp>,
    /// The earlier events that a surface event derives from.
    pub sources: Vec<Seq>,
    /// A reader that does not know the kind may skip it.
    pub ignorable: bool,
}

/// An event behind the pointer that log, store and subscribers share.
pub type SharedEvent = Arc<Event>;

/// An event that is not in a log yet: everything but seq and time.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// What happened.
    pub body: EventBody,
    /// How it changes the surface.
    pub surface: Option<SurfaceOp>,
    /// What it derives from.
    pub sources: Vec<Seq>,
    /// A reader that does not know the kind may skip it.
    pub ignorable: bool,
}

impl NewEvent {
    /// A log-only event.
    pub fn log_only(body: EventBody) -> Self {
        Self { body, surface: None, sources: Vec::new(), ignorable: false }
    }

    /// A surface event at the tail of the conversation.
    pub fn append(body: EventBody) -> Self {
        Self { surface: Some(SurfaceOp::Append), ..Self::log_only(body) }
    }

    /// A surface event that takes the place of the nodes from `start` to `end`, citing `sources`.
    pub fn replace(body: EventBody, start: Seq, end: Seq, sources: Vec<Seq>) -> Self {
        let surface = Some(SurfaceOp::Replace { start_seq: start, end_seq: end });
        Self { surface, sources, ..Self::log_only(body) }
    }

    /// The same event citing `sources`.
    #[must_use]
    pub fn citing(mut self, sources: impl IntoIterator<Item = Seq>) -> Self {
        self.sources.extend(sources);
        self
    }

    /// A plugin's log-only event of a kind that the core does not know.
    pub fn custom(kind: impl Into<Arc<str>>, data: Value) -> Self {
        Self::log_only(EventBody::Custom { kind: kind.into(), data })
    }

    /// The same event, marked so that a reader which does not know its kind may skip it.
    #[must_use]
    pub fn ignorable(mut self) -> Self {
        self.ignorable = true;
        self
    }

    /// The committed event.
    pub fn at(self, seq: Seq, time: i64) -> Event {
        let Self { body, surface, sources, ignorable } = self;
        Event { seq, time, body, surface, sources, ignorable }
    }
}

/// How an event changes the surface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurfaceOp {
    /// A new node at the tail.
    Append,
    /// One node in place of the current nodes from one to the other, inclusive.
    Replace {
        /// The first node that goes, by its event.
        start_seq: Seq,
        /// The last node that goes, by its event.
        end_seq: Seq,
    },
}

/// A position in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepAt {
    /// The turn, from 1.
    pub turn: u32,
    /// The step of it, from 1.
    pub step: u32,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum EventBody {
    /// `agent/inbox/spliced`: one inbox mutation.
    InboxSpliced(InboxSpliced),
    /// `turn/start`.
    TurnStart(TurnStart),
    /// `turn/end`.
    TurnEnd(TurnEnd),
    /// `step/start`.
    StepStart(StepAt),
    /// `step/end`.
    StepEnd(StepAt),
    /// `system/message` (surface).
    SystemMessage(SystemMessage),
    /// `developer/message` (surface).
    DeveloperMessage(DeveloperMessage),
    /// `user/message` (surface): the message itself.
    UserMessage(SharedMessage),
    /// `assistant/message` (surface).
    AssistantMessage(AssistantMessage),
    /// `assistant/attempt`: a model attempt that produced no message.
    AssistantAttempt(AssistantAttempt),
    /// `tool/call`.
    ToolCall(ToolCall),
    /// `tool/result` (surface).
    ToolResult(ToolResult),
    /// `request/header`.
    RequestHeader(RequestHeader),
    /// `request/context`.
    RequestContext(RequestContext),
    /// `model/selection`.
    ModelSelection(ModelChoice),
    /// `session/end-seed`: the end of constructor history.
    EndSeed(EndSeed),
    /// Any other kind, as raw data.
    Custom {
        /// The event's `type`.
        kind: Arc<str>,
        /// Its `data`.
        data: Value,
    },
}

impl EventBody {
    /// The event's `type`.
    pub fn kind(&self) -> &str {
        match self {
            Self::InboxSpliced(_) => "agent/inbox/spliced",
            Self::TurnStart(_) => "turn/start",
            Self::TurnEnd(_) => "turn/end",
            Self::StepStart(_) => "step/start",
            Self::StepEnd(_) => "step/end",
            Self::SystemMessage(_) => "system/message",
            Self::DeveloperMessage(_) => "developer/message",
            Self::UserMessage(_) => "user/message",
            Self::AssistantMessage(_) => "assistant/message",
            Self::AssistantAttempt(_) => "assistant/attempt",
            Self::ToolCall(_) => "tool/call",
            Self::ToolResult(_) => "tool/result",
            Self::RequestHeader(_) => "request/header",
            Self::RequestContext(_) => "request/context",
            Self::ModelSelection(_) => "model/selection",
            Self::EndSeed(_) => "session/end-seed",
            Self::Custom { kind, .. } => kind,
        }
    }

    /// Whether events of this kind are nodes of the conversation's surface.
    pub fn is_surface(&self) -> bool {
        self.message().is_some()
    }

    /// The message that a surface event carries.
    pub fn message(&self) -> Option<&SharedMessage> {
        match self {
            Self::SystemMessage(data) => Some(&data.message),
            Self::DeveloperMessage(data) => Some(&data.message),
            Self::UserMessage(message) => Some(message),
            Self::AssistantMessage(data) => Some(&data.message),
            Self::ToolResult(data) => Some(&data.message),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
