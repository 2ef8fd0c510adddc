//! Attachments: what a message says of bytes that are kept beside the log.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How an id begins.
const PREFIX: &str = "sha256:";

/// Names bytes by what they are: `sha256:` and their digest in 64 lower-case hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AttachmentId(Arc<str>);

/// The text is no attachment id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no attachment id: `{PREFIX}` and 64 lower-case hexadecimal digits")]
pub struct NotAnAttachmentId(String);

impl AttachmentId {
    /// The id of the bytes with this SHA-256 digest.
    pub fn of_digest(digest: [u8; 32]) -> Self {
        let digits = digest.iter().map(|byte| format!("{byte:02x}"));
        Self(format!("{PREFIX}{}", digits.collect::<String>()).into())
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 digits: safe as a file's name.
    pub fn digits(&self) -> &str {
        &self.0[PREFIX.len()..]
    }
}

impl TryFrom<String> for AttachmentId {
    type Error = NotAnAttachmentId;

    fn try_from(text: String) -> Result<Self, NotAnAttachmentId> {
        let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let digits = text.strip_prefix(PREFIX).unwrap_or_default();
        if digits.len() == 64 && digits.bytes().all(hex) {
            return Ok(Self(text.into()));
        }
        Err(NotAnAttachmentId(text))
    }
}

impl From<AttachmentId> for String {
    fn from(id: AttachmentId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for AttachmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AttachmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// The record of an image, as content blocks carry it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// Finds the bytes.
    pub attachment_id: AttachmentId,
    /// What they are, such as `image/png`.
    pub media_type: String,
    /// How many they are.
    pub bytes: u64,
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// A file's name, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Attachment {
    /// Reads the record of a content block; `None` if it is not one of an image.
    pub fn read(record: &Value) -> Option<Self> {
        Self::deserialize(record).ok()
    }
}

impl From<&Attachment> for Value {
    fn from(attachment: &Attachment) -> Self {
        let Attachment { attachment_id, media_type, bytes, width, height, name } = attachment;
        let mut record = json!({
            "attachmentId": attachment_id.as_str(),
            "mediaType": media_type,
            "bytes": bytes,
            "width": width,
            "height": height,
        });
        if let Some(name) = name {
            record["name"] = name.as_str().into();
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_digest_is_an_id() {
        let digits = "0a".repeat(32);
        let id = AttachmentId::of_digest([10; 32]);
        assert_eq!((id.as_str(), id.digits()), (&*format!("sha256:{digits}"), &*digits));
        for text in
            ["", "sha256:", &digits, &format!("sha256:{digits}0"), "sha256:../../etc/passwd"]
        {
            AttachmentId::try_from(text.to_owned()).unwrap_err();
        }
        AttachmentId::try_from(format!("sha256:{}", digits.to_uppercase())).unwrap_err();
        assert_eq!(AttachmentId::try_from(id.to_string()), Ok(id));
    }

    #[test]
    fn a_record_reads_back_as_written() {
        let attachment = Attachment {
            attachment_id: AttachmentId::of_digest([1; 32]),
            media_type: "image/png".into(),
            bytes: 3,
            width: 1,
            height: 2,
            name: Some("a.png".into()),
        };
        for attachment in [attachment.clone(), Attachment { name: None, ..attachment }] {
            let record = Value::from(&attachment);
            assert_eq!(record.to_string(), serde_json::to_string(&attachment).unwrap());
            assert_eq!(Attachment::read(&record), Some(attachment));
        }
        assert_eq!(Attachment::read(&json!({"attachmentId": "sha256:00"})), None);
    }
}
