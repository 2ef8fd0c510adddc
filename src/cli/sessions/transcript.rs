//! A session's log for people.

use playhouse_messages::{
    content::ContentBlock,
    event::{EventBody, TurnEndReason},
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
        match &event.body {
            EventBody::TurnStart(turn) => out.line(&format!("\n--- turn {} ---", turn.turn))?,
            EventBody::UserMessage(message) => {
                let who = match message.source.kind() {
                    "user" => "user".to_owned(),
                    other => format!("user ({other})"),
                };
                said(&who, message, out)?;
            }
            EventBody::AssistantMessage(data) => {
                let who = if data.interrupted { "assistant (interrupted)" } else { "assistant" };
                said(who, &data.message, out)?;
            }
            EventBody::AssistantAttempt(_) => {
                out.line("assistant: (an attempt without an answer)")?
            }
            EventBody::ToolCall(call) => {
                out.line(&format!("-> {} {}", tame(&call.name), brief(&call.arguments, BRIEF)))?;
            }
            EventBody::ToolResult(result) => {
                let mark = if result.message.is_error == Some(true) { "<- error:" } else { "<-" };
                out.line(&format!("{mark} {}", brief(&result.message.text(), BRIEF)))?;
            }
            EventBody::TurnEnd(end) if end.reason != TurnEndReason::Completed => {
                out.line(&format!("turn {} ended: {}", end.turn, why(&end.reason)))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn said(who: &str, message: &Message, out: &mut Out) -> Result<(), CliError> {
    for block in &message.content {
        match block {
            ContentBlock::Text(text) if !text.trim().is_empty() => {
                out.line(&format!("{who}: {}", tame(text.trim_end())))?;
            }
            ContentBlock::Reasoning(text) if !text.trim().is_empty() => {
                out.line(&format!("{who} (thinking): {}", brief(text, BRIEF)))?;
            }
            // Calls have events of their own.
            ContentBlock::Text(_) | ContentBlock::Reasoning(_) | ContentBlock::ToolCall(_) => {}
            other => out.line(&format!("{who}: [{}]", tame(other.kind())))?,
        }
    }
    Ok(())
}
