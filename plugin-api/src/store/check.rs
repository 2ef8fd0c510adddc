//! What a batch must be before any store takes it: texts that read back as they were written, here
//! and in readers that keep numbers as doubles.

use std::{cell::Cell, fmt};

use playhouse_messages::{
    event::Seq,
    json::{DEPTH_MAX, INTEGER_MAX},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{EventBatch, StoreError};

impl EventBatch {
    /// Refuses what no store may keep. Every text must be one JSON object on one line with a string
    /// `type` and the `seq` of its place; integers stay within ±(2^53 − 1), zero has no sign, and
    /// `data` is nested no deeper than [`DEPTH_MAX`] levels; `ignorable` is true or absent. `\u0000` is a character like any other;
    /// an escape of half a surrogate pair is none. Whether a reader knows the type is not asked.
    ///
    /// Every store calls this in its append, before anything of the batch is stored.
    ///
    /// # Errors
    ///
    /// [`StoreError::Argument`] naming the first event at fault, its type and the fault.
    pub fn check(&self) -> Result<(), StoreError> {
        for (seq, text) in (self.first_seq..).zip(&self.events) {
            check_event(seq, text).map_err(|fault| {
                let kind = kind(text).map(|kind| format!(" (`{kind}`)")).unwrap_or_default();
                StoreError::Argument(format!("event {seq}{kind} cannot be stored: {fault}"))
            })?;
        }
        Ok(())
    }
}

fn check_event(seq: Seq, text: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(text).map_err(|fault| fault.to_string())?;
    if text.contains(['\n', '\r']) {
        return Err("its text has more than one line".to_owned());
    }
    let huge = Cell::new(false);
    let mut parser = serde_json::Deserializer::from_str(text);
    parser
        .deserialize_map(Envelope { seq, huge: &huge })
        .and_then(|()| parser.end())
        .map_err(|fault| fault.to_string())?;
    // The parser hands an integer beyond 64 bits over as a double; only its digits tell.
    if huge.get() && has_long_integer(text) { Err(TOO_BIG.to_owned()) } else { Ok(()) }
}

const TOO_BIG: &str = "an integer beyond 2^53 - 1";

/// The type of an event that was refused, if it can be read.
fn kind(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(rename = "type")]
        kind: String,
    }
    serde_json::from_slice::<Kind>(text).ok().map(|event| event.kind)
}

/// Whether valid JSON has a number of more than 16 digits without point or exponent.
fn has_long_integer(text: &str) -> bool {
    let mut outside = String::with_capacity(text.len());
    let (mut quoted, mut escaped) = (false, false);
    for char in text.chars() {
        match char {
            '"' if !escaped => quoted = !quoted,
            _ if !quoted => outside.push(char),
            _ => {}
        }
        escaped = quoted && char == '\\' && !escaped;
    }
    let is_of_number = |char: char| char.is_ascii_digit() || matches!(char, '.' | 'e' | 'E' | '+');
    let mut numbers = outside.split(|char| !is_of_number(char));
    numbers.any(|number| number.len() > 16 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Type,
    Seq,
    Data,
    Ignorable,
    #[serde(other)]
    Other,
}

/// The event itself.
struct Envelope<'a> {
    seq: Seq,
    huge: &'a Cell<bool>,
}

impl<'de> Visitor<'de> for Envelope<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one JSON object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let (mut has_kind, mut has_seq) = (false, false);
        let value = Value { depth: 1, huge: self.huge };
        while let Some(key) = map.next_key()? {
            match key {
                Key::Type => {
                    map.next_value::<String>()?;
                    has_kind = true;
                }
                Key::Seq => {
                    let seq: Seq = map.next_value()?;
                    if seq != self.seq {
                        return Err(M::Error::custom(format_args!("it says seq {seq}")));
                    }
                    has_seq = true;
                }
                Key::Data => {
                    // Parsed on its own, as a reader does it: the parser's limit of depth counts
                    // from here.
                    let data: &RawValue = map.next_value()?;
                    let mut parser = serde_json::Deserializer::from_str(data.get());
                    value.deserialize(&mut parser).map_err(M::Error::custom)?;
                }
                Key::Ignorable => {
                    if !map.next_value::<bool>()? {
                        return Err(M::Error::custom("`ignorable` is true or absent"));
                    }
                }
                Key::Other => map.next_value_seed(value)?,
            }
        }
        match (has_kind, has_seq) {
            (true, true) => Ok(()),
            (false, _) => Err(M::Error::missing_field("type")),
            (_, false) => Err(M::Error::missing_field("seq")),
        }
    }
}

/// Any value, at its depth below the event.
#[derive(Clone, Copy)]
struct Value<'a> {
    depth: usize,
    huge: &'a Cell<bool>,
}

impl Value<'_> {
    fn inner<E: Error>(self) -> Result<Self, E> {
        let depth = self.depth + 1;
        if depth > DEPTH_MAX {
            return Err(E::custom("nested deeper than 128 levels"));
        }
        Ok(Self { depth, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<(), E> {
        if n > INTEGER_MAX { Err(E::custom(TOO_BIG)) } else { Ok(()) }
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<(), E> {
        self.visit_u64(n.unsigned_abs())
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<(), E> {
        if n == 0.0 && n.is_sign_negative() {
            return Err(E::custom("negative zero"));
        }
        if n.abs() >= i64::MAX as f64 {
            self.huge.set(true);
        }
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<(), S::Error> {
        let inner = self.inner()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<(), M::Error> {
        let inner = self.inner()?;
        while fields.next_key::<IgnoredAny>()?.is_some() {
            fields.next_value_seed(inner)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use playhouse_messages::{event::Event, json::check_lossless};

    use super::*;

    fn refusal(data: &str) -> Option<String> {
        let text = format!(r#"{{"type":"x/y","seq":3,"time":1,"data":{data}}}"#);
        let events = vec![Bytes::from(text)];
        EventBatch { first_seq: 3, events }.check().err().map(|error| error.to_string())
    }

    #[test]
    fn what_reads_back_as_it_was_written_passes() {
        for data in [
            "null",
            "[]",
            r#"{"__proto__":1,"a":"\u0000 \ud83d\ude00","b":[0,-1,1.5,1e300,true]}"#,
            "9007199254740991",
            "-9007199254740991",
            r#""12345678901234567890123""#,
            r#"["\"12345678901234567890123\\", 1e300]"#,
            "18446744073709551616.5",
        ] {
            assert_eq!(refusal(data), None, "{data}");
        }
    }

    #[test]
    fn what_does_not_is_refused_with_its_type_and_the_fault() {
        for (data, fault) in [
            ("9007199254740992", "2^53"),
            ("-9007199254740992", "2^53"),
            ("[18446744073709551616]", "2^53"),
            (r#"{"a":-123456789012345678901234567890}"#, "2^53"),
            ("-0.0", "negative zero"),
            ("-0", "negative zero"),
        ] {
            let refused = refusal(data).unwrap();
            assert!(refused.contains("`x/y`") && refused.contains(fault), "{data}: {refused}");
        }
        for data in ["NaN", "1e999", r#""\ud800""#, "{", "1}{", r#"{"\udc00":1}"#, "\"\u{1}\""] {
            assert!(refusal(data).is_some(), "{data}");
        }
    }

    #[test]
    fn the_envelope_is_one_object_on_one_line_with_its_own_seq() {
        for text in [
            "",
            "   ",
            "7",
            "[]",
            r#""x""#,
            r#"{"seq":3}"#,
            r#"{"type":"x"}"#,
            r#"{"type":7,"seq":3}"#,
            r#"{"type":"x","seq":4}"#,
            r#"{"type":"x","seq":3.0}"#,
            r#"{"type":"x","seq":3} {}"#,
            "{\"type\":\"x\",\n\"seq\":3}",
        ] {
            assert!(check_event(3, text.as_bytes()).is_err(), "{text}");
        }
        assert!(check_event(3, b"{\"type\":\"x\",\"seq\":3,\"data\":\"\xff\"}").is_err());
        assert_eq!(check_event(3, br#"{"type":"x","seq":3}"#), Ok(()));
    }

    #[test]
    fn as_deep_as_an_append_allows_is_as_deep_as_a_reader_reads() {
        for (levels, core) in
            [(125, "1"), (126, "1"), (127, "1"), (126, "[]"), (127, "[]"), (128, "1")]
        {
            let data = format!("{}{core}{}", "[".repeat(levels), "]".repeat(levels));
            let text = format!(r#"{{"type":"x/y","seq":3,"time":1,"data":{data}}}"#);
            let mut value: serde_json::Value = serde_json::from_str(core).unwrap();
            for _ in 0..levels {
                value = serde_json::Value::Array(vec![value]);
            }
            let reads = Event::from_json(&text).is_ok();
            let passes = (refusal(&data).is_none(), check_lossless(&value).is_ok());
            assert_eq!(passes, (reads, reads), "{levels} levels around {core}");
        }
        // However deep: an error, never an overflow of the stack.
        assert!(refusal(&"[".repeat(200_000)).is_some());
    }
}
