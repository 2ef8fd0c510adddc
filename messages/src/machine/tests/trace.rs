//! The durable log in one line: the notation of the core specification, section 0.3.
//!
//! A prompt's text stands in parentheses unless it is "P"; a cause unless it is the user.

use crate::{
    content::ContentBlock,
    event::{CancelCause, Event, EventBody, InboxTarget, SurfaceOp, TurnEndReason},
    message::Message,
    runtime_context::{CLEARED_TEXT, RUNTIME_CONTEXT},
};

pub fn trace<'a>(events: impl Iterator<Item = &'a std::sync::Arc<Event>>) -> String {
    events.map(|event| word(event)).collect::<Vec<_>>().join(" ")
}

fn word(event: &Event) -> String {
    let mark = match event.surface {
        Some(SurfaceOp::Replace { .. }) => "~",
        _ => "",
    };
    match &event.body {
        EventBody::InboxSpliced(splice) => {
            let list = match splice.target {
                InboxTarget::NextTurn => "T",
                InboxTarget::NextStep => "S",
            };
            let ids: Vec<_> = splice.inserted.iter().map(|m| m.id.as_str()).collect();
            let ids = ids.join(",");
            match (splice.removed_count, splice.outcome) {
                (0, _) => format!("IN+({list},{ids})"),
                (n, None) => format!("IN-({list},{n})"),
                (n, Some(_)) if ids.is_empty() => format!("INx({list},{n})"),
                (n, Some(_)) => format!("INx({list},{n},{ids})"),
            }
        }
        EventBody::TurnStart(data) => format!("TS{}", data.turn),
        EventBody::TurnEnd(data) => format!("TE{}({})", data.turn, reason(&data.reason)),
        EventBody::StepStart(at) => format!("SS{}.{}", at.turn, at.step),
        EventBody::StepEnd(at) => format!("SE{}.{}", at.turn, at.step),
        EventBody::SystemMessage(data) => {
            let mark = if mark.is_empty() { "+" } else { mark };
            match &*data.message.text() {
                "P" => format!("SYS{mark}"),
                text => format!("SYS{mark}({text})"),
            }
        }
        EventBody::DeveloperMessage(data) => {
            let blocks = data.message.content.iter().map(|block| match block {
                ContentBlock::ToolAddition { tool_name } => format!("+{tool_name}"),
                ContentBlock::ToolRemoval { tool_name } => format!("-{tool_name}"),
                block => block.kind().to_owned(),
            });
            format!("D({})", blocks.collect::<Vec<_>>().join(","))
        }
        EventBody::UserMessage(message) => user(message, mark),
        EventBody::AssistantMessage(data) => {
            let calls: Vec<_> = data.message.tool_calls().map(|call| call.id.as_str()).collect();
            let cut = if data.interrupted { "!" } else { "" };
            match (data.message.content.is_empty(), calls.is_empty()) {
                (true, _) => format!("A{cut}()"),
                (_, true) => format!("A{cut}"),
                _ => format!("A{cut}({})", calls.join(",")),
            }
        }
        EventBody::AssistantAttempt(_) => "AT".to_owned(),
        EventBody::ToolCall(data) => format!("TC({})", data.call_id),
        EventBody::ToolResult(data) => {
            let call = data.message.tool_call_id.clone().unwrap();
            match &data.error {
                Some(error) => format!("TR{mark}({call},{})", error.code),
                None => format!("TR{mark}({call})"),
            }
        }
        EventBody::RequestHeader(data) => {
            let reason = serde_json::to_value(data.reason).unwrap();
            let series = if data.starts_series { ",S" } else { "" };
            format!("H({}{series})", reason.as_str().unwrap())
        }
        EventBody::RequestContext(_) => "C".to_owned(),
        EventBody::ModelSelection(choice) => format!("M({})", choice.model),
        EventBody::EndSeed(_) => "ES".to_owned(),
        EventBody::Custom { kind, .. } => kind.to_string(),
    }
}

fn user(message: &Message, mark: &str) -> String {
    if message.source.kind() != RUNTIME_CONTEXT {
        return format!("U{mark}({})", message.id);
    }
    match &*message.text() {
        CLEARED_TEXT => "CTX(cleared)".to_owned(),
        text => format!("CTX({})", text.rsplit("\n\n").next().unwrap()),
    }
}

fn reason(reason: &TurnEndReason) -> String {
    match reason {
        TurnEndReason::Aborted(CancelCause::User) => "aborted".to_owned(),
        TurnEndReason::Aborted(CancelCause::Hook { reason }) => format!("aborted:hook:{reason}"),
        TurnEndReason::Aborted(cause) => format!("aborted:{cause:?}").to_lowercase(),
        TurnEndReason::Error(failure) => format!("error:{}", failure.code),
        TurnEndReason::Budget(spent) if spent.resource != "steps" => {
            format!("budget:{}", spent.resource)
        }
        reason => reason.kind().to_owned(),
    }
}
