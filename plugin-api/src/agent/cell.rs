//! What of an agent outlives its actors.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use playhouse_messages::{
    chunk::Failure,
    event::{CancelCause, EventBody, InboxTarget, Seq},
    id::SessionId,
    machine::{Moment, Status},
    protocol::{AgentMessage, AgentSupervisorMessage, CommandNo},
};
use tokio::sync::broadcast;
use tracing::Span;

use super::awake::Wakefulness;
use crate::{
    budget::Account, cancel::CancelToken, clock::Ids, options::AgentOptions, prompt::Assembly,
    registry::AgentRegistry, scope::Scope, session::Session, slot::Slot, watch,
};

/// Errors that a subscriber of [`Agent::errors`](super::Agent::errors) may lag behind before it misses the oldest. Errors
/// are rare, and the log has those with a durable place.
const ERRORS_KEPT: usize = 64;

/// An agent in the world: what outlives its actors, and the way to them.
pub struct AgentCell {
    pub(super) session: Session,
    pub(super) scope: Scope,
    pub(super) owner: Scope,
    pub(super) options: AgentOptions,
    pub(super) account: Option<Arc<Account>>,
    pub(super) blueprint: Option<Arc<str>>,
    pub(super) wakefulness: Wakefulness,
    pub(super) lineage: Arc<[SessionId]>,
    pub(super) depth: u32,
    pub(super) registry: AgentRegistry,
    pub(super) ids: Arc<dyn Ids>,
    pub(super) span: Span,
    cancel: Mutex<CancelState>,
    pub(super) status: watch::Sender<Status>,
    disposed: watch::Sender<Disposal>,
    /// Made for the first who listens: its ring is larger than the rest of the cell.
    errors: OnceLock<broadcast::Sender<AgentFault>>,
    attempts: AtomicU64,
    /// The length of its log when it was put into the world.
    born: Seq,
    held: AtomicBool,
    end: OnceLock<Result<(), Failure>>,
    assembly: Mutex<Option<Arc<Assembly>>>,
    /// The actor that owns the loop machine.
    pub actor: Slot<AgentMessage>,
    /// The actor that keeps the agent's actors alive.
    pub supervisor: Slot<AgentSupervisorMessage>,
}

struct CancelState {
    announced: u64,
    /// Announced, and not yet taken by the machine: so that a cancel outlives the mailbox it was in.
    pending: VecDeque<AnnouncedCancel>,
    token: CancelToken,
    /// The command by which the last taken cancel drops pending input, until it is answered.
    clearing: Option<(CommandNo, CancelCause)>,
}

/// A cancel that tasks have seen and the machine has not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnouncedCancel {
    /// Its number, from 1.
    pub announcement: u64,
    /// Who cancels.
    pub cause: CancelCause,
    /// Leave pending input where it is.
    pub keep_inbox: bool,
}

/// How far an agent's disposal has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposal {
    /// It lives.
    Live,
    /// Disposal was asked for, with or without keeping pending input.
    Disposing {
        /// Leave pending input in the log.
        keep_inbox: bool,
    },
    /// Nothing of it is left but its log.
    Disposed,
}

/// A failure that `agent/error` tells, also one without a place in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentFault {
    /// The agent.
    pub agent: SessionId,
    /// The open turn, or the last one.
    pub turn: u32,
    /// The open step; 0 if none.
    pub step: u32,
    /// What failed.
    pub failure: Failure,
}

/// What an agent is put into the world with.
pub struct AgentParts {
    /// Its session.
    pub session: Session,
    /// Its own scope.
    pub scope: Scope,
    /// The scope that owns it.
    pub owner: Scope,
    /// What it was made with.
    pub options: AgentOptions,
    /// What it spends from, if any budget counts.
    pub account: Option<Arc<Account>>,
    /// The blueprint that it was made from.
    pub blueprint: Option<Arc<str>>,
    /// Who delegated to it, nearest first.
    pub lineage: Arc<[SessionId]>,
    /// How deep it stands at least, whatever its session's header says.
    pub depth: u32,
    /// The agents of its harness.
    pub registry: AgentRegistry,
    /// Where ids come from.
    pub ids: Arc<dyn Ids>,
    /// The span of its harness.
    pub span: Span,
}

impl AgentCell {
    /// Puts an agent into the world.
    pub fn new(parts: AgentParts) -> Arc<Self> {
        let AgentParts {
            session,
            scope,
            owner,
            options,
            account,
            blueprint,
            lineage,
            depth,
            registry,
            ids,
            span,
        } = parts;
        let span = tracing::info_span!(parent: &span, "agent", id = %session.id());
        Arc::new(Self {
            born: session.log().len(),
            scope,
            owner,
            options,
            account,
            blueprint,
            wakefulness: Wakefulness::new(),
            lineage,
            depth: depth.max(session.header().delegation_depth.unwrap_or(0)),
            session,
            registry,
            ids,
            span,
            cancel: Mutex::new(CancelState {
                announced: 0,
                pending: VecDeque::new(),
                token: CancelToken::new(),
                clearing: None,
            }),
            status: watch::Sender::new(Status::Idle),
            disposed: watch::Sender::new(Disposal::Live),
            errors: OnceLock::new(),
            attempts: AtomicU64::new(0),
            held: AtomicBool::new(true),
            end: OnceLock::new(),
            assembly: Mutex::new(None),
            actor: Slot::new(),
            supervisor: Slot::new(),
        })
    }

    /// Fires the current token and notes the cancel for the machine. Returns its number.
    pub(super) fn announce(&self, cause: CancelCause, keep_inbox: bool) -> u64 {
        let mut state = self.cancel_state();
        state.announced += 1;
        let announcement = state.announced;
        state.token.cancel(cause.clone());
        state.pending.push_back(AnnouncedCancel { announcement, cause, keep_inbox });
        announcement
    }

    fn cancel_state(&self) -> MutexGuard<'_, CancelState> {
        self.cancel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token and the announcements at this moment, as the machine wants them.
    pub fn moment(&self) -> Moment {
        let state = self.cancel_state();
        Moment { cancelled: state.token.cause(), cancels_announced: state.announced }
    }

    /// Hands an announced cancel to the machine, unless it has been taken already.
    pub fn take_cancel(&self, announcement: u64) -> Option<AnnouncedCancel> {
        let mut state = self.cancel_state();
        let at = state.pending.iter().position(|cancel| cancel.announcement == announcement)?;
        state.pending.remove(at)
    }

    /// The oldest cancel that was announced and not taken: what a successor's machine starts with.
    pub fn take_oldest_cancel(&self) -> Option<AnnouncedCancel> {
        self.cancel_state().pending.pop_front()
    }

    /// Tells the actor of the moment again of all cancels that no machine has taken. One that was
    /// announced while the actor started, and had not entered its slot, was sent to nobody.
    pub fn send_cancels_again(&self) {
        let pending = self.cancel_state().pending.clone();
        for AnnouncedCancel { announcement, .. } in pending {
            let _ = self.actor.cast(AgentMessage::Cancel { announcement });
        }
    }

    /// A taken cancel drops pending input by this command.
    pub fn set_clearing(&self, number: CommandNo, cause: CancelCause) {
        self.cancel_state().clearing = Some((number, cause));
    }

    /// A command was answered: if it was the one that drops pending input, it did.
    pub fn answered(&self, number: CommandNo) {
        let mut state = self.cancel_state();
        if state.clearing.as_ref().is_some_and(|(clearing, _)| *clearing == number) {
            state.clearing = None;
        }
    }

    /// The cause of a taken cancel whose command died on its way: with the actor that took the cancel,
    /// and before the session ran it. A successor does it again.
    pub fn take_lost_cancel(&self) -> Option<CancelCause> {
        let (number, cause) = self.cancel_state().clearing.take()?;
        self.session.view().answer(number).is_none().then_some(cause)
    }

    /// The number of the last cancel that was taken in order.
    pub fn cancels_taken(&self) -> u64 {
        let state = self.cancel_state();
        state.pending.front().map_or(state.announced, |cancel| cancel.announcement - 1)
    }

    /// The token of the current activity.
    pub fn token(&self) -> CancelToken {
        self.cancel_state().token.clone()
    }

    /// Installs a fresh token for the activity that begins.
    pub fn new_token(&self) {
        self.cancel_state().token = CancelToken::new();
    }

    /// Publishes a change of status.
    pub fn set_status(&self, status: Status) {
        if status == Status::Idle {
            self.wakefulness.rests();
        }
        self.status.send_replace(status);
    }

    /// Moves the disposal forward; it never moves back.
    pub fn set_disposal(&self, to: Disposal) {
        self.disposed.send_if_modified(|disposal| {
            let forward = matches!(
                (*disposal, to),
                (Disposal::Live, _) | (Disposal::Disposing { .. }, Disposal::Disposed)
            );
            if forward {
                *disposal = to;
            }
            forward
        });
    }

    /// How far the disposal has got.
    pub fn disposal(&self) -> watch::Receiver<Disposal> {
        self.disposed.subscribe()
    }

    /// Whether input still waits for the agent's creation to be over.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Whether a prompt came since the agent was made and still waits.
    pub fn has_early_prompt(&self) -> bool {
        let view = self.session.view();
        let prompts = |body: &EventBody| {
            matches!(body, EventBody::InboxSpliced(splice)
                if splice.target == InboxTarget::NextTurn && !splice.inserted.is_empty())
        };
        !view.inbox.list(InboxTarget::NextTurn).is_empty()
            && view.log.range(self.born..view.log.len()).any(|event| prompts(&event.body))
    }

    /// Lets input run, in this life of the agent's actor and in those after it.
    pub fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// How the disposal ended, for whoever asks once its supervisor is gone.
    pub fn end(&self) -> Result<(), Failure> {
        self.end.get().cloned().unwrap_or(Ok(()))
    }

    /// Says how the disposal ended. Only the first word counts.
    pub fn set_end(&self, end: Result<(), Failure>) {
        let _ = self.end.set(end);
    }

    /// Reads failures along from here.
    pub(super) fn errors(&self) -> broadcast::Receiver<AgentFault> {
        self.errors.get_or_init(|| broadcast::Sender::new(ERRORS_KEPT)).subscribe()
    }

    /// Tells subscribers of a failure.
    pub fn tell_error(&self, fault: AgentFault) {
        // Nobody has to listen.
        if let Some(errors) = self.errors.get() {
            let _ = errors.send(fault);
        }
    }

    /// What the current step was assembled from.
    pub fn assembly(&self) -> Option<Arc<Assembly>> {
        self.assembly.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps what a step was assembled from, so that its runtime facts can be refreshed.
    pub fn set_assembly(&self, assembly: Arc<Assembly>) {
        *self.assembly.lock().unwrap_or_else(PoisonError::into_inner) = Some(assembly);
    }

    /// How many attempts the agent has started; counted over restarts, so that ids stay unique.
    pub fn attempts(&self) -> &AtomicU64 {
        &self.attempts
    }
}
