//! A log in one line.

use playhouse_messages::{
    content::ContentBlock,
    event::{CancelCause, Event, EventBody, SpliceOutcome, SurfaceOp, TurnEndReason},
    log::Log,
    runtime_context::RUNTIME_CONTEXT,
};

/// A log as words, one an event, without ids and texts.
///
/// | word | event |
/// |---|---|
/// | `IN+`, `IN-`, `INx` | the inbox: a message enters, is claimed, is cancelled or edited |
/// | `TS1`, `TE1(reason)` | a turn starts and ends; `(aborted:parent)`, `(error:CODE)` |
/// | `SS1.2`, `SE1.2` | a step starts and ends |
/// | `SYS+`, `SYS~` | the system prompt, and its replacement |
/// | `U`, `U(kind)`, `CTX` | a person's message, one of another source, the runtime context |
/// | `D(+a,-b)` | tools added and removed |
/// | `H`, `C` | request header and context |
/// | `A`, `A!`, `A(lookup)`, `A()` | an answer, a cut one, one that calls tools, an empty one |
/// | `AT` | an attempt without an answer |
/// | `TC(lookup)`, `TR`, `TR!(CODE)` | a tool call, its result, its failure |
/// | `M(model)`, `ES` | a choice of model, the end of a seed |
///
/// A replacement of what the model sees is marked `~`; an event of a plugin is its kind.
pub fn trace(log: &Log) -> String {
    log.iter().map(|event| word(event)).collect::<Vec<_>>().join(" ")
}

/// One event's word; see [`trace`].
pub fn word(event: &Event) -> String {
    let mark = if matches!(event.surface, Some(SurfaceOp::Replace { .. })) { "~" } else { "" };
    match &event.body {
        EventBody::InboxSpliced(splice) => match (splice.removed_count, splice.outcome) {
            (0, _) => "IN+",
            (_, None) => "IN-",
            (_, Some(SpliceOutcome::Canceled)) => "INx",
        }
        .to_owned(),
        EventBody::TurnStart(data) => format!("TS{}", data.turn),
        EventBody::TurnEnd(data) => format!("TE{}({})", data.turn, reason(&data.reason)),
        EventBody::StepStart(at) => format!("SS{}.{}", at.turn, at.step),
        EventBody::StepEnd(at) => format!("SE{}.{}", at.turn, at.step),
        EventBody::SystemMessage(_) if mark.is_empty() => "SYS+".to_owned(),
        EventBody::SystemMessage(_) => "SYS~".to_owned(),
        EventBody::DeveloperMessage(data) => {
            let blocks = data.message.content.iter().map(|block| match block {
                ContentBlock::ToolAddition { tool_name } => format!("+{tool_name}"),
                ContentBlock::ToolRemoval { tool_name } => format!("-{tool_name}"),
                block => block.kind().to_owned(),
            });
            format!("D({})", blocks.collect::<Vec<_>>().join(","))
        }
        EventBody::UserMessage(message) => match message.source.kind() {
            RUNTIME_CONTEXT => format!("CTX{mark}"),
            "user" => format!("U{mark}"),
            kind => format!("U{mark}({kind})"),
        },
        EventBody::AssistantMessage(data) => {
            let calls: Vec<_> = data.message.tool_calls().map(|call| &*call.name).collect();
            let cut = if data.interrupted { "!" } else { "" };
            match (data.message.content.is_empty(), calls.is_empty()) {
                (true, _) => format!("A{mark}{cut}()"),
                (_, true) => format!("A{mark}{cut}"),
                _ => format!("A{mark}{cut}({})", calls.join(",")),
            }
        }
        EventBody::AssistantAttempt(_) => "AT".to_owned(),
        EventBody::ToolCall(data) => format!("TC({})", data.name),
        EventBody::ToolResult(data) => match (&data.error, data.message.is_error) {
            (Some(error), _) => format!("TR{mark}!({})", error.code),
            (None, Some(true)) => format!("TR{mark}!"),
            _ => format!("TR{mark}"),
        },
        EventBody::RequestHeader(_) => "H".to_owned(),
        EventBody::RequestContext(_) => "C".to_owned(),
        EventBody::ModelSelection(choice) => format!("M({})", choice.model),
        EventBody::EndSeed(_) => "ES".to_owned(),
        EventBody::Custom { kind, .. } => kind.to_string(),
    }
}

fn reason(reason: &TurnEndReason) -> String {
    match reason {
        TurnEndReason::Aborted(cause) => format!("aborted:{}", of(cause)),
        TurnEndReason::Error(failure) => format!("error:{}", failure.code),
        reason => reason.kind().to_owned(),
    }
}

fn of(cause: &CancelCause) -> &'static str {
    match cause {
        CancelCause::User => "user",
        CancelCause::Parent => "parent",
        CancelCause::Disposed => "disposed",
        CancelCause::Hook { .. } => "hook",
        CancelCause::Budget(_) => "budget",
        CancelCause::Legacy => "legacy",
    }
}
