//! What each fuzz target checks of the bytes that it gets. The kept seeds run through the same
//! checks as ordinary tests.

use playhouse::messages::{
    event::{Event, InboxSpliced, InboxTarget},
    inbox::Inbox,
    log::Log,
    message::Message,
    repair::interrupted_closers,
    session_state::{KnownKinds, SessionState},
};
use playhouse::{models::http::SseDecoder, plugin_api::tool::ArgumentSchema};
use serde_json::Value;

/// Lines are events or are refused. What decodes encodes to a text that means the same; a log that
/// loads, or any prefix of it, is repaired into one that loads and needs no repair.
pub fn event(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let known = KnownKinds::new();
    let (mut log, mut state) = (Log::new(), SessionState::new());
    for line in text.lines() {
        let Ok(event) = Event::from_json(line) else { continue };
        let json = event.to_json();
        let again = Event::from_json(&json).expect("what was encoded decodes");
        assert_eq!(again, event);
        assert_eq!(again.to_json(), json, "encoding is stable");
        if event.seq == log.len() && state.advance(&log, &event).is_ok() {
            log.push(event.into());
        }
    }
    // Custom kinds are known to whoever fuzzes; the fold below meets the others.
    if SessionState::fold(&log, &known).is_err() {
        return;
    }
    for closer in interrupted_closers(&log, None) {
        state.advance(&log, &closer).expect("a closer fits its log");
        log.push(closer.into());
    }
    assert!(interrupted_closers(&log, None).is_empty(), "repair happens once");
    assert_eq!(SessionState::fold(&log, &known).expect("a repaired log loads"), state);
}

/// Splices by arbitrary coordinates do to the inbox what they do to two plain lists.
pub fn splice(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let mut inbox = Inbox::new();
    let mut plain: [Vec<String>; 2] = [vec![], vec![]];
    let mut seq = 0;
    while let Some(op) = bytes.next() {
        let mut take = || bytes.next().unwrap_or_default();
        let (target, index) = match op & 1 {
            0 => (InboxTarget::NextTurn, 0),
            _ => (InboxTarget::NextStep, 1),
        };
        let start = coordinate(take(), take());
        let delete = coordinate(take(), take());
        let ids: Vec<String> = (0..op >> 1 & 3).map(|_| format!("m{}", take() % 16)).collect();
        let inserted = ids.iter().map(|id| Message::user(id.as_str(), "x").into()).collect();
        let before = inbox.clone();
        let planned = inbox.splice(target, start, delete, inserted);
        let list = &mut plain[index];
        let len = list.len() as f64;
        let whole = |n: f64| if n.is_nan() { 0.0 } else { n.trunc() };
        let from = match whole(start) {
            start if start < 0.0 => (len + start).max(0.0),
            start => start.min(len),
        };
        let gone = whole(delete).clamp(0.0, len - from);
        let range = from as usize..(from + gone) as usize;
        match planned {
            Ok(None) => assert!(range.is_empty() && ids.is_empty(), "only a no-op is none"),
            Ok(Some(splice)) => {
                assert_eq!(
                    (splice.start as usize, splice.removed_count as usize),
                    (range.start, range.len())
                );
                list.splice(range, ids);
                apply(&mut inbox, &mut seq, &splice);
            }
            Err(_) => {
                let mut after = plain.clone();
                after[index].splice(range, ids);
                let mut all = after.concat();
                let count = all.len();
                all.sort();
                all.dedup();
                assert!(all.len() < count, "only an id that pends twice is refused");
                assert_eq!(inbox, before);
            }
        }
        for (target, list) in [InboxTarget::NextTurn, InboxTarget::NextStep].iter().zip(&plain) {
            let pending = inbox.list(*target).iter().map(|message| message.id.to_string());
            assert!(pending.eq(list.iter().cloned()), "{list:?}");
        }
        if op & 0x80 != 0 {
            let (splices, claimed) = inbox.claim(target);
            let prompt = if index == 0 { plain[0].len().min(1) } else { 0 };
            let expected: Vec<_> = plain[1].drain(..).collect();
            let expected: Vec<_> = expected.into_iter().chain(plain[0].drain(..prompt)).collect();
            assert!(claimed.iter().map(|message| message.id.to_string()).eq(expected));
            splices.iter().for_each(|splice| apply(&mut inbox, &mut seq, splice));
        }
    }
}

fn apply(inbox: &mut Inbox, seq: &mut u64, splice: &InboxSpliced) {
    inbox.apply(*seq, splice).expect("a planned splice fits");
    *seq += 1;
}

/// A number as a caller may give it: small ones mostly, of both signs, whole or not, and strange ones.
fn coordinate(kind: u8, value: u8) -> f64 {
    let small = f64::from(value as i8);
    match kind % 8 {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => f64::NEG_INFINITY,
        3 => small * 1e300,
        4 => small / 4.0,
        _ => f64::from(value % 8) - 2.0,
    }
}

/// Two JSON values, a schema and what it is held against: a schema compiles or says why not, and a
/// verdict has words exactly if it is bad.
pub fn schema(data: &[u8]) {
    let mut values = serde_json::Deserializer::from_slice(data).into_iter::<Value>();
    let (Some(Ok(schema)), Some(Ok(value))) = (values.next(), values.next()) else { return };
    for compiled in [ArgumentSchema::parameters(&schema), ArgumentSchema::output(&schema)] {
        match compiled {
            Ok(compiled) => {
                let violations = compiled.violations(&value);
                assert!(violations.iter().all(|text| !text.is_empty()));
                assert_eq!(compiled.violations(&value), violations, "a verdict is stable");
            }
            Err(refused) => assert!(!refused.violations.is_empty()),
        }
    }
}

/// A stream of events means the same wherever reads cut it, and what a plain reading of the whole
/// says.
pub fn sse(data: &[u8]) {
    let whole = events(data, data.len().max(1));
    for size in [1, 2, 3, 7] {
        assert_eq!(events(data, size), whole, "cut every {size} bytes");
    }
    assert_eq!(whole, plain(data));
}

fn events(data: &[u8], size: usize) -> Vec<String> {
    let (mut decoder, mut found) = (SseDecoder::default(), Vec::new());
    for read in data.chunks(size) {
        decoder.push(read);
        while let Some(event) = decoder.next_event().expect("no event is that long") {
            found.push(event);
        }
    }
    found
}

/// The format's rules, word for word, over everything at once.
fn plain(data: &[u8]) -> Vec<String> {
    let data = data.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(data);
    let (mut found, mut lines, mut rest) = (Vec::new(), Vec::new(), data);
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        let line = &rest[..end];
        let pair = rest[end..].starts_with(b"\r\n");
        rest = &rest[end + if pair { 2 } else { 1 }..];
        if !line.is_empty() {
            let (name, value) = match line.iter().position(|byte| *byte == b':') {
                Some(at) => (&line[..at], &line[at + 1..]),
                None => (line, &[][..]),
            };
            if name == b"data" {
                lines.push(value.strip_prefix(b" ").unwrap_or(value));
            }
        } else if !lines.is_empty() {
            let joined = lines.join(&b'\n');
            found.push(String::from_utf8_lossy(&joined).into_owned());
            lines.clear();
        }
    }
    found
}
