//! One child of the machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use playhouse_messages::{
    event::Seq,
    id::{MessageId, SessionId},
};

use super::{
    super::{Activation, ActivationState, ContinuationError},
    Epoch, Lineage, Op,
};

#[derive(Debug)]
pub(super) struct Child {
    pub epoch: Epoch,
    /// Its parent first.
    pub lineage: Lineage,
    pub phase: Phase,
    /// Messages that it has not claimed: where its log stood when they came, or `None` on the way.
    pub accepted: BTreeMap<MessageId, Option<Seq>>,
    /// A quiet moment before this length says nothing.
    active: Seq,
    quiet: Option<Seq>,
    pub owned: BTreeSet<SessionId>,
    /// Somebody was told that a message was accepted, and so is to be told how it ended.
    pub announced: bool,
    /// Somebody above has interrupted it in this epoch.
    pub interrupted: bool,
    /// What is on its way.
    pub head: Option<Op>,
    pub queue: VecDeque<Op>,
}

#[derive(Debug)]
pub(super) enum Phase {
    Making {
        given_up: Option<ContinuationError>,
    },
    Resident,
    /// Cut off. It is disposed once it owns nothing.
    Closing {
        keep_inbox: bool,
        stage: Stage,
    },
    /// Nothing of it runs; its parent is being told by this message.
    Noticing(MessageId),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    WaitsForOwned,
    Disposing,
    /// By this message its parent will be told, once what is on its way has been answered.
    Disposed(MessageId),
}

impl Child {
    pub fn making(epoch: Epoch, op: Op, queue: VecDeque<Op>) -> Self {
        Self {
            epoch,
            lineage: op.lineage.clone(),
            phase: Phase::Making { given_up: None },
            accepted: BTreeMap::new(),
            active: 0,
            quiet: None,
            owned: BTreeSet::new(),
            announced: false,
            interrupted: false,
            head: Some(op),
            queue,
        }
    }

    pub fn is_resident(&self) -> bool {
        matches!(self.phase, Phase::Resident)
    }

    pub fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing { .. } | Phase::Noticing(_))
    }

    /// A message is on its way, or has arrived.
    pub fn took(&mut self, op: &Op, at: Option<Seq>) {
        match at {
            Some(_) => {
                self.announced = true;
                self.delivered(&op.message, at);
            }
            None => {
                self.accepted.insert(op.message.clone(), None);
            }
        }
    }

    /// A message has arrived, or will not.
    pub fn delivered(&mut self, message: &MessageId, at: Option<Seq>) {
        match at {
            Some(at) => {
                self.active = self.active.max(at);
                self.accepted.insert(message.clone(), Some(at));
            }
            None => {
                self.accepted.remove(message);
            }
        }
    }

    pub fn observed(&mut self, at: Seq, pending: &BTreeSet<MessageId>, quiet: bool) {
        self.accepted.retain(|id, came| came.is_none_or(|came| came > at) || pending.contains(id));
        if quiet {
            self.quiet = self.quiet.max(Some(at));
        } else {
            self.active = self.active.max(at + 1);
        }
    }

    fn is_quiet(&self) -> bool {
        self.quiet.is_some_and(|quiet| quiet >= self.active)
    }

    pub fn is_settled(&self) -> bool {
        self.is_resident()
            && self.is_quiet()
            && self.accepted.is_empty()
            && self.owned.is_empty()
            && self.head.is_none()
            && self.queue.is_empty()
    }

    pub fn seen(&self, id: &SessionId) -> Activation {
        let state = match &self.phase {
            Phase::Making { .. } => ActivationState::Making,
            Phase::Resident if !self.is_quiet() || self.accepted.values().any(Option::is_none) => {
                ActivationState::Running
            }
            Phase::Resident if !self.accepted.is_empty() => ActivationState::Parked,
            Phase::Resident => ActivationState::Waiting,
            Phase::Closing { .. } | Phase::Noticing(_) => ActivationState::Closing,
        };
        Activation {
            child: id.clone(),
            parent: self.lineage.first().unwrap_or(id).clone(),
            lineage: self.lineage.clone(),
            epoch: self.epoch,
            state,
            accepted: self.accepted.len(),
            queued: self.queue.len() + usize::from(self.head.is_some()),
            owned: self.owned.len(),
        }
    }
}
