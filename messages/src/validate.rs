//! Event-local validation: what can be said of an event from itself and the earlier events that it
//! names. It applies to live appends and to loads alike.

use std::collections::HashSet;

use serde_json::Value;

use crate::{
    candidate::Candidate,
    chunk::{Failure, StreamChunk, Usage},
    config::{Header, RequestContext, ToolSchema},
    content::ContentBlock,
    event::{CancelCause, DeveloperMessage, EventBody, NewEvent, Seq, TurnEndReason},
    json::{INTEGER_MAX, NotLossless, check_lossless, check_lossless_nested},
    log::Log,
    message::{Message, Role},
    packed::StreamRecord,
};

/// How deep the core's own shapes nest around a free value, at most: what is left of the limit
/// belongs to the value.
const OUTER_LEVELS: usize = 8;

/// Why an event is refused, whatever the state of its session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// A kind that older formats had, or that only the core writes in typed form.
    #[error("events of kind \"{kind}\" cannot be written")]
    Kind {
        /// The event's type.
        kind: String,
    },
    /// A field is out of range.
    #[error("`{kind}` field `{field}`: {reason}")]
    Field {
        /// The event's type.
        kind: String,
        /// The field's JSON name.
        field: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A message does not fit its event or its role.
    #[error("`{kind}` message \"{id}\": {reason}")]
    Message {
        /// The event's type.
        kind: String,
        /// The message.
        id: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A value would not read back as it was written.
    #[error("`{kind}` field `{field}`: {fault}")]
    NotLossless {
        /// The event's type.
        kind: String,
        /// The field's JSON name.
        field: &'static str,
        /// The value's fault.
        #[source]
        fault: NotLossless,
    },
    /// The sources are not distinct earlier events, or stand where none may.
    #[error("`{kind}` sources: {reason}")]
    Sources {
        /// The event's type.
        kind: String,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// A developer message's header reference does not fit its additions.
    #[error("`developer/message` header reference: {reason}")]
    HeaderReference {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An added tool has no proper definition in the header.
    #[error("added tool \"{tool}\": {reason}")]
    AddedTool {
        /// The tool.
        tool: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl InvalidEvent {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Kind { .. } => "INVALID_EVENT_KIND",
            Self::Field { .. } => "INVALID_EVENT_FIELD",
            Self::Message { .. } => "INVALID_MESSAGE",
            Self::NotLossless { .. } => "NOT_LOSSLESS",
            Self::Sources { .. } => "INVALID_SOURCES",
            Self::HeaderReference { .. } => "INVALID_HEADER_REFERENCE",
            Self::AddedTool { .. } => "INVALID_ADDED_TOOL",
        }
    }
}

/// Checks a new event for the end of `log`.
pub fn check(log: &Log, event: &NewEvent) -> Result<(), InvalidEvent> {
    check_candidate(log, Candidate::new(log.len(), event))
}

/// Checks an event; `log` holds at least the events before it.
pub fn check_candidate(log: &Log, event: Candidate<'_>) -> Result<(), InvalidEvent> {
    let check = Check { kind: event.body.kind() };
    check.sources(event)?;
    match event.body {
        EventBody::InboxSpliced(data) => {
            for message in &data.inserted {
                check.message(message, Role::User)?;
            }
            if data.outcome.is_some() && data.removed_count == 0 {
                return Err(check.field("outcome", "without a removal"));
            }
            Ok(())
        }
        EventBody::TurnStart(_) | EventBody::StepStart(_) | EventBody::StepEnd(_) => Ok(()),
        EventBody::TurnEnd(data) => check.turn_end(&data.reason),
        EventBody::SystemMessage(data) => {
            check.message(&data.message, Role::System)?;
            match data.message.source.kind() {
                "system-prompt" => Ok(()),
                _ => Err(check.of(&data.message, "its source must be `system-prompt`")),
            }
        }
        EventBody::DeveloperMessage(data) => {
            check.message(&data.message, Role::Developer)?;
            check.developer(log, event.seq, data)
        }
        EventBody::UserMessage(message) => check.message(message, Role::User),
        EventBody::AssistantMessage(data) => {
            check.message(&data.message, Role::Assistant)?;
            check.assistant(&data.message)?;
            check.usage(data.usage.as_ref())?;
            check.stream(&data.stream)
        }
        EventBody::AssistantAttempt(data) => check.stream(&data.stream),
        EventBody::ToolCall(_) => Ok(()),
        EventBody::ToolResult(data) => {
            check.message(&data.message, Role::Tool)?;
            if data.error.is_some() && data.message.is_error != Some(true) {
                return Err(check.field("error", "only with `isError: true` on the message"));
            }
            data.meta.as_ref().map_or(Ok(()), |meta| check.lossless("meta", meta))
        }
        EventBody::RequestHeader(data) => check.header(&data.header),
        EventBody::RequestContext(data) => check.context(data),
        EventBody::ModelSelection(choice) => {
            check.non_empty("provider", &choice.provider)?;
            check.non_empty("model", &choice.model)?;
            check.non_empty("reasoningEffort", choice.reasoning_effort.as_deref().unwrap_or("x"))
        }
        EventBody::EndSeed(_) => Ok(()),
        EventBody::Custom { kind, data } => {
            if kind.is_empty() || OBSOLETE.contains(&&**kind) || CORE.contains(&&**kind) {
                return Err(InvalidEvent::Kind { kind: check.kind.to_owned() });
            }
            check_lossless(data).map_err(|fault| check.not_lossless("data", fault))
        }
    }
}

/// Kinds of older formats that mean something to old readers only.
const OBSOLETE: &[&str] = &["request/header-delta"];

/// Kinds that the core writes in typed form: as custom events they would read back as others.
const CORE: &[&str] = &[
    "agent/inbox/spliced",
    "turn/start",
    "turn/end",
    "step/start",
    "step/end",
    "system/message",
    "developer/message",
    "user/message",
    "assistant/message",
    "assistant/attempt",
    "tool/call",
    "tool/result",
    "request/header",
    "request/context",
    "model/selection",
    "session/end-seed",
];

struct Check<'a> {
    kind: &'a str,
}

impl Check<'_> {
    fn field(&self, field: &'static str, reason: &'static str) -> InvalidEvent {
        InvalidEvent::Field { kind: self.kind.to_owned(), field, reason }
    }

    fn of(&self, message: &Message, reason: &'static str) -> InvalidEvent {
        let id = message.id.as_str().to_owned();
        InvalidEvent::Message { kind: self.kind.to_owned(), id, reason }
    }

    fn not_lossless(&self, field: &'static str, fault: NotLossless) -> InvalidEvent {
        InvalidEvent::NotLossless { kind: self.kind.to_owned(), field, fault }
    }

    fn lossless(&self, field: &'static str, value: &Value) -> Result<(), InvalidEvent> {
        check_lossless_nested(value, OUTER_LEVELS).map_err(|fault| self.not_lossless(field, fault))
    }

    fn non_empty(&self, field: &'static str, text: &str) -> Result<(), InvalidEvent> {
        if text.is_empty() { Err(self.field(field, "must not be empty")) } else { Ok(()) }
    }

    fn integers(
        &self,
        fields: impl IntoIterator<Item = (&'static str, Option<u64>)>,
    ) -> Result<(), InvalidEvent> {
        match fields.into_iter().find(|(_, n)| n.is_some_and(|n| n > INTEGER_MAX)) {
            Some((field, _)) => Err(self.field(field, "an integer beyond 2^53 - 1")),
            None => Ok(()),
        }
    }

    fn sources(&self, event: Candidate<'_>) -> Result<(), InvalidEvent> {
        let refuse = |reason| Err(InvalidEvent::Sources { kind: self.kind.to_owned(), reason });
        if event.sources.is_empty() {
            return Ok(());
        }
        if matches!(event.body, EventBody::AssistantMessage(_)) && !event.is_replacement() {
            return refuse("an assistant message carries its stream and cites nothing");
        }
        if event.sources.iter().any(|source| *source >= event.seq) {
            return refuse("must be earlier events");
        }
        let distinct: HashSet<Seq> = event.sources.iter().copied().collect();
        if distinct.len() != event.sources.len() {
            return refuse("must be distinct");
        }
        Ok(())
    }

    fn message(&self, message: &Message, role: Role) -> Result<(), InvalidEvent> {
        let refuse = |reason| Err(self.of(message, reason));
        if message.id.as_str().is_empty() {
            return refuse("its id must not be empty");
        }
        if message.role != role {
            return refuse("its role does not fit the event");
        }
        if message.source.kind().is_empty() {
            return refuse("its source needs a `kind`");
        }
        if role == Role::Tool {
            let call = message.tool_call_id.as_ref().map(|id| id.as_str());
            if call.is_none() || message.source.get("callId") != call {
                return refuse("`toolCallId` must equal its source's `callId`");
            }
        } else if message.tool_call_id.is_some() || message.is_error.is_some() {
            return refuse("`toolCallId` and `isError` belong to tool messages");
        }
        for block in &message.content {
            self.block(message, block)?;
        }
        let fields = message.source.fields().values();
        fields.into_iter().try_for_each(|value| self.lossless("source", value))
    }

    fn block(&self, message: &Message, block: &ContentBlock) -> Result<(), InvalidEvent> {
        let refuse = |reason| Err(self.of(message, reason));
        if matches!(block.kind(), "tool-addition" | "tool-removal") {
            if message.role != Role::Developer {
                return refuse("tool changes belong to developer messages");
            }
            return match block {
                ContentBlock::ToolAddition { tool_name }
                | ContentBlock::ToolRemoval { tool_name }
                    if !tool_name.is_empty() =>
                {
                    Ok(())
                }
                _ => refuse("a tool change carries a `toolName` and nothing else"),
            };
        }
        match block {
            ContentBlock::Image { attachment, .. } | ContentBlock::File { attachment } => {
                self.lossless("attachment", attachment)
            }
            ContentBlock::Other(fields) => {
                fields.values().try_for_each(|value| self.lossless("content", value))
            }
            _ => Ok(()),
        }
    }

    fn assistant(&self, message: &Message) -> Result<(), InvalidEvent> {
        let named = |key| message.source.get(key).is_some_and(|name| !name.is_empty());
        if message.source.kind() != "model" || !named("provider") || !named("model") {
            return Err(self.of(message, "its source must be `model` with provider and model"));
        }
        Ok(())
    }

    fn developer(&self, log: &Log, seq: Seq, data: &DeveloperMessage) -> Result<(), InvalidEvent> {
        let refuse = |reason| Err(InvalidEvent::HeaderReference { reason });
        let blocks = data.message.content.iter();
        let mut added = blocks.filter_map(|block| match block {
            ContentBlock::ToolAddition { tool_name } => Some(tool_name),
            _ => None,
        });
        let mut added = added.by_ref().peekable();
        let header_seq = match (data.header_seq, added.peek().is_some()) {
            (None, false) => return Ok(()),
            (None, true) => return refuse("missing, though tools are added"),
            (Some(_), false) => return refuse("present, though no tool is added"),
            (Some(header_seq), true) => header_seq,
        };
        let earlier = log.get(header_seq).filter(|_| header_seq < seq);
        let Some(EventBody::RequestHeader(header)) = earlier.map(|event| &event.body) else {
            return refuse("does not name an earlier `request/header`");
        };
        for name in added {
            let refuse = |reason| Err(InvalidEvent::AddedTool { tool: name.clone(), reason });
            let mut defined = header.header.tools.iter().filter(|tool| tool.name == *name);
            match (defined.next(), defined.next()) {
                (None, _) => return refuse("the header does not define it"),
                (_, Some(_)) => return refuse("the header defines it more than once"),
                (Some(tool), None) if !tool.parameters.is_object() => {
                    return refuse("its `parameters` must be an object");
                }
                (Some(_), None) => {}
            }
        }
        Ok(())
    }

    fn header(&self, header: &Header) -> Result<(), InvalidEvent> {
        let Header { config, adapter_defaults, tools } = header;
        self.non_empty("provider", &config.provider)?;
        self.non_empty("model", &config.model)?;
        self.non_empty("reasoningEffort", config.reasoning_effort.as_deref().unwrap_or("x"))?;
        self.integers([("maxTokens", config.max_tokens)])?;
        if config.max_tokens == Some(0) {
            return Err(self.field("maxTokens", "must be positive"));
        }
        let negative_zero = |n: f64| n == 0.0 && n.is_sign_negative();
        if config.temperature.is_some_and(|n| !n.is_finite() || negative_zero(n)) {
            return Err(self.field("temperature", "must be a finite number"));
        }
        if (adapter_defaults.reasoning_effort && config.reasoning_effort.is_none())
            || (adapter_defaults.max_tokens && config.max_tokens.is_none())
        {
            return Err(self.field("adapterDefaults", "marks a field that the config lacks"));
        }
        for tool in tools.iter() {
            let ToolSchema { name, parameters, .. } = &**tool;
            self.non_empty("tools", name)?;
            self.lossless("tools", parameters)?;
        }
        Ok(())
    }

    fn context(&self, context: &RequestContext) -> Result<(), InvalidEvent> {
        self.non_empty("provider", &context.provider)?;
        self.non_empty("model", &context.model)?;
        self.integers([("contextWindow", context.context_window)])
    }

    fn turn_end(&self, reason: &TurnEndReason) -> Result<(), InvalidEvent> {
        match reason {
            TurnEndReason::Error(failure) => self.failure(failure),
            TurnEndReason::Aborted(CancelCause::Budget(_)) => {
                Err(self.field("reason", "must be `budget` if a budget ended the turn"))
            }
            TurnEndReason::Budget(spent) => {
                self.integers([("limit", Some(spent.limit)), ("used", Some(spent.used))])
            }
            TurnEndReason::Other(fields) => {
                fields.values().try_for_each(|value| self.lossless("reason", value))
            }
            _ => Ok(()),
        }
    }

    fn failure(&self, failure: &Failure) -> Result<(), InvalidEvent> {
        self.non_empty("message", &failure.message)?;
        self.non_empty("code", &failure.code)?;
        self.integers([("providerRetryAfterMs", failure.provider_retry_after_ms)])
    }

    fn usage(&self, usage: Option<&Usage>) -> Result<(), InvalidEvent> {
        let Some(usage) = usage else { return Ok(()) };
        self.integers([
            ("inputTokens", Some(usage.input_tokens)),
            ("outputTokens", Some(usage.output_tokens)),
            ("totalTokens", usage.total_tokens),
            ("cacheReadTokens", usage.cache_read_tokens),
            ("cacheWriteTokens", usage.cache_write_tokens),
            ("reasoningTokens", usage.reasoning_tokens),
        ])
    }

    /// Only what a chunk carries free form; the records' own shape is their type's business.
    fn stream(&self, records: &[StreamRecord]) -> Result<(), InvalidEvent> {
        for record in records {
            let StreamRecord::Chunk { chunk, .. } = record else { continue };
            match chunk {
                StreamChunk::Usage { usage } => self.usage(Some(usage))?,
                StreamChunk::Finish { replay_state: Some(state), .. } => {
                    self.lossless("stream", &state.response)?;
                    let blocks = state.blocks.iter().flatten();
                    blocks.into_iter().try_for_each(|value| self.lossless("stream", value))?;
                }
                StreamChunk::BlockEnd { block, .. } => match block {
                    ContentBlock::Image { attachment, .. } | ContentBlock::File { attachment } => {
                        self.lossless("stream", attachment)?;
                    }
                    ContentBlock::Other(fields) => {
                        fields.values().try_for_each(|value| self.lossless("stream", value))?;
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
