//! System prompts that stood in request headers, as messages of the conversation.

use serde_json::{Value, json};

use super::drafts::{Draft, Drafts};
use crate::report::{Note, Report};

/// The prompt that is in force.
#[derive(Debug, Default)]
pub(super) struct Prompt {
    /// The event that says it, by its new number, and its text.
    node: Option<(usize, String)>,
}

impl Prompt {
    /// Takes the prompt out of a header, and says it where the model would have read it: first, and in
    /// the same place when it changes.
    pub(super) fn take(&mut self, header: &mut Draft, out: &mut Drafts, report: &mut Report) {
        let Some(data) = header.event.get_mut("data").and_then(Value::as_object_mut) else {
            return;
        };
        let Some(inner) = data.get_mut("header").and_then(Value::as_object_mut) else { return };
        let text = match inner.shift_remove("system") {
            Some(Value::String(text)) => text,
            // A prompt of text blocks.
            Some(Value::Array(blocks)) => {
                blocks.iter().filter_map(|block| block.get("text")?.as_str()).collect()
            }
            _ => String::new(),
        };
        match &self.node {
            None if text.is_empty() => return,
            Some((_, old)) if *old == text => return,
            None => {
                let (place, at) = first_place(out).unwrap_or_else(|| (out.len(), last_step(out)));
                let mut message = said(header, at, &text, place);
                message.event.insert("surfaceOp".to_owned(), "append".into());
                out.insert(place, message);
                self.node = Some((place, text));
            }
            Some((node, _)) => {
                let place = out.len();
                let mut message = said(header, last_step(out), &text, place);
                let op = json!({"op": "replace", "startSeq": node, "endSeq": node});
                message.event.insert("surfaceOp".to_owned(), op);
                message.event.insert("sourceEventSeqs".to_owned(), json!([node]));
                out.push(message);
                self.node = Some((place, text));
                if let Some(data) = header.event.get_mut("data").and_then(Value::as_object_mut) {
                    data.insert("startsSeries".to_owned(), true.into());
                }
            }
        }
        report.note(Note::Added("`system/message` for prompts that stood in headers".to_owned()));
    }
}

fn said(beside: &Draft, (turn, step): (Value, Value), text: &str, place: usize) -> Draft {
    let content = if text.is_empty() { json!([]) } else { json!([{"type": "text", "text": text}]) };
    let data = json!({"turn": turn, "step": step, "message": {
        "id": format!("imported-system-{place}"),
        "role": "system",
        "content": content,
        "source": {"kind": "system-prompt"},
    }});
    beside.beside("system/message", data)
}

fn step_of(draft: &Draft) -> (Value, Value) {
    let part = |key: &str| draft.data(key).cloned().unwrap_or_default();
    (part("turn"), part("step"))
}

/// The place after the log's first step began, if no message comes before it.
fn first_place(out: &Drafts) -> Option<(usize, (Value, Value))> {
    let first = out.iter().find(|draft| draft.is_surface() || draft.kind() == "step/start")?;
    let place = out.iter().position(|draft| draft.kind() == "step/start")? + 1;
    (first.kind() == "step/start").then(|| (place, step_of(first)))
}

/// The step that is open where the log stands.
fn last_step(out: &Drafts) -> (Value, Value) {
    let starts = out.iter().filter(|draft| draft.kind() == "step/start");
    starts.last().map(step_of).unwrap_or_default()
}
