//! Everything that a session's log says now: all core folds in one value.
//!
//! One check decides over live appends and loads; one apply keeps every fold in step. A clone is
//! cheap and is a snapshot, so a batch is planned on a clone and committed whole or not at all.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    boundary::{Boundary, BoundaryError},
    candidate::Candidate,
    chunk::Failure,
    consumed::ConsumedWork,
    event::{Event, EventBody, NewEvent, Seq},
    gate::GateFault,
    history::History,
    id::{CallId, MessageId},
    inbox::{Inbox, InboxError},
    log::Log,
    repair::{RecoveryTracker, TOOL_NOT_STARTED},
    request_folds::RequestFolds,
    runtime_context::RuntimeContext,
    selection::ModelSelection,
    shared_set::SharedSet,
    surface::{IMAGE_OFFLOAD, Surface, SurfaceChange, SurfaceError},
    tool_history::{MissingDefinition, ToolHistory},
    validate::{self, InvalidEvent},
    validator::Veto,
};

/// Why an event may not stand at the end of a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The event itself is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
    /// It is out of place in its turn.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    /// It does not fit the surface.
    #[error(transparent)]
    Surface(#[from] SurfaceError),
    /// It does not fit the inbox.
    #[error(transparent)]
    Inbox(#[from] InboxError),
    /// It adds a tool without a definition.
    #[error(transparent)]
    Tools(#[from] MissingDefinition),
    /// It would make the conversation one that a strict provider refuses.
    #[error(transparent)]
    History(#[from] GateFault),
    /// It is a result of a call that the step did not start.
    #[error("tool result for \"{call}\", which has no `tool/call` in this step")]
    ResultWithoutCall {
        /// The call.
        call: CallId,
    },
    /// It breaks a rule that holds beyond the core's own.
    #[error(transparent)]
    Vetoed(#[from] Veto),
}

impl AppendError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(fault) => fault.code(),
            Self::Boundary(fault) => fault.code(),
            Self::Surface(fault) => fault.code(),
            Self::Inbox(fault) => fault.code(),
            Self::Tools(fault) => fault.code(),
            Self::History(fault) => fault.code(),
            Self::ResultWithoutCall { .. } => "TOOL_RESULT_WITHOUT_CALL",
            Self::Vetoed(veto) => veto.code(),
        }
    }
}

impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Why a log cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// An event of a kind that nobody here knows, and that may not be skipped.
    #[error(
        "event {seq} is of unknown kind \"{kind}\" and not marked ignorable: \
         load the plugin that wrote it"
    )]
    UnknownKind {
        /// The event.
        seq: Seq,
        /// Its type.
        kind: String,
    },
    /// An event that cannot stand where it stands.
    #[error("event {seq} (`{kind}`): {fault}")]
    Event {
        /// The event.
        seq: Seq,
        /// Its type.
        kind: String,
        /// What is wrong with it.
        #[source]
        fault: AppendError,
    },
}

impl LoadError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownKind { .. } => "FORMAT_UNSUPPORTED",
            Self::Event { fault, .. } => fault.code(),
        }
    }

    /// The event at fault.
    pub fn seq(&self) -> Seq {
        match self {
            Self::UnknownKind { seq, .. } | Self::Event { seq, .. } => *seq,
        }
    }
}

/// The plugin event kinds that this process understands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownKinds(BTreeSet<Arc<str>>);

impl KnownKinds {
    /// No kinds beyond the core's own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a kind.
    pub fn insert(&mut self, kind: impl Into<Arc<str>>) {
        self.0.insert(kind.into());
    }

    /// Whether a custom event of this kind is understood.
    pub fn contains(&self, kind: &str) -> bool {
        kind == IMAGE_OFFLOAD || self.0.contains(kind)
    }
}

impl<K: Into<Arc<str>>> FromIterator<K> for KnownKinds {
    fn from_iter<I: IntoIterator<Item = K>>(kinds: I) -> Self {
        Self(kinds.into_iter().map(Into::into).collect())
    }
}

/// An event that passed the check, with what the check found out.
#[derive(Debug, Clone)]
pub struct Planned {
    seq: Seq,
    boundary: Boundary,
    surface: SurfaceChange,
}

impl Planned {
    /// The seq that the event will have.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// What it will do to the surface.
    pub fn surface(&self) -> &SurfaceChange {
        &self.surface
    }
}

/// All core folds of a log. Clones share their contents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionState {
    next_seq: Seq,
    inbox: Inbox,
    surface: Surface,
    history: History,
    boundary: Boundary,
    requests: RequestFolds,
    selection: Arc<ModelSelection>,
    tools: ToolHistory,
    recovery: RecoveryTracker,
    runtime_context: RuntimeContext,
    consumed: ConsumedWork,
    ids: SharedSet<MessageId>,
}

impl SessionState {
    /// The state of an empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// The state of a log. Every event is checked as a live append would be; custom kinds must be
    /// known or ignorable.
    pub fn fold(log: &Log, known: &KnownKinds) -> Result<Self, LoadError> {
        let mut state = Self::new();
        for event in log.iter() {
            let seq = event.seq;
            let kind = event.body.kind();
            if let EventBody::Custom { .. } = event.body
                && !event.ignorable
                && !known.contains(kind)
            {
                return Err(LoadError::UnknownKind { seq, kind: kind.to_owned() });
            }
            state.advance(log, event).map_err(|fault| LoadError::Event {
                seq,
                kind: kind.to_owned(),
                fault,
            })?;
        }
        Ok(state)
    }

    /// Whether an event may be the next one. `log` is the log of this state.
    pub fn check(&self, log: &Log, event: &NewEvent) -> Result<Planned, AppendError> {
        self.plan(log, Candidate::new(self.next_seq, event))
    }

    fn plan(&self, log: &Log, event: Candidate<'_>) -> Result<Planned, AppendError> {
        validate::check_candidate(log, event)?;
        let boundary = self.boundary.next(event)?;
        let surface = self.surface.plan(log, event)?;
        match event.body {
            EventBody::InboxSpliced(splice) => {
                let seq = event.seq;
                self.inbox.check(splice).map_err(|cause| InboxError { seq, cause })?;
            }
            EventBody::ToolResult(data) if !event.is_replacement() => {
                let never_started = data.error.as_ref().is_some_and(|e| e.code == TOOL_NOT_STARTED);
                if let Some(call) = &data.message.tool_call_id
                    && !never_started
                    && self.recovery.started(call).is_none()
                {
                    return Err(AppendError::ResultWithoutCall { call: call.clone() });
                }
            }
            _ => {}
        }
        Ok(Planned { seq: event.seq, boundary, surface })
    }

    /// Folds the event that [`SessionState::check`] of this very state planned. `log` may hold the
    /// event already.
    ///
    /// # Panics
    ///
    /// If the plan is another state's: folds that went apart must not go on.
    pub fn apply(&mut self, log: &Log, planned: Planned, event: &Event) {
        let Planned { seq, boundary, surface } = planned;
        assert!(
            seq == self.next_seq && seq == event.seq,
            "event {} planned as {seq}, but the state stands at {}",
            event.seq,
            self.next_seq
        );
        let body = &event.body;
        self.history.apply(&self.surface, seq, body, &surface);
        self.surface.apply(seq, body, &surface);
        self.boundary = boundary;
        if let EventBody::InboxSpliced(splice) = body {
            let applied = self.inbox.apply(seq, splice);
            assert!(applied.is_ok(), "checked splice: {applied:?}");
            for message in &splice.inserted {
                self.ids.insert(message.id.clone());
            }
        }
        let told = self.tools.apply(log, body);
        assert!(told.is_ok(), "checked developer message: {told:?}");
        self.requests.apply(seq, body);
        if ModelSelection::is_changed_by(body) {
            Arc::make_mut(&mut self.selection).apply(body);
        }
        let candidate = Candidate::from(event);
        self.recovery.observe(candidate);
        self.runtime_context.apply(candidate);
        self.consumed.apply(seq, body);
        if let Some(message) = body.message() {
            self.ids.insert(message.id.clone());
        }
        self.next_seq = seq + 1;
    }

    /// Checks and folds the next event of a log that exists already. On an error the state is as it
    /// was.
    pub fn advance(&mut self, log: &Log, event: &Event) -> Result<(), AppendError> {
        let planned = self.plan(log, Candidate::from(event))?;
        self.apply(log, planned, event);
        Ok(())
    }

    /// The seq of the next event: how many were folded.
    pub fn next_seq(&self) -> Seq {
        self.next_seq
    }

    /// Whether inbox or surface ever held a message of this id: a send that is retried after its
    /// reply was lost is known by it.
    pub fn ever_had(&self, id: &MessageId) -> bool {
        self.ids.contains(id)
    }

    /// The pending messages.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// The conversation's nodes.
    pub fn surface(&self) -> &Surface {
        &self.surface
    }

    /// The messages that the model sees.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The open turn and step.
    pub fn boundary(&self) -> &Boundary {
        &self.boundary
    }

    /// The last request's header and context.
    pub fn requests(&self) -> &RequestFolds {
        &self.requests
    }

    /// The chosen model.
    pub fn selection(&self) -> &Arc<ModelSelection> {
        &self.selection
    }

    /// The changes of the tool set.
    pub fn tools(&self) -> &ToolHistory {
        &self.tools
    }

    /// The open step's tool calls.
    pub fn recovery(&self) -> &RecoveryTracker {
        &self.recovery
    }

    /// What the model was told of the moment.
    pub fn runtime_context(&self) -> &RuntimeContext {
        &self.runtime_context
    }

    /// Whether the work that was sent has run.
    pub fn consumed(&self) -> &ConsumedWork {
        &self.consumed
    }
}

#[cfg(test)]
mod tests;
