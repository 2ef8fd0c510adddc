//! Events in today's shapes, whatever version spelled them otherwise.

use serde_json::{Map, Value, json};

use super::drafts::{Draft, is_core};
use crate::{
    error::{ImportError, ImportFault},
    report::{Note, Report},
};

/// Kinds that say something which no event of today says.
const RETIRED: [&str; 4] =
    ["request/header-delta", "mode/set", "context/message", "steering/message"];

/// Puts an event into today's shape.
pub(super) fn modernize(draft: &mut Draft, report: &mut Report) -> Result<(), ImportError> {
    let kind = draft.kind().to_owned();
    let seq = draft.old.unwrap_or_default();
    let unsupported =
        |text: String| Err(ImportError::at(draft.line, seq, ImportFault::Unsupported(text)));
    if RETIRED.contains(&kind.as_str()) {
        return unsupported(format!(
            "events of the retired kind `{kind}` change what the model was told, and cannot be mapped"
        ));
    }
    if kind == "request/header" && draft.data("reason").and_then(Value::as_str) == Some("fallback")
    {
        return unsupported("`request/header` with the retired reason `fallback`".to_owned());
    }
    if !is_core(&kind) {
        mark(&mut draft.event, &kind, report);
        return Ok(());
    }
    replacement(&mut draft.event, report);
    if kind == "assistant/message" && draft.event.shift_remove("sourceEventSeqs").is_some() {
        report.rewrote("the sources of assistant messages: their stream is embedded");
    }
    let Some(data) = draft.event.get_mut("data").and_then(Value::as_object_mut) else {
        return Ok(());
    };
    match kind.as_str() {
        "user/message" => message(data, report),
        "tool/result" => {
            if let Some(result) = data.get_mut("message").and_then(Value::as_object_mut) {
                tool_message(result, report);
                message(result, report);
            }
        }
        "system/message" | "developer/message" | "assistant/message" => {
            if let Some(inner) = data.get_mut("message").and_then(Value::as_object_mut) {
                message(inner, report);
            }
        }
        "agent/inbox/spliced" => {
            let inserted = data.get_mut("inserted").and_then(Value::as_array_mut);
            for inner in inserted.into_iter().flatten().filter_map(Value::as_object_mut) {
                message(inner, report);
            }
        }
        "request/header" => request_header(data, report),
        "turn/end" => turn_end(data, report),
        _ => {}
    }
    Ok(())
}

/// An event that Playhouse does not know: kept, with what keeps it from being required.
fn mark(event: &mut Map<String, Value>, kind: &str, report: &mut Report) {
    report.note(Note::Kept(kind.to_owned()));
    for key in ["surfaceOp", "sourceEventSeqs"] {
        if event.shift_remove(key).is_some() {
            report.note(Note::Dropped(format!("`{key}` of `{kind}`, which is no message here")));
        }
    }
    event.insert("ignorable".to_owned(), true.into());
}

/// `{op, start, end}` was the older spelling.
fn replacement(event: &mut Map<String, Value>, report: &mut Report) {
    let Some(op) = event.get_mut("surfaceOp").and_then(Value::as_object_mut) else { return };
    if !op.contains_key("start") && !op.contains_key("end") {
        return;
    }
    let renamed = std::mem::take(op).into_iter().map(|(key, value)| match key.as_str() {
        "start" => ("startSeq".to_owned(), value),
        "end" => ("endSeq".to_owned(), value),
        _ => (key, value),
    });
    *op = renamed.collect();
    report.rewrote("replaced ranges, `start` and `end`, as `startSeq` and `endSeq`");
}

fn is_kind(value: &Value, kind: &str) -> bool {
    value.get("type").and_then(Value::as_str) == Some(kind)
}

/// A result was a user message around one `tool-result` block.
fn tool_message(message: &mut Map<String, Value>, report: &mut Report) {
    let is_old = message.get("role").and_then(Value::as_str) == Some("user");
    let content = message.get_mut("content").and_then(Value::as_array_mut);
    let Some([block]) = content.map(Vec::as_mut_slice) else { return };
    if !is_old || !is_kind(block, "tool-result") {
        return;
    }
    let mut block = block.take();
    let Some(block) = block.as_object_mut() else { return };
    message.insert("role".to_owned(), "tool".into());
    for key in ["toolCallId", "isError"] {
        message.extend(block.shift_remove(key).map(|value| (key.to_owned(), value)));
    }
    let content = block.shift_remove("content").unwrap_or_else(|| json!([]));
    message.insert("content".to_owned(), content);
    report.rewrote("tool results in user messages as tool messages");
}

fn message(message: &mut Map<String, Value>, report: &mut Report) {
    if let Some(content) = message.get_mut("content").and_then(Value::as_array_mut) {
        flatten(content, report);
    }
    let Some(source) = message.get_mut("source").and_then(Value::as_object_mut) else { return };
    if source.get("kind").and_then(Value::as_str) == Some("plugin") {
        plugin_source(source, report);
    }
    if let Some(state) = source.get_mut("replayState") {
        envelop(state, report);
    }
}

/// A retired `tool-result` block gives way to what it holds.
fn flatten(content: &mut Vec<Value>, report: &mut Report) {
    // Blocks nest no deeper than JSON may, which was checked on reading.
    while content.iter().any(|block| is_kind(block, "tool-result")) {
        for block in std::mem::take(content) {
            match block {
                Value::Object(mut fields) if fields.get("type") == Some(&"tool-result".into()) => {
                    report.rewrote("retired `tool-result` blocks as what they hold");
                    if let Some(Value::Array(inner)) = fields.shift_remove("content") {
                        content.extend(inner);
                    }
                }
                other => content.push(other),
            }
        }
    }
}

/// Producers shared one kind, `plugin`; the two that the core reads have kinds of their own.
fn plugin_source(source: &mut Map<String, Value>, report: &mut Report) {
    let is_snapshot = source.get("form").and_then(Value::as_str) == Some("snapshot")
        && source.get("sections").is_some_and(Value::is_array);
    let is_compaction = source.get("plugin").and_then(Value::as_str) == Some("compact");
    let kind = match (is_snapshot, is_compaction) {
        (true, _) => "runtime-context",
        (_, true) => "compact-checkpoint",
        _ => return,
    };
    source.shift_remove("plugin");
    source.insert("kind".to_owned(), kind.into());
    report.rewrote("sources of kind `plugin` as their producer's own kind");
}

/// A provider's private state stands in an envelope now.
fn envelop(state: &mut Value, report: &mut Report) {
    if state.get("response").is_none() {
        let response = state.take();
        *state = json!({"response": response});
        report.rewrote("providers' private state in its envelope");
    }
}

fn request_header(data: &mut Map<String, Value>, report: &mut Report) {
    let Some(header) = data.get_mut("header").and_then(Value::as_object_mut) else { return };
    let is_empty = |value: &Value| match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        other => other.is_null(),
    };
    let config = header.get("config").cloned().unwrap_or_default();
    if let Some(marks) = header.get_mut("adapterDefaults").and_then(Value::as_object_mut) {
        let before = marks.len();
        marks.retain(|key, mark| *mark == Value::Bool(true) && config.get(key).is_some());
        if marks.len() < before {
            report.note(Note::Dropped("markers of adapter defaults that mark nothing".to_owned()));
        }
    }
    for key in ["tools", "adapterDefaults"] {
        if header.get(key).is_some_and(is_empty) {
            header.shift_remove(key);
            report.rewrote("request headers with empty lists, without them");
        }
    }
}

/// Causes and failures had other shapes.
fn turn_end(data: &mut Map<String, Value>, report: &mut Report) {
    let Some(reason) = data.get_mut("reason").and_then(Value::as_object_mut) else { return };
    let text = |reason: &Map<String, Value>, key: &str| {
        reason.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let cause = |reason: &Map<String, Value>| {
        let cause = reason.get("reason")?;
        match (cause.get("kind")?.as_str()?, cause.get("reason")) {
            (kind @ ("user" | "parent" | "disposed" | "legacy"), _) => Some(json!({"kind": kind})),
            ("hook", Some(Value::String(why))) => Some(json!({"kind": "hook", "reason": why})),
            _ => None,
        }
    };
    let new = match reason.get("kind").and_then(Value::as_str) {
        Some("disposed") => json!({"kind": "aborted", "reason": {"kind": "disposed"}}),
        Some("aborted") => {
            let cause = cause(reason).unwrap_or_else(|| json!({"kind": "legacy"}));
            json!({"kind": "aborted", "reason": cause})
        }
        Some("error") if !reason.get("error").is_some_and(Value::is_object) => {
            let message =
                text(reason, "message").unwrap_or_else(|| "no reason was kept".to_owned());
            let code = text(reason, "code").unwrap_or_else(|| "UNKNOWN".to_owned());
            json!({"kind": "error", "error": {"message": message, "code": code}})
        }
        _ => return,
    };
    if let Value::Object(new) = new
        && new != *reason
    {
        *reason = new;
        report.rewrote("why turns ended, in today's words");
    }
}

/// The private state that a stream's end carries.
pub(super) fn chunk(chunk: &mut Value, report: &mut Report) {
    if is_kind(chunk, "finish")
        && let Some(state) = chunk.get_mut("replayState")
    {
        envelop(state, report);
    }
}
