//! What is asked of continuable children, and what is answered.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use playhouse_messages::{
    chunk::Failure,
    id::{MessageId, SessionId},
};
use playhouse_plugin_api::{agent::Agent, scope::Registration};

use crate::ChildRequest;

/// A continuable child to start.
#[derive(Debug, Clone)]
pub struct StartContinuable {
    /// What it is for, for people.
    pub label: String,
    /// Its id; a fresh one if absent.
    pub child_id: Option<SessionId>,
    /// Prompt, parent, options, filter, persona and depth limit. Its `cancel` counts until the prompt
    /// is accepted, and no longer; its `owner` does not count. An output schema is refused: a child
    /// that goes on has no one result.
    pub request: ChildRequest,
}

/// A child that was started: its prompt is **accepted**. Its turn may not have begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The child.
    pub child: SessionId,
    /// Its prompt.
    pub message: MessageId,
}

/// By which right a child's turn is interrupted.
#[derive(Debug, Clone)]
pub enum Authority {
    /// A person who sees the child below this parent.
    User {
        /// The child's durable parent, as the person sees it.
        parent: SessionId,
    },
    /// An agent above the child, at any distance.
    Ancestor(Agent),
}

/// How a report reaches the parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReportDelivery {
    /// At its next step; wakes a parent that is idle.
    #[default]
    NextStep,
    /// With the next step, whenever that comes; wakes nobody.
    Quiet,
}

/// A resident child at one moment, for seeing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activation {
    /// The child.
    pub child: SessionId,
    /// Its direct parent.
    pub parent: SessionId,
    /// Its parent, that one's, and so on, nearest first.
    pub lineage: Arc<[SessionId]>,
    /// Tells this residency from those before and after it.
    pub epoch: u64,
    /// What it is at.
    pub state: ActivationState,
    /// Messages that were accepted for it and that no turn has claimed.
    pub accepted: usize,
    /// Operations that wait for their turn.
    pub queued: usize,
    /// Children of its own that are resident.
    pub owned: usize,
}

/// What a resident child is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActivationState {
    /// It is being made, or resumed from the store.
    Making,
    /// It works, or has input to work on.
    Running,
    /// Its turn was ended while more input waited, which the next message lets run.
    Parked,
    /// It is done itself, and waits for children of its own.
    Waiting,
    /// It is being disposed, and its parent told.
    Closing,
}

impl ActivationState {
    /// Its name in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Making => "making",
            Self::Running => "running",
            Self::Parked => "parked",
            Self::Waiting => "waiting",
            Self::Closing => "closing",
        }
    }
}

/// Registers something in a child that is being made or resumed: in its scope, before it is live.
/// What it returns is undone when the contribution is removed; the rest goes with the child.
pub type Contribution = Arc<
    dyn Fn(Agent) -> BoxFuture<'static, Result<Vec<Registration>, Failure>> + Send + Sync + 'static,
>;

impl fmt::Display for ActivationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
