//! Lines: JSON objects whose last member is a checksum of all before it.
//!
//! The checksum is spliced in as text, before the closing brace, and taken out again as text, so that
//! what was given comes back byte for byte. It covers what the line is, the session (by the checksum
//! of its header) and the line's place in the log; so a line that stands elsewhere shows.

use std::fmt::Write as _;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first of a session's log.
    Header = 0,
    /// An event, as it was given.
    Event = 1,
    /// An event that is not a JSON object on one line, as a JSON string.
    Text = 2,
    /// A part of a session's tail.
    Tail = 3,
    /// The first of a value's file.
    Value = 4,
}

impl Kind {
    /// The name of the checksum's member.
    fn member(self) -> &'static str {
        match self {
            Self::Text => "\"textCrc\":\"",
            _ => "\"crc\":\"",
        }
    }
}

/// A line's place: the checksum of the session's header, and how many lines of its kind are before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stand {
    pub(super) salt: u32,
    pub(super) seq: u64,
}

fn checksum(kind: Kind, stand: Stand, text: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind as u8]);
    hasher.update(&stand.salt.to_le_bytes());
    hasher.update(&stand.seq.to_le_bytes());
    hasher.update(text);
    hasher.finalize()
}

/// Ends the line that begins at `start`, whose last member is followed by a comma.
pub(super) fn seal(out: &mut Vec<u8>, start: usize, kind: Kind, stand: Stand) -> u32 {
    let crc = checksum(kind, stand, &out[start..]);
    out.extend_from_slice(kind.member().as_bytes());
    out.extend_from_slice(format!("{crc:08x}\"}}\n").as_bytes());
    crc
}

/// The text before a line's checksum, and the checksum, if it holds. `line` has no line end.
pub(super) fn unseal(line: &[u8], kind: Kind, stand: Stand) -> Option<(&[u8], u32)> {
    let line = line.strip_suffix(b"\"}")?;
    let (rest, digits) = line.split_at_checked(line.len().checked_sub(8)?)?;
    let text = rest.strip_suffix(kind.member().as_bytes())?;
    let crc = checksum(kind, stand, text);
    (format!("{crc:08x}").as_bytes() == digits).then_some((text, crc))
}

/// Writes an object as a line of the kind. It must have a member.
pub(super) fn encode_object<T: Serialize>(
    out: &mut Vec<u8>,
    object: &T,
    kind: Kind,
    stand: Stand,
) -> Result<u32, serde_json::Error> {
    let start = out.len();
    serde_json::to_writer(&mut *out, object)?;
    out.pop();
    out.push(b',');
    Ok(seal(out, start, kind, stand))
}

/// The object that [`encode_object`] was given, as JSON text, and the checksum.
pub(super) fn decode_object(line: &[u8], kind: Kind, stand: Stand) -> Option<(Vec<u8>, u32)> {
    let (text, crc) = unseal(line, kind, stand)?;
    let mut json = text.strip_suffix(b",")?.to_vec();
    json.push(b'}');
    Some((json, crc))
}

/// Writes an event. `durable` is how many of the session's events are durable when the line can be
/// read.
///
/// # Errors
///
/// An event that is not UTF-8.
pub(super) fn encode_event(
    out: &mut Vec<u8>,
    stand: Stand,
    durable: u64,
    event: &[u8],
) -> Result<u32, std::str::Utf8Error> {
    let text = std::str::from_utf8(event)?;
    let start = out.len();
    let inner = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let fits =
        |inner: &&str| !inner.contains('\n') && (inner.is_empty() || !inner.trim().is_empty());
    let kind = match inner.filter(fits) {
        Some(inner) => {
            out.push(b'{');
            out.extend_from_slice(inner.as_bytes());
            if !inner.is_empty() {
                out.push(b',');
            }
            Kind::Event
        }
        None => {
            out.extend_from_slice(b"{\"text\":");
            out.extend_from_slice(serde_json::Value::from(text).to_string().as_bytes());
            out.push(b',');
            Kind::Text
        }
    };
    out.extend_from_slice(format!("\"durable\":{durable},").as_bytes());
    Ok(seal(out, start, kind, stand))
}

/// An event's line, read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventLine {
    /// The event as it was given.
    pub(super) event: Bytes,
    /// How many events of the session were durable.
    pub(super) durable: u64,
    /// The line's checksum.
    pub(super) crc: u32,
}

/// Reads an event's line; `None` if it is none, or not at this place.
pub(super) fn decode_event(line: &[u8], stand: Stand) -> Option<EventLine> {
    let found = |kind| unseal(line, kind, stand).map(|(text, crc)| (kind, text, crc));
    let (kind, text, crc) = found(Kind::Event).or_else(|| found(Kind::Text))?;
    let text = text.strip_suffix(b",")?;
    let digits = text.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (text, digits) = text.split_at(text.len() - digits);
    let durable = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let text = text.strip_suffix(b"\"durable\":")?;
    let event = if kind == Kind::Text {
        let json = text.strip_prefix(b"{\"text\":")?.strip_suffix(b",")?;
        Bytes::from(serde_json::from_slice::<String>(json).ok()?)
    } else {
        let mut event = text.strip_suffix(b",").unwrap_or(text).to_vec();
        event.push(b'}');
        Bytes::from(event)
    };
    Some(EventLine { event, durable, crc })
}

/// A part of a tail.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TailLine {
    pub(super) attempt: u64,
    /// How many events the log had. A part that is ahead of its log means nothing.
    pub(super) after: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// What is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

impl TailLine {
    pub(super) fn new(attempt: u64, after: u64, part: &[u8]) -> Self {
        match std::str::from_utf8(part) {
            Ok(text) => Self { attempt, after, text: Some(text.to_owned()), hex: None },
            Err(_) => {
                let mut hex = String::with_capacity(2 * part.len());
                for byte in part {
                    // Writing to a String cannot fail.
                    let _ = write!(hex, "{byte:02x}");
                }
                Self { attempt, after, text: None, hex: Some(hex) }
            }
        }
    }

    pub(super) fn part(self) -> Option<Bytes> {
        if let Some(text) = self.text {
            return Some(Bytes::from(text));
        }
        let hex = self.hex?.into_bytes();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        hex.chunks(2).map(pair).collect::<Option<Vec<u8>>>().map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(event: &[u8]) -> Vec<u8> {
        let stand = Stand { salt: 7, seq: 3 };
        let mut line = Vec::new();
        let crc = encode_event(&mut line, stand, 2, event).unwrap();
        let line = line.strip_suffix(b"\n").unwrap();
        assert!(!line.contains(&b'\n'));
        let read = decode_event(line, stand).unwrap();
        assert_eq!(read, EventLine { event: Bytes::copy_from_slice(event), durable: 2, crc });
        assert_eq!(decode_event(line, Stand { seq: 4, ..stand }), None);
        assert_eq!(decode_event(line, Stand { salt: 8, ..stand }), None);
        line.to_vec()
    }

    #[test]
    fn an_event_stays_readable_json() {
        let line = round_trip(br#"{"type":"x/y","seq":3,"time":1,"data":{"durable":9}}"#);
        assert_eq!(
            String::from_utf8(line).unwrap(),
            r#"{"type":"x/y","seq":3,"time":1,"data":{"durable":9},"durable":2,"crc":"1ab2cfc1"}"#
        );
    }

    #[test]
    fn any_text_comes_back_as_it_was() {
        let odd: [&[u8]; 9] = [
            b"{}",
            b"{ }",
            b"",
            b"   ",
            b"{\"a\":\n1}",
            b"[1]",
            b"}{",
            b"{\"crc\":\"00000000\"}",
            b"{\"text\":\"x\"}",
        ];
        for event in odd {
            let line = round_trip(event);
            serde_json::from_slice::<serde_json::Value>(&line).unwrap();
        }
        assert!(encode_event(&mut Vec::new(), Stand::default(), 0, b"\xff").is_err());
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_no_line(event in "\\{[ -~]{0,40}\\}", at: prop::sample::Index, by in 1u8..) {
            let mut line = round_trip(event.as_bytes());
            let at = at.index(line.len());
            line[at] ^= by;
            prop_assert_eq!(decode_event(&line, Stand { salt: 7, seq: 3 }), None);
        }

        #[test]
        fn a_part_comes_back(part: Vec<u8>) {
            let json = serde_json::to_vec(&TailLine::new(1, 2, &part)).unwrap();
            let read: TailLine = serde_json::from_slice(&json).unwrap();
            prop_assert_eq!(read.part().unwrap(), part);
        }
    }
}
