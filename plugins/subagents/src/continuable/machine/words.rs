//! What the machine is told, and what it wants done.

use std::{collections::BTreeSet, sync::Arc};

use playhouse_messages::{
    event::Seq,
    id::{MessageId, SessionId},
};

use super::super::ContinuationError;

/// Counts residencies; never used twice.
pub(in super::super) type Epoch = u64;

/// An agent and all above it, nearest first.
pub(in super::super) type Lineage = Arc<[SessionId]>;

/// Names an operation until it is answered.
pub(in super::super) type OpId = u64;

/// A message on its way to a child, or from one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Op {
    pub id: OpId,
    pub message: MessageId,
    /// The caller and those above it.
    pub lineage: Lineage,
}

/// Whom a drain ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum DrainScope {
    /// All, and nothing is admitted any more.
    All,
    /// All below these agents, and nothing is admitted there until they are gone.
    Below(Vec<SessionId>),
    /// These, which were found to be somebody's direct children. Admission stays open.
    Children(Vec<SessionId>),
}

#[derive(Debug, Clone)]
pub(in super::super) enum Input {
    /// A fresh child, by its first message.
    Start { child: SessionId, op: Op },
    /// A message for a child that is resident or stored.
    Deliver { child: SessionId, op: Op },
    /// The caller of an operation has gone.
    Cancelled { child: SessionId, op: OpId },
    /// The child is live, and perhaps took its first message on the way; or it could not be made.
    Made { child: SessionId, epoch: Epoch, made: Result<Option<Seq>, ContinuationError> },
    /// A message was accepted: its log was no longer than this then.
    Sent { child: SessionId, epoch: Epoch, op: OpId, at: Result<Seq, ContinuationError> },
    /// Somebody above has interrupted the child.
    Interrupted { child: SessionId },
    /// The child wants to tell its parent something.
    Report { child: SessionId, op: Op },
    /// The parent has taken a report, or has not. A length is told if the parent was woken by it:
    /// what wakes nobody must keep nobody resident.
    Reported { to: SessionId, op: Op, at: Result<Option<Seq>, ContinuationError> },
    /// How the child was at this length of its log: what pended, and whether nothing ran.
    Observed { child: SessionId, epoch: Epoch, at: Seq, pending: BTreeSet<MessageId>, quiet: bool },
    /// The child is disposed by somebody else, or its actors were given up.
    Leaving { child: SessionId, epoch: Epoch, keep_inbox: bool },
    /// Nothing of the child runs any more.
    Disposed { child: SessionId, epoch: Epoch, notice: MessageId, failure: Option<String> },
    /// The parent was woken by the settlement notice at this length; or it was not woken, or not there.
    Noticed { child: SessionId, epoch: Epoch, at: Option<Seq> },
    /// End these.
    Drain { drain: OpId, scope: DrainScope, keep_inbox: bool },
    /// An agent has left the registry.
    Gone { agent: SessionId },
}

#[derive(Debug, Clone)]
pub(in super::super) enum Effect {
    /// Make a fresh child with the operation's message, or resume the stored one: by what the
    /// operation brings.
    Make { child: SessionId, epoch: Epoch, op: OpId },
    /// Nobody wants what is being made.
    GiveUp { epoch: Epoch },
    /// The child is live.
    Started { child: SessionId, epoch: Epoch },
    /// Bring the operation's message to the child.
    Send { child: SessionId, epoch: Epoch, op: OpId },
    /// Bring a report to the parent.
    Report { op: OpId, to: SessionId },
    /// The operation is over.
    Answer { op: OpId, answer: Result<(), ContinuationError> },
    /// Cancel the child's work, as part of its disposal.
    Cancel { child: SessionId, epoch: Epoch, keep_inbox: bool },
    /// Dispose the child; nothing that it owns is left.
    Dispose { child: SessionId, epoch: Epoch, keep_inbox: bool },
    /// Tell the parent that the child has settled. It may be woken unless it ends itself; whether
    /// somebody above has interrupted the child is told along.
    Notice {
        child: SessionId,
        epoch: Epoch,
        to: SessionId,
        message: MessageId,
        wake: bool,
        interrupted: bool,
    },
    /// The child's epoch is over.
    Ended { child: SessionId, epoch: Epoch },
    /// A drain is over.
    Drained { drain: OpId, failures: Vec<String> },
}
