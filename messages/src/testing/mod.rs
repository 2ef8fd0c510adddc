//! Builders of logs for tests, here and in the crates above.

mod legal;

use std::sync::Arc;

use serde_json::json;

use crate::{
    config::{CallConfig, Header, HeaderReason, RequestContext, ToolSchema},
    content::{ContentBlock, ToolCallBlock},
    event::{
        AssistantAttempt, AssistantMessage, EventBody, NewEvent, RequestHeader, Seq, StepAt,
        SystemMessage, ToolCall, ToolResult, TurnEnd, TurnEndReason, TurnStart,
    },
    history::History,
    log::Log,
    message::{Message, Role, Source},
    surface::Surface,
};

pub use legal::Grower;

/// How long a property is tried: for so many cases, or for those that `PROPTEST_CASES` says.
#[cfg(test)]
pub fn cases(default: u32) -> proptest::test_runner::Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    proptest::test_runner::Config::with_cases(cases.unwrap_or(default))
}

/// A user message of one text block, as an append.
pub fn user(id: &str, text: &str) -> NewEvent {
    NewEvent::append(EventBody::UserMessage(Arc::new(Message::user(id, text))))
}

/// A tool schema that takes any object.
pub fn schema(name: &str) -> Arc<ToolSchema> {
    Arc::new(ToolSchema {
        name: name.into(),
        description: format!("does {name}"),
        parameters: json!({"type": "object"}),
        defer_loading: false,
    })
}

/// A header of route `p/m` with these tools.
pub fn header(tools: &[&str]) -> Header {
    Header {
        config: CallConfig { provider: "p".into(), model: "m".into(), ..CallConfig::default() },
        adapter_defaults: Default::default(),
        tools: tools.iter().map(|name| schema(name)).collect(),
    }
}

/// An assistant message of `p/m`: a text block unless empty, then a call of each id.
pub fn assistant(id: &str, text: &str, calls: &[&str]) -> Message {
    let text = (!text.is_empty()).then(|| ContentBlock::text(text));
    let calls = calls.iter().map(|id| {
        ContentBlock::ToolCall(ToolCallBlock {
            id: (*id).into(),
            name: "tool".into(),
            arguments: "{}".into(),
        })
    });
    Message {
        id: id.into(),
        role: Role::Assistant,
        tool_call_id: None,
        is_error: None,
        content: text.into_iter().chain(calls).collect(),
        source: Source::model("p", "m", None),
    }
}

/// Writes a log event by event, with its surface and history. Each event's time is its seq.
///
/// It checks the surface only; what else is legal is up to the test.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// What was written.
    pub log: Log,
    /// Its surface.
    pub surface: Surface,
    /// Its history.
    pub history: History,
    at: (u32, u32),
}

impl Script {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes an event and returns its seq.
    ///
    /// # Panics
    ///
    /// If the surface refuses it.
    pub fn push(&mut self, event: NewEvent) -> Seq {
        let seq = self.log.len();
        let change = match self.surface.check(&self.log, &event) {
            Ok(change) => change,
            Err(fault) => panic!("event {seq}: {fault}"),
        };
        self.history.apply(&self.surface, seq, &event.body, &change);
        self.surface.apply(seq, &event.body, &change);
        self.log.push(Arc::new(event.at(seq, i64::try_from(seq).unwrap_or(i64::MAX))));
        seq
    }

    /// Writes a log-only event.
    pub fn log_only(&mut self, body: EventBody) -> Seq {
        self.push(NewEvent::log_only(body))
    }

    /// Starts a turn.
    pub fn turn(&mut self, turn: u32) -> &mut Self {
        self.at = (turn, 0);
        self.log_only(EventBody::TurnStart(TurnStart { turn }));
        self
    }

    /// Ends a turn.
    pub fn end_turn(&mut self, turn: u32, reason: TurnEndReason) -> &mut Self {
        self.log_only(EventBody::TurnEnd(TurnEnd { turn, reason }));
        self
    }

    /// Starts a step.
    pub fn step(&mut self, turn: u32, step: u32) -> &mut Self {
        self.at = (turn, step);
        self.log_only(EventBody::StepStart(StepAt { turn, step }));
        self
    }

    /// Ends a step.
    pub fn end_step(&mut self, turn: u32, step: u32) -> &mut Self {
        self.log_only(EventBody::StepEnd(StepAt { turn, step }));
        self
    }

    /// A system message of the current step, not written.
    pub fn system_event(&self, text: &str) -> EventBody {
        let (turn, step) = self.at;
        let id = format!("system-{}", self.log.len());
        EventBody::SystemMessage(SystemMessage {
            turn,
            step,
            message: Arc::new(Message::system(id, text)),
        })
    }

    /// Appends a system message.
    pub fn system(&mut self, text: &str) -> Seq {
        self.push(NewEvent::append(self.system_event(text)))
    }

    /// Appends a user message without content.
    pub fn push_empty_user(&mut self, id: &str) -> Seq {
        let message = Message::user_from(id, vec![], Source::user());
        self.push(NewEvent::append(EventBody::UserMessage(Arc::new(message))))
    }

    /// Writes the event in the place of the nodes from `start` to `end`, citing those.
    pub fn replace(&mut self, event: NewEvent, start: Seq, end: Seq) -> Seq {
        let nodes = self.surface.nodes().skip_while(|seq| *seq != start);
        let mut sources = Vec::new();
        for seq in nodes {
            sources.push(seq);
            if seq == end {
                break;
            }
        }
        self.push(NewEvent::replace(event.body, start, end, sources))
    }

    /// Writes a request header of `p/m`.
    pub fn header(&mut self, tools: &[&str]) -> Seq {
        self.header_for(header(tools), HeaderReason::Initial)
    }

    /// Writes a request header.
    pub fn header_for(&mut self, header: Header, reason: HeaderReason) -> Seq {
        let header = Arc::new(header);
        self.log_only(EventBody::RequestHeader(RequestHeader {
            header,
            reason,
            starts_series: false,
        }))
    }

    /// Writes a request context of `p/m`.
    pub fn context(&mut self) -> Seq {
        self.log_only(EventBody::RequestContext(RequestContext {
            provider: "p".into(),
            model: "m".into(),
            context_window: None,
            system_prompt_update: None,
        }))
    }

    /// Appends an assistant message to the current step.
    pub fn assistant(&mut self, text: &str, calls: &[&str]) -> Seq {
        let (turn, step) = self.at;
        let message = Arc::new(assistant(&format!("assistant-{}", self.log.len()), text, calls));
        self.push(NewEvent::append(EventBody::AssistantMessage(AssistantMessage {
            turn,
            step,
            message,
            stream: vec![],
            usage: None,
            interrupted: false,
        })))
    }

    /// Writes an attempt without a message in the current step.
    pub fn attempt(&mut self) -> Seq {
        let (turn, step) = self.at;
        self.log_only(EventBody::AssistantAttempt(AssistantAttempt { turn, step, stream: vec![] }))
    }

    /// Writes a tool call of the current step.
    pub fn call(&mut self, id: &str) -> Seq {
        let (turn, step) = self.at;
        self.log_only(EventBody::ToolCall(ToolCall {
            turn,
            step,
            call_id: id.into(),
            name: "tool".into(),
            arguments: "{}".into(),
        }))
    }

    /// Appends the result of the last call of this id.
    pub fn result(&mut self, id: &str, text: &str) -> Seq {
        let (turn, step) = self.at;
        let content = if text.is_empty() { vec![] } else { vec![ContentBlock::text(text)] };
        let message_id = format!("result-{}", self.log.len());
        let call = self.log.iter().rev().find_map(|event| match &event.body {
            EventBody::ToolCall(call) if call.call_id == id => Some(event.seq),
            _ => None,
        });
        let body = EventBody::ToolResult(ToolResult {
            turn,
            step,
            message: Arc::new(Message::tool(message_id, &id.into(), false, content)),
            error: None,
            meta: None,
        });
        self.push(NewEvent::append(body).citing(call))
    }
}
