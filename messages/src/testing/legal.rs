//! Random logs that a session would accept.

use std::sync::Arc;

use serde_json::json;

use super::{assistant, header, user};
use crate::{
    chunk::{Failure, Usage},
    config::{HeaderReason, ModelChoice, RequestContext},
    content::ContentBlock,
    event::{
        AssistantAttempt, AssistantMessage, CancelCause, DeveloperMessage, EndSeed, EventBody,
        InboxSpliced, InboxTarget, NewEvent, RequestHeader, Seq, StepAt, SystemMessage, ToolCall,
        ToolResult, TurnEnd, TurnEndReason, TurnStart,
    },
    log::Log,
    message::{Message, Role, Source},
    runtime_context::RUNTIME_CONTEXT,
    session_state::{AppendError, SessionState},
    surface::IMAGE_OFFLOAD,
};

/// Grows a log event by event, and its state with it.
#[derive(Debug, Clone, Default)]
pub struct Grower {
    /// The log.
    pub log: Log,
    /// Its state, folded as the log grew.
    pub state: SessionState,
}

impl Grower {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// A log grown by choices: each pair picks what happens and to what. Choices that would be
    /// illegal are skipped, so every sequence gives a legal log.
    pub fn grown(choices: &[(u8, u8)]) -> Self {
        let mut grower = Self::new();
        for (what, which) in choices {
            grower.choose(*what, *which);
        }
        grower
    }

    /// Appends an event if it is legal.
    pub fn push(&mut self, event: NewEvent) -> Result<Seq, AppendError> {
        let planned = self.state.check(&self.log, &event)?;
        let seq = self.log.len();
        // Times jump about: nothing may depend on their order.
        let event = Arc::new(event.at(seq, 1_000 - (seq as i64 * 7) % 13));
        self.log.push(event.clone());
        self.state.apply(&self.log, planned, &event);
        Ok(seq)
    }

    /// Makes one choice.
    pub fn choose(&mut self, what: u8, which: u8) {
        for event in self.events(what, which) {
            if self.push(event).is_err() {
                return;
            }
        }
    }

    fn events(&self, what: u8, which: u8) -> Vec<NewEvent> {
        let n = self.log.len();
        let at = self.state.boundary().at().unwrap_or(StepAt { turn: 1, step: 1 });
        let StepAt { turn, step } = at;
        let target =
            if which.is_multiple_of(2) { InboxTarget::NextTurn } else { InboxTarget::NextStep };
        let inbox = self.state.inbox();
        let message = |prefix: &str| Arc::new(Message::user(format!("{prefix}{n}"), "text"));
        let spliced = |splices: Vec<InboxSpliced>| {
            splices.into_iter().map(|s| NewEvent::log_only(EventBody::InboxSpliced(s))).collect()
        };
        let log_only = |body| vec![NewEvent::log_only(body)];
        let append = |body| vec![NewEvent::append(body)];
        let tools: Vec<&str> = ["a", "b", "c"]
            .into_iter()
            .enumerate()
            .filter(|(i, _)| which >> i & 1 == 1)
            .map(|t| t.1)
            .collect();
        let nodes: Vec<Seq> = self.state.surface().nodes().collect();
        let node = nodes.get(usize::from(which) % nodes.len().max(1)).copied();
        let first_pending = || inbox.list(target).first().map(|message| message.id.clone());
        match what % 32 {
            0 => spliced(inbox.insert_at_tail(target, message("m")).into_iter().collect()),
            1 => spliced(inbox.prepend(target, message("m")).into_iter().collect()),
            2 => spliced(first_pending().and_then(|id| inbox.remove(&id)).into_iter().collect()),
            3 if which.is_multiple_of(4) => spliced(inbox.clear()),
            4 => spliced(
                first_pending()
                    .and_then(|id| inbox.replace(&id, message("e")).ok().flatten())
                    .into_iter()
                    .collect(),
            ),
            5 => spliced(inbox.claim(target).0),
            6 | 7 => {
                let turn = self.state.boundary().last_turn() + 1;
                log_only(EventBody::TurnStart(TurnStart { turn }))
            }
            8 => self.state.boundary().open_turn().map_or(vec![], |open| {
                let reason = match which % 6 {
                    0 => TurnEndReason::Blocked,
                    1 => TurnEndReason::Error(Failure::unknown("it broke")),
                    2 => TurnEndReason::Aborted(CancelCause::User),
                    3 => TurnEndReason::Interrupted,
                    _ => TurnEndReason::Completed,
                };
                log_only(EventBody::TurnEnd(TurnEnd { turn: open.turn, reason }))
            }),
            9 | 10 => self.state.boundary().open_turn().map_or(vec![], |open| {
                log_only(EventBody::StepStart(StepAt { turn: open.turn, step: open.last_step + 1 }))
            }),
            11 => log_only(EventBody::StepEnd(at)),
            12 | 13 => {
                let text = if which.is_multiple_of(3) { "" } else { "prompt" };
                let message = Arc::new(Message::system(format!("s{n}"), text));
                let body = EventBody::SystemMessage(SystemMessage { turn, step, message });
                match node {
                    Some(node) if what % 32 == 13 => {
                        vec![NewEvent::replace(body, node, node, vec![node])]
                    }
                    _ => append(body),
                }
            }
            14 => vec![user(&format!("u{n}"), if which.is_multiple_of(5) { "" } else { "hi" })],
            15 => {
                let reason = match which % 5 {
                    0 => HeaderReason::Series,
                    1 => HeaderReason::Initial,
                    _ => HeaderReason::Change,
                };
                let mut header = header(&tools);
                if which.is_multiple_of(7) {
                    header.config.reasoning_effort = Some("high".into());
                    header.adapter_defaults.reasoning_effort = which.is_multiple_of(2);
                }
                log_only(EventBody::RequestHeader(RequestHeader {
                    header: Arc::new(header),
                    reason,
                    starts_series: which.is_multiple_of(11),
                }))
            }
            16 => {
                let header_seq =
                    self.state.requests().header_seq().filter(|_| which.is_multiple_of(2));
                let content = tools.iter().map(|name| match header_seq {
                    Some(_) => ContentBlock::ToolAddition { tool_name: (*name).into() },
                    None => ContentBlock::ToolRemoval { tool_name: (*name).into() },
                });
                let message = Message {
                    role: Role::Developer,
                    ..Message::user_from(
                        format!("d{n}"),
                        content.collect(),
                        Source::tool_registry(),
                    )
                };
                append(EventBody::DeveloperMessage(DeveloperMessage {
                    turn,
                    step,
                    message: Arc::new(message),
                    header_seq,
                }))
            }
            17 => log_only(EventBody::RequestContext(RequestContext {
                provider: "p".into(),
                model: "m".into(),
                context_window: (which.is_multiple_of(2)).then_some(u64::from(which)),
                system_prompt_update: None,
            })),
            18 | 19 => {
                let calls: &[&str] = [&[][..], &["c1"], &["c1", "c2"]][usize::from(which % 3)];
                let text = if which.is_multiple_of(4) { "" } else { "answer" };
                append(EventBody::AssistantMessage(AssistantMessage {
                    turn,
                    step,
                    message: Arc::new(assistant(&format!("a{n}"), text, calls)),
                    stream: vec![],
                    usage: (which.is_multiple_of(2)).then_some(Usage::default()),
                    interrupted: false,
                }))
            }
            20 => log_only(EventBody::AssistantAttempt(AssistantAttempt {
                turn,
                step,
                stream: vec![],
            })),
            21 | 22 => {
                let pending = self.state.recovery().pending().find(|call| call.started.is_none());
                pending.map_or(vec![], |call| {
                    log_only(EventBody::ToolCall(ToolCall {
                        turn,
                        step,
                        call_id: call.id,
                        name: "a".into(),
                        arguments: "{}".into(),
                    }))
                })
            }
            23 | 24 => {
                let pending = self.state.recovery().pending().find(|call| call.started.is_some());
                pending.map_or(vec![], |call| {
                    let message = Message::tool(
                        format!("r{n}"),
                        &call.id,
                        which.is_multiple_of(2),
                        vec![ContentBlock::text("result")],
                    );
                    let body = EventBody::ToolResult(ToolResult {
                        turn,
                        step,
                        message: Arc::new(message),
                        error: None,
                        meta: (which.is_multiple_of(3)).then(|| json!({"n": n})),
                    });
                    vec![NewEvent::append(body).citing(call.started)]
                })
            }
            25 => {
                // A compaction of some neighbours.
                let start = usize::from(which) % nodes.len().max(1);
                let shadowed: Vec<Seq> = nodes.iter().skip(start).take(3).copied().collect();
                match (shadowed.first(), shadowed.last()) {
                    (Some(first), Some(last)) => {
                        let body = user(&format!("summary{n}"), "summary").body;
                        vec![NewEvent::replace(body, *first, *last, shadowed.clone())]
                    }
                    _ => vec![],
                }
            }
            26 => {
                let mut results = nodes.iter().filter_map(|seq| match &self.log.get(*seq)?.body {
                    EventBody::ToolResult(data) => Some((*seq, data.clone())),
                    _ => None,
                });
                results.next_back().map_or(vec![], |(seq, mut data)| {
                    let content = vec![ContentBlock::text("pruned")];
                    data.message = Arc::new(Message { content, ..(*data.message).clone() });
                    vec![NewEvent::replace(EventBody::ToolResult(data), seq, seq, vec![seq])]
                })
            }
            27 => log_only(EventBody::ModelSelection(ModelChoice {
                provider: "p".into(),
                model: ["m", "n"][usize::from(which % 2)].into(),
                reasoning_effort: (which.is_multiple_of(3)).then(|| "high".into()),
            })),
            28 => vec![NewEvent::custom("x/note", json!({"n": which})).ignorable()],
            29 => {
                let image = || ContentBlock::Image {
                    attachment: json!({"attachmentId": "i"}),
                    offloaded: false,
                };
                let content = vec![ContentBlock::text("look"), image(), image()];
                let message = Message::user_from(format!("i{n}"), content, Source::user());
                append(EventBody::UserMessage(Arc::new(message)))
            }
            30 => node.map_or(vec![], |node| {
                let targets = json!({"targets": [{"seq": node, "imageIndexes": [which % 2]}]});
                vec![NewEvent::custom(IMAGE_OFFLOAD, targets)]
            }),
            31 if which.is_multiple_of(2) => log_only(EventBody::EndSeed(EndSeed::default())),
            31 => {
                let message = Message::user_from(
                    format!("x{n}"),
                    vec![ContentBlock::text("context")],
                    Source::of_kind(RUNTIME_CONTEXT),
                );
                append(EventBody::UserMessage(Arc::new(message)))
            }
            _ => vec![],
        }
    }
}
