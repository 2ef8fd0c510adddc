//! The lines of an export that are no events.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use playhouse_messages::{attachment::AttachmentId, header::SessionHeader};
use playhouse_plugin_api::store::StoredTail;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The type of the line that begins a session.
pub(crate) const SESSION: &str = "session";
/// The type of the line that holds a tail.
const TAIL: &str = "session/tail";
/// The type of a line that holds an image.
const ATTACHMENT: &str = "session/attachment";

/// What a header line says beside the header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Announced {
    pub inherited: u64,
    pub events: Option<u64>,
    pub tail_parts: Option<u64>,
    pub attachments: Option<u64>,
}

const INHERITED: &str = "inheritedEventCount";
const EVENTS: &str = "eventCount";
const TAIL_PARTS: &str = "tailParts";
const ATTACHMENTS: &str = "attachmentCount";

/// The line that begins a session.
pub(crate) fn header_line(
    header: &SessionHeader,
    announced: Announced,
) -> serde_json::Result<String> {
    let mut line = Map::from_iter([("type".to_owned(), SESSION.into())]);
    if let Value::Object(fields) = serde_json::to_value(header)? {
        line.extend(fields);
    }
    line.insert(INHERITED.to_owned(), announced.inherited.into());
    let counts = [
        (EVENTS, announced.events),
        (TAIL_PARTS, announced.tail_parts),
        (ATTACHMENTS, announced.attachments),
    ];
    for (key, count) in counts {
        line.insert(key.to_owned(), count.unwrap_or_default().into());
    }
    serde_json::to_string(&line)
}

/// Takes out of a header line what is not of the header.
pub(crate) fn announced(line: &mut Map<String, Value>) -> Result<Announced, String> {
    let mut count = |key: &str| match line.shift_remove(key) {
        None => Ok(None),
        Some(value) => match value.as_u64() {
            Some(count) => Ok(Some(count)),
            None => Err(format!("`{key}` is no count")),
        },
    };
    Ok(Announced {
        inherited: count(INHERITED)?.unwrap_or_default(),
        events: count(EVENTS)?,
        tail_parts: count(TAIL_PARTS)?,
        attachments: count(ATTACHMENTS)?,
    })
}

/// A line behind the events.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum Record {
    #[serde(rename = "session/tail")]
    Tail { attempt: u64, parts: Vec<Part> },
    #[serde(rename = "session/attachment")]
    Attachment { attachment_id: AttachmentId, base64: String },
}

/// A part of a tail: text if it is some, as those of Playhouse's own agents are.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Part {
    Text(String),
    Bytes { base64: String },
}

impl Record {
    /// Whether a line of this type and without a seq is such a record.
    pub(crate) fn is_kind(kind: &str) -> bool {
        matches!(kind, TAIL | ATTACHMENT)
    }

    pub(crate) fn of_tail(tail: &StoredTail) -> Self {
        let part = |bytes: &Bytes| match std::str::from_utf8(bytes) {
            Ok(text) => Part::Text(text.to_owned()),
            Err(_) => Part::Bytes { base64: STANDARD.encode(bytes) },
        };
        Self::Tail { attempt: tail.attempt, parts: tail.parts.iter().map(part).collect() }
    }

    pub(crate) fn of_image(attachment_id: AttachmentId, bytes: &[u8]) -> Self {
        Self::Attachment { attachment_id, base64: STANDARD.encode(bytes) }
    }
}

impl Part {
    pub(crate) fn into_bytes(self) -> Result<Bytes, String> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::Bytes { base64 } => decode(&base64),
        }
    }
}

pub(crate) fn decode(base64: &str) -> Result<Bytes, String> {
    STANDARD.decode(base64).map(Bytes::from).map_err(|fault| format!("its base64: {fault}"))
}
