//! Closing what a crash, a fork or a failed step left open.
//!
//! A tool call without a result makes a conversation unusable for a strict provider. Whatever cut a
//! step, each call of it gets a result that tells the model what is known.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    assembler::BlockAssembler,
    candidate::Candidate,
    content::ContentBlock,
    event::{
        AssistantMessage, EndSeed, Event, EventBody, NewEvent, Seq, SharedEvent, StepAt,
        ToolErrorInfo, ToolResult, TurnEnd, TurnEndReason,
    },
    id::CallId,
    log::Log,
    message::{Message, Role, Source},
    packed::StreamRecord,
};

/// The model's word for a call that cancellation kept from starting.
pub const ABORTED_BEFORE_DISPATCH_TEXT: &str = "Error: tool call aborted before dispatch";

/// The model's word for a started call without a result, after a crash or a failed step.
pub const OUTCOME_UNKNOWN_TEXT: &str = "The tool call was interrupted after it was recorded, but no \
    result was durably recorded. Its outcome is unknown. Decide whether to retry from the tool \
    semantics: retry only if the operation is read-only or idempotent; if it may have side effects, \
    first verify external state or ask the user. Do not retry blindly.";

/// The model's word for a call that never started, after a crash or a failed step.
pub const NOT_STARTED_TEXT: &str = "The tool call was interrupted before the Harness recorded it as \
    started. Retry it if it is still needed.";

/// The model's word for a started call without a result at a fork's cut.
pub const FORKED_OUTCOME_UNKNOWN_TEXT: &str = "The history inherited by this branch records this \
    tool call starting but does not include its result. The parent session may have completed it \
    after the fork point. Decide whether to retry from the tool semantics: retry only if the \
    operation is read-only or idempotent; if it may have side effects, first verify external state \
    or ask the user. Do not retry blindly.";

/// The model's word for a call that had not started at a fork's cut.
pub const FORKED_NOT_STARTED_TEXT: &str = "The history inherited by this branch has no record of \
    this tool call starting. The parent session may have executed it after the fork point. Decide \
    whether to retry from the tool semantics: retry only if the operation is read-only or \
    idempotent; if it may have side effects, first verify external state or ask the user. Do not \
    retry blindly.";

/// The code of a result that says the call was kept from starting.
pub const ABORTED_BEFORE_DISPATCH: &str = "ABORTED_BEFORE_DISPATCH";
/// The code of a result that says the outcome is unknown.
pub const TOOL_OUTCOME_UNKNOWN: &str = "TOOL_OUTCOME_UNKNOWN";
/// The code of a result that says the call never started.
pub const TOOL_NOT_STARTED: &str = "TOOL_NOT_STARTED";

/// A tool call of the open step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tracked {
    id: CallId,
    /// The step's assistant message asks for it.
    asked: bool,
    started: Option<Seq>,
    answered: bool,
}

/// The tool calls of the open step: asked for, started, answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryTracker {
    at: Option<StepAt>,
    calls: Vec<Tracked>,
}

/// A call that the step still owes a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingCall {
    /// The call.
    pub id: CallId,
    /// Its `tool/call`, if it started.
    pub started: Option<Seq>,
}

impl RecoveryTracker {
    /// A tracker outside any step.
    pub fn new() -> Self {
        Self::default()
    }

    /// Follows one event of the session.
    pub fn observe(&mut self, event: Candidate<'_>) {
        match event.body {
            EventBody::StepStart(at) => {
                self.at = Some(*at);
                self.calls.clear();
            }
            EventBody::TurnStart(_) | EventBody::TurnEnd(_) | EventBody::StepEnd(_) => {
                self.at = None;
                self.calls.clear();
            }
            EventBody::AssistantMessage(data) if !event.is_replacement() => {
                for call in data.message.tool_calls() {
                    // An id used again starts over in its old place.
                    *self.call(&call.id) = Tracked {
                        id: call.id.clone(),
                        asked: true,
                        started: None,
                        answered: false,
                    };
                }
            }
            EventBody::ToolCall(data) => {
                let call = self.call(&data.call_id);
                call.started = Some(event.seq);
                call.answered = false;
            }
            // A rewrite of an older result answers nothing, nor does another step's.
            EventBody::ToolResult(data)
                if !event.is_replacement()
                    && self.at == Some(StepAt { turn: data.turn, step: data.step }) =>
            {
                let answered = data.message.tool_call_id.as_ref();
                if let Some(call) = self.calls.iter_mut().find(|c| Some(&c.id) == answered) {
                    call.answered = true;
                }
            }
            _ => {}
        }
    }

    fn call(&mut self, id: &CallId) -> &mut Tracked {
        let at = self.calls.iter().position(|call| call.id == *id).unwrap_or_else(|| {
            let call = Tracked { id: id.clone(), asked: false, started: None, answered: false };
            self.calls.push(call);
            self.calls.len() - 1
        });
        &mut self.calls[at]
    }

    /// The calls that still need a result, in the order of the assistant message.
    pub fn pending(&self) -> impl Iterator<Item = PendingCall> + '_ {
        self.calls
            .iter()
            .filter(|call| call.asked && !call.answered)
            .map(|call| PendingCall { id: call.id.clone(), started: call.started })
    }

    /// The `tool/call` of this id in the open step.
    pub fn started(&self, id: &CallId) -> Option<Seq> {
        self.calls.iter().find(|call| call.id == *id)?.started
    }
}

/// What kept calls from their results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Interrupted,
    Forked,
}

impl Cut {
    fn result(self, at: StepAt, call: &PendingCall, seq: Seq) -> NewEvent {
        let (name, code, text) = match (self, call.started.is_some()) {
            (Self::Interrupted, true) => {
                ("ToolOutcomeUnknownError", TOOL_OUTCOME_UNKNOWN, OUTCOME_UNKNOWN_TEXT)
            }
            (Self::Interrupted, false) => {
                ("ToolNotStartedError", TOOL_NOT_STARTED, NOT_STARTED_TEXT)
            }
            (Self::Forked, true) => {
                ("ToolOutcomeUnknownError", TOOL_OUTCOME_UNKNOWN, FORKED_OUTCOME_UNKNOWN_TEXT)
            }
            (Self::Forked, false) => {
                ("ToolNotStartedError", TOOL_NOT_STARTED, FORKED_NOT_STARTED_TEXT)
            }
        };
        let prefix = match self {
            Self::Interrupted => "interrupted",
            Self::Forked => "forked",
        };
        let id = format!("{prefix}-tool-result-{}-{seq}", call.id);
        let content = vec![ContentBlock::text(text)];
        NewEvent::append(EventBody::ToolResult(ToolResult {
            turn: at.turn,
            step: at.step,
            message: Arc::new(Message::tool(id, &call.id, true, content)),
            error: Some(ToolErrorInfo { name: name.into(), code: code.into(), reason: None }),
            meta: None,
        }))
        .citing(call.started)
    }

    fn reason(self) -> TurnEndReason {
        match self {
            Self::Interrupted => TurnEndReason::Interrupted,
            Self::Forked => TurnEndReason::Forked,
        }
    }
}

/// The results for the calls that a failed step leaves pending. `first_seq` is the seq that the
/// first of them will get.
pub fn failed_step_results(tracker: &RecoveryTracker, at: StepAt, first_seq: Seq) -> Vec<NewEvent> {
    let pending = tracker.pending().zip(first_seq..);
    pending.map(|(call, seq)| Cut::Interrupted.result(at, &call, seq)).collect()
}

/// The stream of an attempt that had no settlement when the log was last written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnsettledTail {
    /// The turn.
    pub turn: u32,
    /// The step.
    pub step: u32,
    /// Which attempt of the step.
    pub attempt: u32,
    /// The route of the call.
    pub provider: String,
    /// The model of the call.
    pub model: String,
    /// What arrived of the stream.
    pub records: Vec<StreamRecord>,
}

impl UnsettledTail {
    /// The message of what a person could see of the attempt, if anything.
    fn message(&self) -> Option<EventBody> {
        let assembler = BlockAssembler::replay(&self.records);
        let content = assembler.interrupted();
        if content.is_empty() {
            return None;
        }
        let Self { turn, step, attempt, provider, model, records } = self;
        // To JSON: the state came from JSON, so it cannot fail.
        let replay_state = assembler.interrupted_replay_state();
        let replay_state = replay_state.and_then(|state| serde_json::to_value(state).ok());
        let message = Message {
            id: format!("interrupted-assistant-{turn}.{step}.{attempt}").into(),
            role: Role::Assistant,
            tool_call_id: None,
            is_error: None,
            content,
            source: Source::model(provider, model, replay_state.as_ref()),
        };
        Some(EventBody::AssistantMessage(AssistantMessage {
            turn: *turn,
            step: *step,
            message: Arc::new(message),
            stream: records.clone(),
            usage: assembler.usage(),
            interrupted: true,
        }))
    }
}

/// The events that close a log which a crash cut: what the open attempt had shown, results for the
/// open step's pending calls, the ends of step and turn. None if no turn is open.
///
/// Deterministic: seqs continue the log, times are the last event's. A tail that does not belong to
/// the open step, or comes after its settlement, is ignored.
pub fn interrupted_closers(log: &Log, tail: Option<&UnsettledTail>) -> Vec<Event> {
    closers(log, Cut::Interrupted, tail)
}

/// The events that close a fork's inherited history after its marker.
pub fn forked_closers(log: &Log) -> Vec<Event> {
    closers(log, Cut::Forked, None)
}

fn closers(log: &Log, cut: Cut, tail: Option<&UnsettledTail>) -> Vec<Event> {
    let Some(last) = log.last() else { return Vec::new() };
    let boundary = log
        .iter()
        .rev()
        .find(|event| matches!(event.body, EventBody::TurnStart(_) | EventBody::TurnEnd(_)));
    let Some((start, EventBody::TurnStart(turn))) = boundary.map(|e| (e.seq, &e.body)) else {
        return Vec::new();
    };
    let mut tracker = RecoveryTracker::new();
    let mut settled = false;
    for event in log.range(start..log.len()) {
        let event = Candidate::from(&**event);
        tracker.observe(event);
        match event.body {
            EventBody::StepStart(_) => settled = false,
            EventBody::AssistantMessage(_) if !event.is_replacement() => settled = true,
            _ => {}
        }
    }
    let mut closers = Vec::new();
    let mut close = |event: NewEvent| {
        closers.push(event.at(log.len() + closers.len() as u64, last.time));
    };
    if let Some(at) = tracker.at {
        let shown = tail
            .filter(|tail| !settled && StepAt { turn: tail.turn, step: tail.step } == at)
            .and_then(UnsettledTail::message);
        let first_seq = log.len() + u64::from(shown.is_some());
        if let Some(message) = shown {
            close(NewEvent::append(message));
        }
        for (call, seq) in tracker.pending().zip(first_seq..) {
            close(cut.result(at, &call, seq));
        }
        close(NewEvent::log_only(EventBody::StepEnd(at)));
    }
    let end = TurnEnd { turn: turn.turn, reason: cut.reason() };
    close(NewEvent::log_only(EventBody::TurnEnd(end)));
    closers
}

/// A fork's cut is not in the source's log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot fork at event {boundary}: the log has {len} events, the first of which is 0")]
pub struct InvalidBoundary {
    /// The cut that was asked for.
    pub boundary: Seq,
    /// How many events the source has.
    pub len: u64,
}

impl InvalidBoundary {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        "INVALID_BOUNDARY"
    }
}

/// The history that a fork's child starts with.
#[derive(Debug, Clone)]
pub struct ForkSeed {
    /// The inherited events, the marker and the closers.
    pub log: Log,
    /// How many events are inherited; the marker and what follows belong to the child.
    pub inherited: u64,
}

/// The seed of a fork at an event, inclusive; at the last one if none is named. `now` is the
/// marker's time if there is no event to take it from.
pub fn fork_seed(log: &Log, boundary: Option<Seq>, now: i64) -> Result<ForkSeed, InvalidBoundary> {
    let inherited = match boundary {
        Some(boundary) if boundary >= log.len() => {
            return Err(InvalidBoundary { boundary, len: log.len() });
        }
        Some(boundary) => boundary + 1,
        None => log.len(),
    };
    let mut seed: Log = log.range(0..inherited).cloned().collect();
    let time = seed.last().map_or(now, |event| event.time);
    let marker = EventBody::EndSeed(EndSeed { inherited: true });
    seed.push(Arc::new(NewEvent::log_only(marker).at(inherited, time)));
    for closer in forked_closers(&seed) {
        seed.push(Arc::new(closer));
    }
    Ok(ForkSeed { log: seed, inherited })
}

/// The marker that a session appends when it is constructed over existing history, unless that
/// already ends in one: whatever opened before it and did not close belongs to a dead lifecycle.
pub fn construction_marker(history: &Log) -> Option<NewEvent> {
    let ends = |event: &SharedEvent| matches!(event.body, EventBody::EndSeed(_));
    let marker = || NewEvent::log_only(EventBody::EndSeed(EndSeed::default()));
    (!history.last().is_some_and(ends)).then(marker)
}

#[cfg(test)]
mod tests;
