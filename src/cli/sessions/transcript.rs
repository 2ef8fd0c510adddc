//! A session's log for people.

use playhouse_context::TokenMeter;
use playhouse_messages::{
    content::ContentBlock,
    event::{Event, EventBody, TurnEndReason},
    header::SessionHeader,
    log::Log,
    message::Message,
};

use super::title;
use crate::cli::{
    exit::CliError,
    output::{Out, brief, tame},
    show::why,
};

/// How much of a tool call or result is shown.
const BRIEF: usize = 200;

/// Writes what was said and done, in order.
pub(super) fn write(header: &SessionHeader, log: &Log, out: &mut Out) -> Result<(), CliError> {
    out.line(&title(header))?;
    for event in log.iter() {
        for line in lines(event) {
            out.line(&line)?;
        }
    }
    out.line(&format!("\n{}", tokens(log)))
}

/// What is shown of an event; a line may have several.
pub(in crate::cli) fn lines(event: &Event) -> Vec<String> {
    match &event.body {
        EventBody::TurnStart(turn) => vec![format!("\n--- turn {} ---", turn.turn)],
        EventBody::UserMessage(message) => match message.source.kind() {
            "user" => said("user", message),
            other => said(&format!("user ({other})"), message),
        },
        EventBody::AssistantMessage(data) => {
            let who = if data.interrupted { "assistant (interrupted)" } else { "assistant" };
            said(who, &data.message)
        }
        EventBody::AssistantAttempt(_) => vec!["assistant: (an attempt without an answer)".into()],
        EventBody::ToolCall(call) => {
            vec![format!("-> {} {}", tame(&call.name), brief(&call.arguments, BRIEF))]
        }
        EventBody::ToolResult(result) => {
            let mark = if result.message.is_error == Some(true) { "<- error:" } else { "<-" };
            vec![format!("{mark} {}", brief(&result.message.text(), BRIEF))]
        }
        EventBody::TurnEnd(end) if end.reason != TurnEndReason::Completed => {
            vec![format!("turn {} ended: {}", end.turn, why(&end.reason))]
        }
        _ => Vec::new(),
    }
}

/// What the session cost, and how full its window is.
fn tokens(log: &Log) -> String {
    let mut meter = TokenMeter::new();
    if let Err(error) = meter.catch_up(log) {
        return format!("tokens unknown: {error}");
    }
    let (usage, window) = (meter.session_usage(), meter.measure(None).total_tokens);
    let (cost, pressure) = (usage.token_usage, usage.context_pressure);
    let read = cost.cache_read_tokens + cost.cache_write_tokens;
    let cached = if read > 0 { format!(", {read} cached") } else { String::new() };
    let of = pressure.context_window.map_or_else(String::new, |size| format!(" of {size}"));
    format!(
        "tokens: {} in{cached}, {} out; the next request has about {window}{of}",
        cost.uncached_input_tokens, cost.output_tokens
    )
}

fn said(who: &str, message: &Message) -> Vec<String> {
    let lines = message.content.iter().filter_map(|block| match block {
        ContentBlock::Text(text) if !text.trim().is_empty() => {
            Some(format!("{who}: {}", tame(text.trim_end())))
        }
        ContentBlock::Reasoning(text) if !text.trim().is_empty() => {
            Some(format!("{who} (thinking): {}", brief(text, BRIEF)))
        }
        // Calls have events of their own.
        ContentBlock::Text(_) | ContentBlock::Reasoning(_) | ContentBlock::ToolCall(_) => None,
        other => Some(format!("{who}: [{}]", tame(other.kind()))),
    });
    lines.collect()
}
