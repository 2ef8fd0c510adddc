//! The event envelope and every core event.
//!
//! Events are what a session's log is made of. The core's own kinds are typed; any other kind is
//! kept as raw JSON and written back as it was read.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::SerializeMap};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    chunk::{Failure, Usage},
    config::{Header, HeaderReason, ModelChoice, RequestContext},
    id::CallId,
    json::marker,
    message::{Message, SharedMessage},
    packed::StreamRecord,
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

/// Data of `agent/inbox/spliced`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboxSpliced {
    /// Which list.
    pub target: InboxTarget,
    /// Where in it.
    pub start: u32,
    /// How many messages leave it there; absent for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub removed_count: u32,
    /// Which messages enter it there.
    pub inserted: Vec<SharedMessage>,
    /// Present on ordinary removals; a removal without it is a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<SpliceOutcome>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The two lists of an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InboxTarget {
    /// Prompts, first in first out, one a turn.
    NextTurn,
    /// Steering and injected context, all claimed at the next step boundary.
    NextStep,
}

/// What became of removed messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpliceOutcome {
    /// They were removed, not claimed.
    Canceled,
}

/// Data of `turn/start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStart {
    /// The turn, from 1.
    pub turn: u32,
}

/// Data of `turn/end`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// The turn.
    pub turn: u32,
    /// Why it ended.
    pub reason: TurnEndReason,
}

/// Why a turn ended. Open: unknown kinds are kept.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEndReason {
    /// Normally, or without a step because nothing was left.
    Completed,
    /// A pre-step hook rejected the step.
    Blocked,
    /// Some step was cut by the output limit.
    MaxTokens,
    /// Cancelled.
    Aborted(CancelCause),
    /// Failed.
    Error(Failure),
    /// A limit ran out: `{resource, limit, used}`.
    Budget(BudgetSpent),
    /// Crash repair closed it; never written live.
    Interrupted,
    /// A fork cut it; never written live.
    Forked,
    /// A kind that this build does not know, whole.
    Other(Map<String, Value>),
}

/// Which limit ended a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetSpent {
    /// `steps`, `tokens`, ...
    pub resource: String,
    /// The limit, in units of the resource.
    pub limit: u64,
    /// How much was used.
    pub used: u64,
}

impl TurnEndReason {
    /// The `kind` tag.
    pub fn kind(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::Blocked => "blocked",
            Self::MaxTokens => "max-tokens",
            Self::Aborted(_) => "aborted",
            Self::Error(_) => "error",
            Self::Budget(_) => "budget",
            Self::Interrupted => "interrupted",
            Self::Forked => "forked",
            Self::Other(fields) => fields.get("kind").and_then(Value::as_str).unwrap_or_default(),
        }
    }
}

impl Serialize for TurnEndReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Self::Other(fields) = self {
            return fields.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.kind())?;
        match self {
            Self::Aborted(cause) => map.serialize_entry("reason", cause)?,
            Self::Error(failure) => map.serialize_entry("error", failure)?,
            Self::Budget(spent) => {
                map.serialize_entry("resource", &spent.resource)?;
                map.serialize_entry("limit", &spent.limit)?;
                map.serialize_entry("used", &spent.used)?;
            }
            _ => {}
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for TurnEndReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(deserializer)?;
        let kind = fields.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut part = |key: &str| fields.remove(key).unwrap_or_default();
        Ok(match kind.as_str() {
            "completed" => Self::Completed,
            "blocked" => Self::Blocked,
            "max-tokens" => Self::MaxTokens,
            "interrupted" => Self::Interrupted,
            "forked" => Self::Forked,
            "aborted" => {
                Self::Aborted(serde_json::from_value(part("reason")).map_err(D::Error::custom)?)
            }
            "error" => {
                Self::Error(serde_json::from_value(part("error")).map_err(D::Error::custom)?)
            }
            "budget" => Self::Budget(
                serde_json::from_value(Value::Object(fields)).map_err(D::Error::custom)?,
            ),
            "" => return Err(D::Error::custom("turn end reason without a string `kind`")),
            _ => Self::Other(fields),
        })
    }
}

/// Who cancelled a turn. The first cause of an activity wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum CancelCause {
    /// A person, or the program on their behalf.
    User,
    /// The agent that delegated the work.
    Parent,
    /// The agent is being disposed.
    Disposed,
    /// A hook.
    Hook {
        /// The hook's words.
        reason: String,
    },
    /// Imported from a log that did not say.
    Legacy,
}

/// Data of `system/message`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SystemMessage {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// The prompt: empty content, or one text block.
    pub message: SharedMessage,
}

/// Data of `developer/message`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeveloperMessage {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// Additions, then removals.
    pub message: SharedMessage,
    /// The header that defines the additions; present exactly if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header_seq: Option<Seq>,
}

/// Data of `assistant/message`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// The answer, or the delivered prefix of it.
    pub message: SharedMessage,
    /// The attempt's whole stream, packed.
    pub stream: Vec<StreamRecord>,
    /// What the call cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The answer was cut by a cancel or a crash.
    #[serde(default, deserialize_with = "marker", skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

/// Data of `assistant/attempt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AssistantAttempt {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// The attempt's whole stream, packed.
    pub stream: Vec<StreamRecord>,
}

/// Data of `tool/call`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// The call.
    pub call_id: CallId,
    /// The tool's name.
    pub name: String,
    /// The raw argument text.
    pub arguments: String,
}

/// Data of `tool/result`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// What the model sees.
    pub message: SharedMessage,
    /// The failure's coded facts; only with `isError: true` on the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolErrorInfo>,
    /// The tool's private data for presentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

/// The coded facts of a failed tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolErrorInfo {
    /// The error's type.
    pub name: String,
    /// Stable, for programs.
    pub code: String,
    /// More detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Data of `request/header`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestHeader {
    /// The whole snapshot.
    pub header: Arc<Header>,
    /// Why it was logged.
    pub reason: HeaderReason,
    /// A new request series starts here.
    #[serde(default, deserialize_with = "marker", skip_serializing_if = "std::ops::Not::not")]
    pub starts_series: bool,
}

/// Data of `session/end-seed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndSeed {
    /// Marks the exact cut of a fork.
    #[serde(default, deserialize_with = "marker", skip_serializing_if = "std::ops::Not::not")]
    pub inherited: bool,
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

    /// The data as JSON text.
    fn data_to<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        match self {
            Self::InboxSpliced(data) => map.serialize_entry("data", data),
            Self::TurnStart(data) => map.serialize_entry("data", data),
            Self::TurnEnd(data) => map.serialize_entry("data", data),
            Self::StepStart(data) | Self::StepEnd(data) => map.serialize_entry("data", data),
            Self::SystemMessage(data) => map.serialize_entry("data", data),
            Self::DeveloperMessage(data) => map.serialize_entry("data", data),
            Self::UserMessage(data) => map.serialize_entry("data", data),
            Self::AssistantMessage(data) => map.serialize_entry("data", data),
            Self::AssistantAttempt(data) => map.serialize_entry("data", data),
            Self::ToolCall(data) => map.serialize_entry("data", data),
            Self::ToolResult(data) => map.serialize_entry("data", data),
            Self::RequestHeader(data) => map.serialize_entry("data", data),
            Self::RequestContext(data) => map.serialize_entry("data", data),
            Self::ModelSelection(data) => map.serialize_entry("data", data),
            Self::EndSeed(data) => map.serialize_entry("data", data),
            Self::Custom { data, .. } => map.serialize_entry("data", data),
        }
    }

    /// Reads the data of an event of this kind.
    fn parse(kind: &str, data: &str) -> Result<Self, serde_json::Error> {
        use serde_json::from_str;
        Ok(match kind {
            "agent/inbox/spliced" => Self::InboxSpliced(from_str(data)?),
            "turn/start" => Self::TurnStart(from_str(data)?),
            "turn/end" => Self::TurnEnd(from_str(data)?),
            "step/start" => Self::StepStart(from_str(data)?),
            "step/end" => Self::StepEnd(from_str(data)?),
            "system/message" => Self::SystemMessage(from_str(data)?),
            "developer/message" => Self::DeveloperMessage(from_str(data)?),
            "user/message" => Self::UserMessage(Arc::new(from_str::<Message>(data)?)),
            "assistant/message" => Self::AssistantMessage(from_str(data)?),
            "assistant/attempt" => Self::AssistantAttempt(from_str(data)?),
            "tool/call" => Self::ToolCall(from_str(data)?),
            "tool/result" => Self::ToolResult(from_str(data)?),
            "request/header" => Self::RequestHeader(from_str(data)?),
            "request/context" => Self::RequestContext(from_str(data)?),
            "model/selection" => Self::ModelSelection(from_str(data)?),
            "session/end-seed" => Self::EndSeed(from_str(data)?),
            _ => Self::Custom { kind: kind.into(), data: from_str(data)? },
        })
    }
}

impl Serialize for SurfaceOp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Append => serializer.serialize_str("append"),
            Self::Replace { start_seq, end_seq } => {
                let mut map = serializer.serialize_map(Some(3))?;
                map.serialize_entry("op", "replace")?;
                map.serialize_entry("startSeq", start_seq)?;
                map.serialize_entry("endSeq", end_seq)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for SurfaceOp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Shape {
            Name(String),
            Replace(Replace),
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Replace {
            op: String,
            start_seq: Seq,
            end_seq: Seq,
        }
        match Shape::deserialize(deserializer)? {
            Shape::Name(name) if name == "append" => Ok(Self::Append),
            Shape::Replace(Replace { op, start_seq, end_seq }) if op == "replace" => {
                Ok(Self::Replace { start_seq, end_seq })
            }
            _ => Err(D::Error::custom("surfaceOp must be \"append\" or {op, startSeq, endSeq}")),
        }
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", self.body.kind())?;
        map.serialize_entry("seq", &self.seq)?;
        map.serialize_entry("time", &self.time)?;
        self.body.data_to(&mut map)?;
        if let Some(surface) = &self.surface {
            map.serialize_entry("surfaceOp", surface)?;
        }
        if !self.sources.is_empty() {
            map.serialize_entry("sourceEventSeqs", &self.sources)?;
        }
        if self.ignorable {
            map.serialize_entry("ignorable", &true)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Envelope {
            #[serde(rename = "type")]
            kind: String,
            seq: Seq,
            time: i64,
            data: Box<RawValue>,
            #[serde(default)]
            surface_op: Option<SurfaceOp>,
            #[serde(default)]
            source_event_seqs: Option<Vec<Seq>>,
            #[serde(default)]
            ignorable: Option<bool>,
        }
        let envelope = Envelope::deserialize(deserializer)?;
        if envelope.ignorable == Some(false) {
            return Err(D::Error::custom("`ignorable` is true or absent"));
        }
        if envelope.source_event_seqs.as_ref().is_some_and(Vec::is_empty) {
            return Err(D::Error::custom("`sourceEventSeqs` is not empty when present"));
        }
        let body = EventBody::parse(&envelope.kind, envelope.data.get())
            .map_err(|fault| D::Error::custom(format!("`{}` data: {fault}", envelope.kind)))?;
        Ok(Self {
            seq: envelope.seq,
            time: envelope.time,
            body,
            surface: envelope.surface_op,
            sources: envelope.source_event_seqs.unwrap_or_default(),
            ignorable: envelope.ignorable.unwrap_or_default(),
        })
    }
}

impl Event {
    /// The event as the JSON text that stores keep, without a line end.
    pub fn to_json(&self) -> String {
        // The types hold nothing that JSON cannot: string keys, finite numbers.
        serde_json::to_string(self).unwrap_or_else(|fault| unreachable!("event to JSON: {fault}"))
    }

    /// Reads an event from its JSON text.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example log of the core specification, section 3.6, and one event of each further kind.
    const LOG: &[&str] = &[
        r#"{"type":"agent/inbox/spliced","seq":0,"time":1,"data":{"target":"next-turn","start":0,"inserted":[{"id":"m1","role":"user","content":[{"type":"text","text":"list files"}],"source":{"kind":"user"}}]}}"#,
        r#"{"type":"turn/start","seq":1,"time":1,"data":{"turn":1}}"#,
        r#"{"type":"agent/inbox/spliced","seq":2,"time":1,"data":{"target":"next-turn","start":0,"removedCount":1,"inserted":[]}}"#,
        r#"{"type":"step/start","seq":3,"time":2,"data":{"turn":1,"step":1}}"#,
        r#"{"type":"system/message","seq":4,"time":3,"data":{"turn":1,"step":1,"message":{"id":"s1","role":"system","content":[{"type":"text","text":"P"}],"source":{"kind":"system-prompt"}}},"surfaceOp":"append"}"#,
        r#"{"type":"user/message","seq":5,"time":3,"data":{"id":"m1","role":"user","content":[{"type":"text","text":"list files"}],"source":{"kind":"user"}},"surfaceOp":"append"}"#,
        r#"{"type":"request/header","seq":6,"time":3,"data":{"header":{"config":{"provider":"p","model":"m"},"tools":[{"name":"ls","description":"d","parameters":{"type":"object"}}]},"reason":"initial"}}"#,
        r#"{"type":"request/context","seq":7,"time":3,"data":{"provider":"p","model":"m","contextWindow":128000}}"#,
        r#"{"type":"assistant/message","seq":8,"time":9,"data":{"turn":1,"step":1,"message":{"id":"a1","role":"assistant","content":[{"type":"tool-call","id":"c1","name":"ls","arguments":"{}"}],"source":{"kind":"model","provider":"p","model":"m"}},"stream":[{"type":"tool-call-chunks","time0":8,"index":0,"dt":[],"id":"c1","name":"ls","args":["{}"]},{"type":"chunk","time":9,"chunk":{"type":"finish","reason":{"kind":"tool-calls"}}}]},"surfaceOp":"append"}"#,
        r#"{"type":"tool/call","seq":9,"time":9,"data":{"turn":1,"step":1,"callId":"c1","name":"ls","arguments":"{}"}}"#,
        r#"{"type":"tool/result","seq":10,"time":12,"data":{"turn":1,"step":1,"message":{"id":"r1","role":"tool","toolCallId":"c1","isError":false,"content":[{"type":"text","text":"a.txt"}],"source":{"kind":"tool","callId":"c1"}}},"surfaceOp":"append","sourceEventSeqs":[9]}"#,
        r#"{"type":"step/end","seq":11,"time":12,"data":{"turn":1,"step":1}}"#,
        r#"{"type":"turn/end","seq":12,"time":15,"data":{"turn":1,"reason":{"kind":"completed"}}}"#,
        r#"{"type":"turn/end","seq":13,"time":15,"data":{"turn":1,"reason":{"kind":"aborted","reason":{"kind":"hook","reason":"no"}}}}"#,
        r#"{"type":"turn/end","seq":14,"time":15,"data":{"turn":1,"reason":{"kind":"error","error":{"message":"m","code":"UNKNOWN"}}}}"#,
        r#"{"type":"turn/end","seq":15,"time":15,"data":{"turn":1,"reason":{"kind":"budget","resource":"steps","limit":3,"used":3}}}"#,
        r#"{"type":"turn/end","seq":16,"time":15,"data":{"turn":1,"reason":{"kind":"eclipse","moon":true}}}"#,
        r#"{"type":"assistant/attempt","seq":17,"time":15,"data":{"turn":1,"step":1,"stream":[]}}"#,
        r#"{"type":"developer/message","seq":18,"time":15,"data":{"turn":1,"step":1,"message":{"id":"d","role":"developer","content":[{"type":"tool-addition","toolName":"x"}],"source":{"kind":"tool-registry"}},"headerSeq":6},"surfaceOp":"append"}"#,
        r#"{"type":"model/selection","seq":19,"time":15,"data":{"provider":"p","model":"m","reasoningEffort":"high"}}"#,
        r#"{"type":"session/end-seed","seq":20,"time":15,"data":{"inherited":true}}"#,
        r#"{"type":"session/end-seed","seq":21,"time":15,"data":{}}"#,
        r#"{"type":"todo/write","seq":22,"time":15,"data":{"todos":[]}}"#,
        r#"{"type":"x/note","seq":23,"time":15,"data":null,"ignorable":true}"#,
        r#"{"type":"user/message","seq":24,"time":15,"data":{"id":"m2","role":"user","content":[],"source":{"kind":"user"}},"surfaceOp":{"op":"replace","startSeq":5,"endSeq":10},"sourceEventSeqs":[5,8,10]}"#,
    ];

    #[test]
    fn every_event_reads_back_as_written() {
        for text in LOG {
            let event = Event::from_json(text).unwrap_or_else(|fault| panic!("{text}: {fault}"));
            assert_eq!(event.to_json(), *text);
        }
    }

    #[test]
    fn unknown_envelope_keys_are_refused() {
        let text = r#"{"type":"turn/start","seq":1,"time":1,"data":{"turn":1},"extra":1}"#;
        assert!(Event::from_json(text).is_err());
        let text = r#"{"type":"x","seq":1,"time":1,"data":1,"ignorable":false}"#;
        assert!(Event::from_json(text).is_err());
        let text = r#"{"type":"x","seq":1,"time":1}"#;
        assert!(Event::from_json(text).is_err());
    }
}
