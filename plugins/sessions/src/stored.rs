//! Events as stores keep them.

use playhouse_messages::{
    event::{Event, Seq},
    id::SessionId,
};
use playhouse_plugin_api::store::StoreError;

/// The kind of a stored event, if it stands where we write it; else the event must be read to know.
pub(crate) fn kind_of(event: &[u8]) -> Option<&str> {
    let rest = event.strip_prefix(br#"{"type":""#)?;
    let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    let kind = std::str::from_utf8(rest.get(..end)?).ok()?;
    (rest.get(end) == Some(&b'"')).then_some(kind)
}

/// Reads the event that stands at `seq`.
pub(crate) fn parse(id: &SessionId, seq: Seq, bytes: &[u8]) -> Result<Event, StoreError> {
    let cause = match std::str::from_utf8(bytes) {
        Err(fault) => fault.to_string(),
        Ok(text) => match Event::from_json(text) {
            Ok(event) if event.seq == seq => return Ok(event),
            Ok(event) => format!("it says seq {}", event.seq),
            Err(fault) => fault.to_string(),
        },
    };
    Err(StoreError::Corrupt { id: id.clone(), place: format!("event {seq}"), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_told_without_reading_the_event() {
        assert_eq!(kind_of(br#"{"type":"turn/end","seq":1}"#), Some("turn/end"));
        for unclear in [&br#"{"seq":1,"type":"turn/end"}"#[..], br#"{"type":"a\u0062"}"#, b"{"] {
            assert_eq!(kind_of(unclear), None);
        }
    }

    #[test]
    fn an_event_at_another_place_is_damage() {
        let text = br#"{"type":"turn/start","seq":1,"time":0,"data":{"turn":1}}"#;
        assert!(parse(&"s".into(), 1, text).is_ok());
        let error = parse(&"s".into(), 2, text).unwrap_err();
        assert_eq!(error.code(), "STORE_CORRUPT");
        assert!(error.to_string().contains("event 2"), "{error}");
    }
}
