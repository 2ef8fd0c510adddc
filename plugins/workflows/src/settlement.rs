//! How a run goes and ends: a pure machine.
//!
//! It decides which child starts when, what the workflow is answered, what is told, and which of
//! the sources of an end comes first. Its host carries inputs to it and performs its effects.

use std::collections::{BTreeMap, VecDeque};

use playhouse_messages::{chunk::Failure, id::SessionId};
use serde_json::Value;

use crate::{
    AgentOutcome, AgentRequest, NoticeKind, WorkflowResult, WorkflowStop,
    error::code,
    protocol::{CallNo, GuestMessage, HostMessage},
    request::{TITLE_CHARS_MAX, clip},
};

/// A line of a log that is longer than this many characters is cut.
pub(crate) const LOG_CHARS_MAX: usize = 4096;

/// What happens to a run.
#[derive(Debug)]
pub(crate) enum Input {
    Guest(GuestMessage),
    /// The guest has ended, whether it said so or not.
    GuestGone,
    Cancel(String),
    /// Cancel, and wait for no child.
    Dispose,
    /// The time is over in which a cancelled run may end by itself.
    GraceExpired,
    ChildStarted {
        call: CallNo,
        child: SessionId,
    },
    ChildStartFailed {
        call: CallNo,
        failure: Failure,
    },
    ChildSettled {
        call: CallNo,
        settled: Result<ChildAnswer, Failure>,
    },
    ChildDisposed {
        call: CallNo,
    },
}

/// What a child has to say, and how it ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChildAnswer {
    pub(crate) outcome: AgentOutcome,
    /// Null unless completed.
    pub(crate) value: Value,
}

/// What the host does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    TellGuest(HostMessage),
    KillGuest,
    /// Lets the time begin in which the run may end by itself.
    ArmGrace,
    Start {
        call: CallNo,
        request: AgentRequest,
    },
    Await {
        call: CallNo,
    },
    Dispose {
        call: CallNo,
    },
    /// Cancels all children at once.
    AbortChildren,
    Notify(NoticeKind),
    /// The one result of the run.
    Settle(WorkflowResult),
}

/// A run.
#[derive(Debug)]
pub(crate) struct Settlement {
    concurrent_max: usize,
    total_max: u32,
    started: u32,
    /// Who waits for a slot, first come first served.
    waiting: VecDeque<CallNo>,
    calls: BTreeMap<CallNo, Call>,
    cancelled: Option<String>,
    settled: bool,
}

#[derive(Debug)]
struct Call {
    member: Member,
    state: CallState,
}

/// A child, as people are told of it.
#[derive(Debug, Clone)]
struct Member {
    seq: u32,
    label: String,
    phase: Option<String>,
}

#[derive(Debug)]
enum CallState {
    Waiting(AgentRequest),
    Starting,
    Running(SessionId),
    /// Its result is known, or not wanted. `Some` until its end is told.
    Disposing(Option<(SessionId, ChildAnswer)>),
}

impl Settlement {
    pub(crate) fn new(concurrent_max: usize, total_max: u32) -> Self {
        Self {
            concurrent_max: concurrent_max.max(1),
            total_max,
            started: 0,
            waiting: VecDeque::new(),
            calls: BTreeMap::new(),
            cancelled: None,
            settled: false,
        }
    }

    /// Whether there is a result.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// How many children are being started, run, or are being disposed.
    pub(crate) fn live(&self) -> usize {
        self.calls.len() - self.waiting.len()
    }

    /// Takes an input, in any order and number.
    pub(crate) fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        match input {
            Input::Guest(message) => self.guest(message, &mut out),
            Input::GuestGone => self.died("what ran the workflow is gone", &mut out),
            Input::Cancel(reason) => self.cancel(reason, &mut out),
            Input::Dispose => {
                self.cancel("the run was disposed".to_owned(), &mut out);
                self.dispose_running(&mut out);
            }
            Input::GraceExpired => self.end_cancelled(&mut out),
            Input::ChildStarted { call, child } => self.child_started(call, child, &mut out),
            Input::ChildStartFailed { call, failure } => {
                self.child_start_failed(call, &failure, &mut out);
            }
            Input::ChildSettled { call, settled } => self.child_settled(call, settled, &mut out),
            Input::ChildDisposed { call } => self.child_disposed(call, &mut out),
        }
        self.fill_slots(&mut out);
        out
    }

    fn guest(&mut self, message: GuestMessage, out: &mut Vec<Effect>) {
        if self.settled {
            return;
        }
        let quiet = self.cancelled.is_some();
        match message {
            GuestMessage::Ready => {}
            GuestMessage::Phase(title) if !quiet => {
                let title = clip(&title, TITLE_CHARS_MAX);
                out.push(Effect::Notify(NoticeKind::Phase { title }));
            }
            GuestMessage::Log(text) if !quiet => {
                let text = clip(&text, LOG_CHARS_MAX);
                out.push(Effect::Notify(NoticeKind::Log { text }));
            }
            GuestMessage::Phase(_) | GuestMessage::Log(_) => {}
            GuestMessage::Agent { call, request } => self.agent(call, request, out),
            GuestMessage::Result(_) if quiet => self.end_cancelled(out),
            GuestMessage::Result(Ok(value)) => {
                self.settle(WorkflowStop::Completed, Some(value), None, out);
            }
            GuestMessage::Result(Err(failure)) => self.fail(failure, out),
            GuestMessage::Died(reason) => self.died(&reason, out),
        }
    }

    fn agent(&mut self, call: CallNo, request: AgentRequest, out: &mut Vec<Effect>) {
        if let Some(reason) = &self.cancelled {
            let answer = Err(halted(reason));
            out.push(Effect::TellGuest(HostMessage::Settled { call, answer }));
            return;
        }
        if let Err(failure) = request.check() {
            self.fail(failure, out);
            return;
        }
        if self.started >= self.total_max {
            let text =
                format!("the run may start {} agents; it asked for one more", self.total_max);
            self.fail(Failure::new(code::AGENT_CAP, text), out);
            return;
        }
        self.started += 1;
        let phase = request.phase.as_ref().map(|phase| clip(phase, TITLE_CHARS_MAX));
        let member = Member { seq: self.started, label: request.label_or_default(), phase };
        self.calls.insert(call, Call { member, state: CallState::Waiting(request) });
        self.waiting.push_back(call);
    }

    fn fill_slots(&mut self, out: &mut Vec<Effect>) {
        while self.live() < self.concurrent_max {
            let Some(call) = self.waiting.pop_front() else { return };
            let Some(entry) = self.calls.get_mut(&call) else { continue };
            if let CallState::Waiting(request) =
                std::mem::replace(&mut entry.state, CallState::Starting)
            {
                out.push(Effect::Start { call, request });
            }
        }
    }

    fn child_started(&mut self, call: CallNo, child: SessionId, out: &mut Vec<Effect>) {
        let Some(entry) = self.calls.get_mut(&call) else { return };
        if self.settled {
            // Nobody was told of it, and nobody will be.
            entry.state = CallState::Disposing(None);
            out.push(Effect::Dispose { call });
            return;
        }
        out.push(Effect::Notify(entry.member.started(child.clone())));
        entry.state = CallState::Running(child);
        out.push(Effect::Await { call });
    }

    fn child_start_failed(&mut self, call: CallNo, failure: &Failure, out: &mut Vec<Effect>) {
        let Some(entry) = self.calls.remove(&call) else { return };
        if self.settled {
            return;
        }
        if let Some(reason) = &self.cancelled {
            let answer = Err(halted(reason));
            out.push(Effect::TellGuest(HostMessage::Settled { call, answer }));
            return;
        }
        let text = format!("agent \"{}\" could not be started: {failure}", entry.member.label);
        self.fail(Failure::new(code::AGENT_START, text), out);
    }

    fn child_settled(
        &mut self,
        call: CallNo,
        settled: Result<ChildAnswer, Failure>,
        out: &mut Vec<Effect>,
    ) {
        let Some(entry) = self.calls.get_mut(&call) else { return };
        let CallState::Running(child) = &entry.state else { return };
        let child = child.clone();
        let (answer, lost) = match settled {
            Ok(answer) => (answer, None),
            Err(failure) => {
                let text = format!("agent \"{}\" was lost: {failure}", entry.member.label);
                let answer = ChildAnswer { outcome: AgentOutcome::Failed, value: Value::Null };
                (answer, Some(Failure::new(code::AGENT_RESULT, text)))
            }
        };
        entry.state = CallState::Disposing(Some((child, answer)));
        out.push(Effect::Dispose { call });
        match lost {
            Some(failure) if self.cancelled.is_none() => self.fail(failure, out),
            _ => {}
        }
    }

    fn child_disposed(&mut self, call: CallNo, out: &mut Vec<Effect>) {
        let Some(entry) = self.calls.get(&call) else { return };
        let CallState::Disposing(open) = &entry.state else { return };
        if let Some((child, answer)) = open {
            out.push(Effect::Notify(entry.member.ended(child.clone(), answer.outcome)));
            let answer = match &self.cancelled {
                Some(reason) => Err(halted(reason)),
                None => Ok(answer.value.clone()),
            };
            out.push(Effect::TellGuest(HostMessage::Settled { call, answer }));
        }
        self.calls.remove(&call);
    }

    fn cancel(&mut self, reason: String, out: &mut Vec<Effect>) {
        if self.settled || self.cancelled.is_some() {
            return;
        }
        for call in self.waiting.drain(..) {
            self.calls.remove(&call);
            let answer = Err(halted(&reason));
            out.push(Effect::TellGuest(HostMessage::Settled { call, answer }));
        }
        out.push(Effect::TellGuest(HostMessage::Cancel(reason.clone())));
        out.push(Effect::AbortChildren);
        out.push(Effect::ArmGrace);
        self.cancelled = Some(reason);
    }

    fn dispose_running(&mut self, out: &mut Vec<Effect>) {
        for (call, entry) in &mut self.calls {
            if let CallState::Running(child) = &entry.state {
                let unwanted = ChildAnswer { outcome: AgentOutcome::Cancelled, value: Value::Null };
                entry.state = CallState::Disposing(Some((child.clone(), unwanted)));
                out.push(Effect::Dispose { call: *call });
            }
        }
    }

    fn died(&mut self, reason: &str, out: &mut Vec<Effect>) {
        match self.cancelled {
            Some(_) => self.end_cancelled(out),
            None => self.fail(Failure::new(code::WORKER_DIED, reason), out),
        }
    }

    fn fail(&mut self, failure: Failure, out: &mut Vec<Effect>) {
        self.settle(WorkflowStop::Error, None, Some(failure), out);
    }

    fn end_cancelled(&mut self, out: &mut Vec<Effect>) {
        let Some(reason) = &self.cancelled else { return };
        let failure = halted(reason);
        self.settle(WorkflowStop::Cancelled, None, Some(failure), out);
    }

    /// The first source of an end wins. Every start that was told of gets its end first; children
    /// that still live are disposed, those that are being started as soon as they are.
    fn settle(
        &mut self,
        stop_reason: WorkflowStop,
        value: Option<Value>,
        error: Option<Failure>,
        out: &mut Vec<Effect>,
    ) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        for call in self.waiting.drain(..) {
            self.calls.remove(&call);
        }
        out.push(Effect::AbortChildren);
        self.dispose_running(out);
        for entry in self.calls.values_mut() {
            let CallState::Disposing(open) = &mut entry.state else { continue };
            if let Some((child, answer)) = open.take() {
                out.push(Effect::Notify(entry.member.ended(child, answer.outcome)));
            }
        }
        let result = WorkflowResult { value, stop_reason, error, agents_started: self.started };
        out.push(Effect::Notify(NoticeKind::End {
            stop_reason,
            error: result.error.clone(),
            agents_started: self.started,
        }));
        out.push(Effect::KillGuest);
        out.push(Effect::Settle(result));
    }
}

impl Member {
    fn started(&self, child: SessionId) -> NoticeKind {
        let Self { seq, label, phase } = self.clone();
        NoticeKind::AgentStart { seq, label, phase, child }
    }

    fn ended(&self, child: SessionId, outcome: AgentOutcome) -> NoticeKind {
        let Self { seq, label, phase } = self.clone();
        NoticeKind::AgentEnd { seq, label, phase, child, outcome }
    }
}

fn halted(reason: &str) -> Failure {
    Failure::new(code::CANCELLED, format!("the workflow was cancelled: {reason}"))
}

#[cfg(test)]
mod tests;
