//! Lines as events: exactly the permitted keys, contiguous numbers, and packed rows as the events that
//! they stand for.

use playhouse_messages::event::Seq;
use serde_json::{Map, Value, json};

use super::drafts::Draft;
use crate::{
    error::{ImportError, ImportFault},
    import::object,
    lines::Line,
};

const KEYS: [&str; 7] =
    ["type", "seq", "time", "data", "ignorable", "surfaceOp", "sourceEventSeqs"];

/// The events of a log, one an entry, numbered from 0.
pub(super) fn read(lines: &[Line], rows: bool) -> Result<Vec<Draft>, ImportError> {
    let mut drafts = Vec::with_capacity(lines.len());
    for line in lines {
        let event = object(line)?;
        if rows && event.contains_key("seq0") {
            unpack(line, &event, &mut drafts)?;
        } else {
            let due = drafts.len() as Seq;
            drafts.push(draft(line, event, due)?);
        }
    }
    Ok(drafts)
}

fn draft(line: &Line, mut event: Map<String, Value>, due: Seq) -> Result<Draft, ImportError> {
    let fault = |text: String| ImportError::at(line.number, due, ImportFault::Event(text));
    let found = event.get("seq").and_then(Value::as_u64);
    let found = found.ok_or_else(|| fault("it has no `seq`".to_owned()))?;
    if found != due {
        return Err(ImportError::at(line.number, found, ImportFault::Sequence { due, found }));
    }
    if let Some(key) = event.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(fault(format!("an event has no key `{key}`")));
    }
    if !event.get("type").is_some_and(Value::is_string) {
        return Err(fault("it has no string `type`".to_owned()));
    }
    if !event.contains_key("data") {
        return Err(fault("it has no `data`".to_owned()));
    }
    if event.get("ignorable").is_some_and(|mark| *mark != Value::Bool(true)) {
        return Err(fault("`ignorable` is true or absent".to_owned()));
    }
    if let Some(sources) = event.get("sourceEventSeqs") {
        match sources.as_array() {
            Some(sources) if sources.is_empty() => {
                event.shift_remove("sourceEventSeqs");
            }
            Some(sources) if sources.iter().all(|it| it.as_u64().is_some_and(|it| it < due)) => {}
            _ => return Err(fault("`sourceEventSeqs` names earlier events".to_owned())),
        }
    }
    Ok(Draft { line: line.number, old: Some(due), event })
}

/// A row of three or more deltas of one block.
fn unpack(
    line: &Line,
    row: &Map<String, Value>,
    drafts: &mut Vec<Draft>,
) -> Result<(), ImportError> {
    let due = drafts.len() as Seq;
    let fault = || {
        let text = "a packed row needs seq0, time0, and data of one length".to_owned();
        ImportError::at(line.number, due, ImportFault::Event(text))
    };
    let (delta, members) = match row.get("type").and_then(Value::as_str) {
        Some("text-chunks") => ("text-delta", "texts"),
        Some("reasoning-chunks") => ("reasoning-delta", "texts"),
        Some("tool-call-chunks") => ("tool-call-delta", "args"),
        _ => return Err(fault()),
    };
    let first = row.get("seq0").and_then(Value::as_u64).ok_or_else(fault)?;
    if first != due {
        return Err(ImportError::at(
            line.number,
            first,
            ImportFault::Sequence { due, found: first },
        ));
    }
    let data = row.get("data").and_then(Value::as_object).ok_or_else(fault)?;
    let list = |key: &str| data.get(key).and_then(Value::as_array).ok_or_else(fault);
    let (gaps, members) = (list("dt")?, list(members)?);
    if members.is_empty() || gaps.len() + 1 != members.len() {
        return Err(fault());
    }
    let mut time = row.get("time0").and_then(Value::as_i64).ok_or_else(fault)?;
    for (at, member) in members.iter().enumerate() {
        if let Some(gap) = at.checked_sub(1).and_then(|before| gaps.get(before)) {
            let gap = gap.as_i64().ok_or_else(fault)?;
            time = time.checked_add(gap).ok_or_else(fault)?;
        }
        let mut chunk = Map::from_iter([("type".to_owned(), delta.into())]);
        for key in ["index", "id", "name"] {
            chunk.extend(data.get(key).map(|value| (key.to_owned(), value.clone())));
        }
        let text = if delta == "tool-call-delta" { "argumentsDelta" } else { "text" };
        chunk.insert(text.to_owned(), member.clone());
        let seq = due + at as Seq;
        let event = json!({
            "type": "assistant/chunk", "seq": seq, "time": time,
            "data": {"turn": data.get("turn"), "step": data.get("step"), "chunk": chunk},
        });
        let Value::Object(event) = event else { return Err(fault()) };
        drafts.push(Draft { line: line.number, old: Some(seq), event });
    }
    Ok(())
}
