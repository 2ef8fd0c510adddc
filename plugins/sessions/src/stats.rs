//! Statistics of a session: turns, steps, and where the time went.

use std::collections::BTreeMap;

use playhouse_messages::{
    event::{AssistantMessage, Event, EventBody, StepAt, SurfaceOp},
    id::CallId,
    packed::StreamRecord,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::projection::Projection;

/// The key of [`SessionStats`].
pub const SESSION_STATS: &str = "sessionStats";

/// The projection of [`Stats`].
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionStats;

/// What a session's work took. Times are sums in milliseconds, by the times of events; a clock that
/// went back counts as none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stats {
    /// Turns with at least one step that has ended.
    pub turns: u64,
    /// Steps that have ended, cancelled ones too.
    pub steps: u64,
    /// From a step's start to its answer.
    pub llm_ms: u64,
    /// From a tool call to its result; calls that run at once count each.
    pub tool_ms: u64,
    /// From a step's start to the first token of any of its attempts.
    pub ttft_ms: u64,
    /// Steps that had a first token.
    pub ttft_steps: u64,
    /// From the first token to the answer, of steps whose output was counted.
    pub decode_ms: u64,
    /// The output tokens of those steps.
    pub decode_tokens: u64,
}

/// What [`SessionStats`] folds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StatsState {
    /// The sums so far.
    pub stats: Stats,
    counted_turn: Option<u32>,
    step: Option<OpenStep>,
    /// When the calls that run began.
    calls: BTreeMap<CallId, i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OpenStep {
    at: StepAt,
    started: i64,
    first_token: Option<i64>,
    answered: bool,
}

/// Milliseconds from one time to another, none if the clock went back.
fn since(from: i64, to: i64) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}

impl Projection for SessionStats {
    type State = StatsState;

    fn key(&self) -> &str {
        SESSION_STATS
    }

    fn version(&self) -> u32 {
        1
    }

    fn kinds(&self) -> Option<&[&str]> {
        Some(&[
            "step/start",
            "step/end",
            "turn/end",
            "assistant/message",
            "assistant/attempt",
            "tool/call",
            "tool/result",
        ])
    }

    fn init(&self) -> StatsState {
        StatsState::default()
    }

    fn apply(&self, state: &mut StatsState, event: &Event) -> bool {
        // A message in another's place is no answer, and no result.
        if matches!(event.surface, Some(SurfaceOp::Replace { .. })) {
            return false;
        }
        match &event.body {
            EventBody::StepStart(at) => {
                let (at, started) = (*at, event.time);
                state.step = Some(OpenStep { at, started, first_token: None, answered: false });
                true
            }
            EventBody::AssistantAttempt(data) => {
                state.first_token(StepAt { turn: data.turn, step: data.step }, &data.stream)
            }
            EventBody::AssistantMessage(data) => state.answered(data, event.time),
            EventBody::ToolCall(call) => {
                let known = state.calls.contains_key(&call.call_id);
                if !known {
                    state.calls.insert(call.call_id.clone(), event.time);
                }
                !known
            }
            EventBody::ToolResult(result) => {
                let call = result.message.tool_call_id.as_ref();
                let Some(began) = call.and_then(|call| state.calls.remove(call)) else {
                    return false;
                };
                state.stats.tool_ms += since(began, event.time);
                true
            }
            EventBody::StepEnd(at) => {
                state.stats.steps += 1;
                if state.counted_turn.replace(at.turn) != Some(at.turn) {
                    state.stats.turns += 1;
                }
                state.step = None;
                true
            }
            EventBody::TurnEnd(_) => {
                let left = !state.calls.is_empty() || state.step.is_some();
                state.calls.clear();
                state.step = None;
                left
            }
            _ => false,
        }
    }

    fn view(&self, state: &StatsState) -> Option<Value> {
        Some(json!(state.stats))
    }
}

impl StatsState {
    fn first_token(&mut self, at: StepAt, stream: &[StreamRecord]) -> bool {
        let Some(step) = self.step.as_mut().filter(|step| step.at == at) else { return false };
        let Some(time) = first_token(stream).filter(|_| step.first_token.is_none()) else {
            return false;
        };
        step.first_token = Some(time);
        self.stats.ttft_ms += since(step.started, time);
        self.stats.ttft_steps += 1;
        true
    }

    fn answered(&mut self, data: &AssistantMessage, time: i64) -> bool {
        let at = StepAt { turn: data.turn, step: data.step };
        self.first_token(at, &data.stream);
        let Some(step) = self.step.as_mut().filter(|step| step.at == at && !step.answered) else {
            return false;
        };
        step.answered = true;
        self.stats.llm_ms += since(step.started, time);
        if let (Some(first), Some(usage)) = (step.first_token, &data.usage) {
            self.stats.decode_ms += since(first, time);
            self.stats.decode_tokens += usage.output_tokens;
        }
        true
    }
}

/// When a stream's first token came.
fn first_token(stream: &[StreamRecord]) -> Option<i64> {
    fn nth(time0: i64, gaps: &[i64], n: usize) -> i64 {
        gaps.iter().take(n).fold(time0, |time, gap| time.saturating_add(*gap))
    }
    stream.iter().find_map(|record| match record {
        StreamRecord::TextChunks { time0, dt, texts, .. }
        | StreamRecord::ReasoningChunks { time0, dt, texts, .. } => {
            Some(nth(*time0, dt, texts.iter().position(|text| !text.is_empty())?))
        }
        StreamRecord::ToolCallChunks { time0, dt, name, args, .. } => match name {
            Some(_) => Some(*time0),
            None => Some(nth(*time0, dt, args.iter().position(|text| !text.is_empty())?)),
        },
        StreamRecord::Chunk { time, chunk } => chunk.is_token().then_some(*time),
    })
}

#[cfg(test)]
mod tests;
