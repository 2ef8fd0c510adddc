//! The JSON of events: exactly the permitted keys, and unknown kinds as they are.

use std::{io, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::SerializeMap};
use serde_json::{Map, Value, value::RawValue};

use super::{Event, EventBody, Seq, SurfaceOp, TurnEndReason};
use crate::message::Message;

impl EventBody {
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

    /// How long that text is, in bytes, without making it.
    pub fn json_len(&self) -> u64 {
        struct Count(u64);
        impl io::Write for Count {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += bytes.len() as u64;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut count = Count(0);
        serde_json::to_writer(&mut count, self)
            .unwrap_or_else(|fault| unreachable!("event to JSON: {fault}"));
        count.0
    }

    /// Reads an event from its JSON text.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}
