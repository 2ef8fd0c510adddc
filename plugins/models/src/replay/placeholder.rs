//! `{{fromRequest:<regex>}}`: what a request says, put into an answer.

use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    content::ContentBlock,
};
use playhouse_plugin_api::llm::LlmRequest;
use regex_lite::Regex;
use serde_json::Value;

const OPEN: &str = "{{fromRequest:";

/// Checks the placeholders in chunks.
pub(super) fn check(chunks: &[StreamChunk]) -> Result<(), String> {
    each(chunks, &mut |_| Ok(String::new())).map(drop)
}

/// Fills placeholders with the last match in the request: its first group, or all of it.
pub(super) fn fill(
    chunks: &[StreamChunk],
    request: &LlmRequest,
) -> Result<Vec<StreamChunk>, Failure> {
    let mut text: Option<String> = None;
    let filled = each(chunks, &mut |regex| {
        let text = text.get_or_insert_with(|| text_of(request));
        let found = regex.captures_iter(text).last();
        let found = found.and_then(|found| found.get(1).or_else(|| found.get(0)));
        found.map(|part| part.as_str().to_owned()).ok_or_else(|| {
            format!("nothing in the request matches the placeholder's `{}`", regex.as_str())
        })
    });
    filled.map_err(|reason| Failure::new("REPLAY_PLACEHOLDER", reason))
}

type Lookup<'a> = dyn FnMut(&Regex) -> Result<String, String> + 'a;

fn each(chunks: &[StreamChunk], value: &mut Lookup<'_>) -> Result<Vec<StreamChunk>, String> {
    let one = |chunk: &StreamChunk| {
        let mut json = serde_json::to_value(chunk).map_err(|fault| fault.to_string())?;
        if !json_each(&mut json, value)? {
            return Ok(chunk.clone());
        }
        serde_json::from_value(json).map_err(|fault| fault.to_string())
    };
    chunks.iter().map(one).collect()
}

/// Fills all strings of a value; whether there was anything to fill.
fn json_each(json: &mut Value, value: &mut Lookup<'_>) -> Result<bool, String> {
    let mut any = false;
    match json {
        Value::String(text) if text.contains(OPEN) => {
            *text = text_each(text, value)?;
            any = true;
        }
        Value::Array(items) => {
            for item in items {
                any |= json_each(item, value)?;
            }
        }
        Value::Object(fields) => {
            for (_, item) in fields {
                any |= json_each(item, value)?;
            }
        }
        _ => {}
    }
    Ok(any)
}

fn text_each(text: &str, value: &mut Lookup<'_>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPEN) {
        out.push_str(before);
        let end =
            end_of(after).ok_or_else(|| format!("a placeholder in {text:?} is not closed"))?;
        let regex = Regex::new(&after[..end]).map_err(|fault| fault.to_string())?;
        out.push_str(&value(&regex)?);
        rest = &after[end + 2..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The first `}}` that no further `}` follows: a regex may end in a repetition such as `\d{2}`.
fn end_of(text: &str) -> Option<usize> {
    let mut ends = text.match_indices("}}").map(|(at, _)| at);
    let first = ends.next()?;
    Some(first + text[first + 2..].bytes().take_while(|byte| *byte == b'}').count())
}

/// What a request says, a line a block.
fn text_of(request: &LlmRequest) -> String {
    let blocks = request.messages.iter().flat_map(|message| &message.content);
    let mut lines = Vec::new();
    for block in blocks {
        match block {
            ContentBlock::Text(text) | ContentBlock::Reasoning(text) => lines.push(text.clone()),
            ContentBlock::ToolCall(call) => {
                lines.push(format!("{} {} {}", call.id, call.name, call.arguments));
            }
            _ => {}
        }
    }
    lines.join("\n")
}
