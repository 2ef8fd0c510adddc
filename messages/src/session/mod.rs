//! The session as a value: a log, its folds, and the commands that extend both.
//!
//! [`SessionCore`] is what the session's actor wraps. Every command runs to its end without a wait,
//! so nothing interleaves with the events it appends.

mod admit;
mod command;

use std::sync::Arc;

pub use command::{
    Accept, Accepted, Admission, Admitted, Claimed, Closed, Command, Edited, InboxEdit, Repaired,
    Reply, Settled, Standing, StepEnded,
};

use crate::{
    candidate::Candidate,
    chunk::Failure,
    event::{
        Event, EventBody, InboxSpliced, InboxTarget, NewEvent, SharedEvent, StepAt, TurnEnd,
        TurnEndReason, TurnStart,
    },
    gate::HistoryGate,
    header::SessionHeader,
    id::MessageId,
    inbox::{Inbox, InboxError, SpliceFault},
    log::Log,
    message::SharedMessage,
    repair::{self, UnsettledTail},
    session_state::{AppendError, KnownKinds, LoadError, Planned, SessionState},
    validator::{Validation, Validator},
};

/// Time and ids, injected: the core has neither.
pub trait Mint {
    /// Epoch milliseconds.
    fn now(&mut self) -> i64;
    /// A fresh message id.
    fn message_id(&mut self) -> MessageId;
}

/// A session's log and all that follows from it.
#[derive(Debug, Clone)]
pub struct SessionCore {
    header: Arc<SessionHeader>,
    log: Log,
    state: SessionState,
    gate: HistoryGate,
    validation: Validation,
}

impl SessionCore {
    /// Folds a log. Fails on an event that is illegal where it stands, or of a required kind that
    /// `known` lacks.
    pub fn load(
        header: Arc<SessionHeader>,
        log: Log,
        known: &KnownKinds,
    ) -> Result<Self, LoadError> {
        let state = SessionState::fold(&log, known)?;
        let (gate, validation) = (HistoryGate::new(), Validation::default());
        Ok(Self { header, log, state, gate, validation })
    }

    /// Holds these rules against what is appended from now on. One that is new folds the log, which
    /// is not judged; one that held before goes on.
    pub fn set_validators(&mut self, validators: &[Arc<dyn Validator>]) {
        self.validation = self.validation.over(&self.log, validators);
    }

    /// The session's header.
    pub fn header(&self) -> &Arc<SessionHeader> {
        &self.header
    }

    /// The log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The folds.
    pub fn state(&self) -> &SessionState {
        &self.state
    }

    /// Runs a command. What it appended stands at the log's end; a refused event and those after it
    /// do not.
    pub fn execute(&mut self, command: Command, mint: &mut dyn Mint) -> Reply {
        let outcome = match command {
            Command::Accept(accept) => self.accept(accept, mint).map(Reply::Accepted),
            Command::Edit(edit) => self.edit(edit, mint).map(Reply::Edited),
            Command::OpenTurn { only_if_pending } => {
                if only_if_pending && self.state.inbox().is_empty() {
                    Ok(Reply::Opened(None))
                } else {
                    self.open_turn(mint).map(|claimed| Reply::Opened(Some(claimed)))
                }
            }
            Command::Claim => self.claim(InboxTarget::NextStep, mint).map(Reply::Claimed),
            Command::StartStep(at) => self
                .append(NewEvent::log_only(EventBody::StepStart(at)), mint)
                .map(|_| Reply::StepStarted(self.standing())),
            Command::Admit(admission) => {
                self.admit(*admission, mint).map(|admitted| Reply::Admitted(Box::new(admitted)))
            }
            Command::Settle(event) => self.settle(*event, mint).map(Reply::Settled),
            Command::EndStep { at, recover } => {
                self.end_step(at, recover, mint).map(Reply::StepEnded)
            }
            Command::CloseTurn { turn, reason, unless_steered } => {
                self.close_turn(turn, reason, unless_steered, mint).map(Reply::Closed)
            }
            Command::Repair { tail } => self.repair(tail.as_ref()).map(Reply::Repaired),
            Command::Append(events) => self.append_all(events, mint).map(Reply::Appended),
        };
        outcome.unwrap_or_else(Reply::Refused)
    }

    fn append(&mut self, event: NewEvent, mint: &mut dyn Mint) -> Result<SharedEvent, AppendError> {
        self.append_at(event, mint.now())
    }

    fn append_at(&mut self, event: NewEvent, time: i64) -> Result<SharedEvent, AppendError> {
        let (planned, validation) = self.plan(&event)?;
        let event: SharedEvent = Arc::new(event.at(planned.seq(), time));
        self.state.apply(&self.log, planned, &event);
        self.log.push(event.clone());
        self.validation = validation;
        Ok(event)
    }

    fn plan(&self, event: &NewEvent) -> Result<(Planned, Validation), AppendError> {
        let planned = self.state.check(&self.log, event)?;
        let validation = self.validation.next(Candidate::new(planned.seq(), event))?;
        Ok((planned, validation))
    }

    /// Runs appends that belong together: if one is refused, none has happened.
    fn all_or_none<T>(
        &mut self,
        appends: impl FnOnce(&mut Self) -> Result<T, AppendError>,
    ) -> Result<T, AppendError> {
        // Not the gate, which no append touches and whose copy costs the whole history.
        let before = (self.log.clone(), self.state.clone(), self.validation.clone());
        let outcome = appends(self);
        if outcome.is_err() {
            (self.log, self.state, self.validation) = before;
        }
        outcome
    }

    /// All of the events, or none.
    fn append_all(
        &mut self,
        events: Vec<NewEvent>,
        mint: &mut dyn Mint,
    ) -> Result<Vec<SharedEvent>, AppendError> {
        if let [_] = events.as_slice() {
            return events.into_iter().map(|event| self.append(event, mint)).collect();
        }
        self.all_or_none(|core| events.into_iter().map(|event| core.append(event, mint)).collect())
    }

    fn fault(&self, cause: SpliceFault) -> AppendError {
        AppendError::Inbox(InboxError { seq: self.log.len(), cause })
    }

    fn splice(
        &mut self,
        splice: InboxSpliced,
        mint: &mut dyn Mint,
    ) -> Result<SharedEvent, AppendError> {
        self.append(NewEvent::log_only(EventBody::InboxSpliced(splice)), mint)
    }

    fn accept(&mut self, accept: Accept, mint: &mut dyn Mint) -> Result<Accepted, AppendError> {
        let Accept { message, target, open, retry } = accept;
        let id = message.id.clone();
        let known = self.state.ever_had(&id);
        if known && !retry {
            return Err(self.fault(SpliceFault::AlreadyPending { id }));
        }
        let seq = if known {
            None
        } else {
            let splice = self
                .state
                .inbox()
                .insert_at_tail(target, message)
                .map_err(|cause| self.fault(cause))?;
            Some(self.splice(splice, mint)?.seq)
        };
        let opened = match open {
            // The send that this one repeats has had its turn already, or was taken back.
            true if known && !self.state.inbox().contains(&id) => None,
            true => Some(self.open_turn(mint)),
            false => None,
        };
        Ok(Accepted { id, seq, opened })
    }

    fn edit(&mut self, edit: InboxEdit, mint: &mut dyn Mint) -> Result<Edited, AppendError> {
        let inbox = self.state.inbox();
        let splices = match edit {
            InboxEdit::Prepend { message, target } => {
                inbox.prepend(target, message).map(|splice| vec![splice])
            }
            InboxEdit::Replace { id, with } => {
                inbox.replace(&id, with).map(|splice| splice.into_iter().collect())
            }
            InboxEdit::Remove { id } => Ok(inbox.remove(&id).into_iter().collect()),
            InboxEdit::Clear => Ok(inbox.clear()),
            InboxEdit::Splice { target, start, delete, insert } => inbox
                .splice(target, start as f64, delete as f64, insert)
                .map(|splice| splice.into_iter().collect()),
        };
        let splices: Vec<InboxSpliced> = splices.map_err(|cause| self.fault(cause))?;
        for message in splices.iter().flat_map(|splice| &splice.inserted) {
            if self.was_taken(&message.id) {
                return Err(self.fault(SpliceFault::AlreadyTaken { id: message.id.clone() }));
            }
        }
        let mut edited = Edited { removed: Vec::new(), inserted: Vec::new() };
        self.all_or_none(|core| {
            for splice in splices {
                let removed = core.state.inbox().removed(&splice).map(<[_]>::to_vec);
                let removed = removed.map_err(|cause| core.fault(cause))?;
                let inserted = splice.inserted.clone();
                core.splice(splice, mint)?;
                edited.removed.extend(removed);
                edited.inserted.extend(inserted);
            }
            Ok(edited)
        })
    }

    /// Whether a turn has taken this message. One that was only taken back may enter again.
    fn was_taken(&self, id: &MessageId) -> bool {
        if !self.state.ever_had(id) || self.state.inbox().contains(id) {
            return false;
        }
        // Rare enough to read the log for it.
        let mut inbox = Inbox::new();
        for event in self.log.iter() {
            let EventBody::InboxSpliced(splice) = &event.body else { continue };
            let removed = inbox.removed(splice).unwrap_or_default();
            if splice.is_claim() && removed.iter().any(|message| message.id == *id) {
                return true;
            }
            // The log was folded before: each of its splices fits.
            let _ = inbox.apply(event.seq, splice);
        }
        false
    }

    fn open_turn(&mut self, mint: &mut dyn Mint) -> Result<Claimed, AppendError> {
        let turn = self.state.boundary().last_turn() + 1;
        let start = EventBody::TurnStart(TurnStart { turn });
        // Whoever asked for the turn would not close one that it could not claim for.
        self.all_or_none(|core| {
            core.append(NewEvent::log_only(start), mint)?;
            core.claim(InboxTarget::NextTurn, mint)
        })
    }

    fn claim(&mut self, target: InboxTarget, mint: &mut dyn Mint) -> Result<Claimed, AppendError> {
        let (splices, messages) = self.state.inbox().claim(target);
        for splice in splices {
            self.splice(splice, mint)?;
        }
        let choice = self.state.selection().next().cloned();
        Ok(Claimed { turn: self.state.boundary().last_turn(), messages, choice })
    }

    fn standing(&self) -> Standing {
        Standing { header: self.state.requests().header().cloned() }
    }

    fn settle(&mut self, event: NewEvent, mint: &mut dyn Mint) -> Result<Settled, AppendError> {
        let kind = match event.body {
            EventBody::AssistantMessage(_) => "assistant/message",
            _ => "assistant/attempt",
        };
        let seq = self.append(event, mint)?.seq;
        Ok(Settled { seq, kind, standing: self.standing() })
    }

    fn end_step(
        &mut self,
        at: StepAt,
        recover: bool,
        mint: &mut dyn Mint,
    ) -> Result<StepEnded, AppendError> {
        let mut unrecovered = None;
        if recover {
            let results = repair::failed_step_results(self.state.recovery(), at, self.log.len());
            for result in results {
                if let Err(error) = self.append(result, mint) {
                    unrecovered = Some(Failure::from(error));
                    break;
                }
            }
        }
        self.append(NewEvent::log_only(EventBody::StepEnd(at)), mint)?;
        let steered = !self.state.inbox().list(InboxTarget::NextStep).is_empty();
        Ok(StepEnded { steered, unrecovered })
    }

    fn close_turn(
        &mut self,
        turn: u32,
        reason: TurnEndReason,
        unless_steered: bool,
        mint: &mut dyn Mint,
    ) -> Result<Closed, AppendError> {
        if unless_steered && !self.state.inbox().list(InboxTarget::NextStep).is_empty() {
            return Ok(Closed::Steered);
        }
        let end = EventBody::TurnEnd(TurnEnd { turn, reason });
        self.append(NewEvent::log_only(end), mint)?;
        Ok(Closed::Ended { pending: !self.state.inbox().is_empty() })
    }

    fn repair(&mut self, tail: Option<&UnsettledTail>) -> Result<Repaired, AppendError> {
        let mut closers = repair::interrupted_closers(&self.log, tail);
        let refused = |closer: &Event| self.plan(&unplaced(closer)).is_err();
        if tail.is_some() && closers.first().is_some_and(refused) {
            // A tail that the log does not take must not keep the turn open.
            closers = repair::interrupted_closers(&self.log, None);
        }
        for closer in closers {
            self.append_at(unplaced(&closer), closer.time)?;
        }
        let inbox = self.state.inbox();
        Ok(Repaired {
            pending: !inbox.is_empty(),
            prompts: !inbox.list(InboxTarget::NextTurn).is_empty(),
            generation: self.state.surface().content_generation(),
            last_turn: self.state.boundary().last_turn(),
        })
    }

    /// The messages that the inbox holds.
    pub fn pending(&self, target: InboxTarget) -> &[SharedMessage] {
        self.state.inbox().list(target)
    }
}

fn unplaced(event: &Event) -> NewEvent {
    let Event { body, surface, sources, ignorable, .. } = event.clone();
    NewEvent { body, surface, sources, ignorable }
}

#[cfg(test)]
mod tests;
