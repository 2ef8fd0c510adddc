//! Turns, steps, settlements and tools: invariants 2 to 7, 30 to 36.

use super::{Fault, hold};
use crate::{
    assembler::BlockAssembler,
    candidate::Candidate,
    chunk::{FinishReason, StreamChunk},
    content::ToolCallBlock,
    event::{AssistantMessage, EventBody, StepAt, ToolResult, TurnEndReason, TurnStart},
    id::CallId,
    packed::StreamRecord,
    repair::TOOL_NOT_STARTED,
};

#[derive(Debug, Clone, Default)]
pub(super) struct Steps {
    turn: Option<u32>,
    last_turn: u32,
    /// The open step.
    at: Option<StepAt>,
    last_step: u32,
    settled: bool,
    calls: Vec<Call>,
    /// The turn has a cut answer, which is its last word.
    interrupted: bool,
}

#[derive(Debug, Clone)]
struct Call {
    id: CallId,
    started: bool,
    results: u32,
}

impl Steps {
    /// The open turn.
    pub(super) fn turn(&self) -> Option<u32> {
        self.turn
    }

    /// Whether a step is open.
    pub(super) fn in_step(&self) -> bool {
        self.at.is_some()
    }

    /// Whether the open turn has had a step.
    pub(super) fn stepped(&self) -> bool {
        self.last_step > 0
    }

    pub(super) fn judge(&self, event: Candidate<'_>) -> Result<(), Fault> {
        let appended = !event.is_replacement();
        match event.body {
            EventBody::TurnStart(data) => {
                hold(self.turn.is_none(), 2, || format!("turn {:?} is open", self.turn))?;
                hold(self.last_turn.checked_add(1) == Some(data.turn), 2, || {
                    format!("turn {} after turn {}", data.turn, self.last_turn)
                })
            }
            EventBody::TurnEnd(data) => {
                hold(self.turn == Some(data.turn), 3, || format!("{:?} is open", self.turn))?;
                hold(self.at.is_none(), 3, || format!("step {:?} is open", self.at))?;
                let cut = matches!(
                    data.reason,
                    TurnEndReason::Aborted(_)
                        | TurnEndReason::Budget(_)
                        | TurnEndReason::Interrupted
                        | TurnEndReason::Forked
                );
                hold(cut || !self.interrupted, 32, || {
                    format!("`{}` after a cut answer", data.reason.kind())
                })
            }
            EventBody::StepStart(at) => {
                hold(self.turn == Some(at.turn), 4, || format!("turn {:?} is open", self.turn))?;
                hold(self.at.is_none(), 4, || format!("step {:?} is open", self.at))?;
                hold(self.last_step.checked_add(1) == Some(at.step), 4, || {
                    format!("step {} after step {}", at.step, self.last_step)
                })?;
                hold(!self.interrupted, 32, || "a step after a cut answer".to_owned())
            }
            EventBody::StepEnd(at) => {
                hold(self.at == Some(*at), 4, || format!("step {:?} is open", self.at))?;
                match self.calls.iter().find(|call| call.results != 1) {
                    Some(call) => {
                        Err((35, format!("\"{}\" has {} results", call.id, call.results)))
                    }
                    None => Ok(()),
                }
            }
            EventBody::SystemMessage(data) => self.inside(data.turn, data.step),
            EventBody::DeveloperMessage(data) => self.inside(data.turn, data.step),
            EventBody::AssistantAttempt(data) => {
                self.inside(data.turn, data.step)?;
                hold(!self.settled, 30, || "an attempt after the answer".to_owned())
            }
            EventBody::AssistantMessage(data) if appended => self.answer(data),
            EventBody::ToolCall(data) => {
                self.inside(data.turn, data.step)?;
                match self.calls.iter().find(|call| call.id == data.call_id) {
                    Some(call) => {
                        hold(!call.started, 36, || format!("\"{}\" starts twice", call.id))
                    }
                    None => Err((36, format!("nobody asked for \"{}\"", data.call_id))),
                }
            }
            EventBody::ToolResult(data) if appended => self.result(data),
            EventBody::ToolResult(_) => {
                hold(self.turn.is_some(), 7, || "a rewrite outside any turn".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn inside(&self, turn: u32, step: u32) -> Result<(), Fault> {
        let named = StepAt { turn, step };
        hold(self.at == Some(named), 5, || format!("names {named:?}, open is {:?}", self.at))
    }

    fn answer(&self, data: &AssistantMessage) -> Result<(), Fault> {
        self.inside(data.turn, data.step)?;
        hold(!self.settled, 30, || "a second answer".to_owned())?;
        let calls = data.message.tool_calls().next().is_some();
        hold(!data.interrupted || !calls, 32, || "a cut answer that calls tools".to_owned())?;
        hold(!calls || !truncated(data), 36, || "calls of a truncated answer".to_owned())?;
        if data.stream.is_empty() {
            return Ok(());
        }
        let assembler = BlockAssembler::replay(&data.stream);
        let content = if data.interrupted {
            assembler.interrupted()
        } else {
            assembler.assemble().map(|assembled| assembled.content).unwrap_or_default()
        };
        hold(content == data.message.content, 31, || {
            format!("the stream gives {content:?}, not {:?}", data.message.content)
        })
    }

    fn result(&self, data: &ToolResult) -> Result<(), Fault> {
        self.inside(data.turn, data.step)?;
        let id = data.message.tool_call_id.as_ref();
        let at = self.calls.iter().position(|call| Some(&call.id) == id);
        let Some(at) = at else {
            return Err((6, format!("nobody asked for {id:?}")));
        };
        if let Some(early) = self.calls[..at].iter().find(|call| call.results == 0) {
            return Err((33, format!("goes before the result of \"{}\"", early.id)));
        }
        let never = data.error.as_ref().is_some_and(|e| e.code == TOOL_NOT_STARTED)
            && data.message.is_error == Some(true);
        let call = &self.calls[at];
        hold(call.started || never, 6, || format!("\"{}\" has not started", call.id))?;
        hold(call.results == 0, 35, || format!("a second result of \"{}\"", call.id))
    }

    pub(super) fn take(&mut self, event: Candidate<'_>) {
        match event.body {
            EventBody::TurnStart(TurnStart { turn }) => {
                *self = Self { turn: Some(*turn), last_turn: *turn, ..Self::default() };
            }
            EventBody::TurnEnd(_) => self.turn = None,
            EventBody::StepStart(at) => {
                *self = Self {
                    at: Some(*at),
                    last_step: at.step,
                    settled: false,
                    calls: Vec::new(),
                    ..*self
                };
            }
            EventBody::StepEnd(_) => self.at = None,
            _ if event.is_replacement() => {}
            EventBody::AssistantMessage(data) => {
                self.settled = true;
                self.interrupted |= data.interrupted;
                let call =
                    |call: &ToolCallBlock| Call { id: call.id.clone(), started: false, results: 0 };
                self.calls = data.message.tool_calls().map(call).collect();
            }
            EventBody::ToolCall(data) => {
                if let Some(call) = self.call(Some(&data.call_id)) {
                    call.started = true;
                }
            }
            EventBody::ToolResult(data) => {
                if let Some(call) = self.call(data.message.tool_call_id.as_ref()) {
                    call.results += 1;
                }
            }
            _ => {}
        }
    }

    fn call(&mut self, id: Option<&CallId>) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| Some(&call.id) == id)
    }
}

/// Whether the output limit cut the answer. The last finish counts.
fn truncated(data: &AssistantMessage) -> bool {
    let finish = data.stream.iter().rev().find_map(|record| match record {
        StreamRecord::Chunk { chunk: StreamChunk::Finish { reason, .. }, .. } => Some(reason),
        _ => None,
    });
    finish == Some(&FinishReason::MaxTokens)
}
