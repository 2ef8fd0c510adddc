//! The decisions about continuable children: inputs in, effects out; no clock, no I/O, no tasks.
//!
//! A child has a queue of its own: what is sent to it is admitted one after the other, also while it
//! is being made or disposed. It settles when its last quiet moment is not older than its last
//! accepted message, and nothing that was accepted, owned or queued is left.

mod child;
mod closing;
mod words;

#[cfg(test)]
mod model;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use playhouse_messages::{event::Seq, id::SessionId};

pub(super) use self::words::{DrainScope, Effect, Epoch, Input, Lineage, Op, OpId};
use self::{
    child::{Child, Phase, Stage},
    closing::Drain,
};
use super::{Activation, ContinuationError};

/// All continuable children that are made, resident or being disposed. What is only stored is not
/// here.
#[derive(Debug, Default)]
pub(super) struct Machine {
    children: BTreeMap<SessionId, Child>,
    /// How many children are below each agent, so that the end of one without any costs nothing.
    below: BTreeMap<SessionId, usize>,
    /// Agents below which nothing is admitted, until they have left the registry.
    closed_below: BTreeSet<SessionId>,
    /// Nothing is admitted at all.
    closed: bool,
    drains: Vec<Drain>,
    epochs: Epoch,
    out: Vec<Effect>,
}

impl Machine {
    /// Takes an input; the effects are to be performed in their order.
    pub(super) fn handle(&mut self, input: Input) -> Vec<Effect> {
        match input {
            Input::Start { child, op } => self.start(child, op),
            Input::Deliver { child, op } => self.deliver(child, op),
            Input::Cancelled { child, op } => self.cancelled(&child, op),
            Input::Made { child, epoch, made } => self.made(&child, epoch, made),
            Input::Sent { child, epoch, op, at } => self.sent(&child, epoch, op, at),
            Input::Interrupted { child } => self.interrupted(&child),
            Input::Report { child, op } => self.report(&child, op),
            Input::Reported { to, op, at } => self.reported(&to, op, at),
            Input::Observed { child, epoch, at, pending, quiet } => {
                if let Some(resident) = self.current(&child, epoch) {
                    resident.observed(at, &pending, quiet);
                    self.settle(&child);
                }
            }
            Input::Leaving { child, epoch, keep_inbox } => {
                if self.current(&child, epoch).is_some() {
                    self.close(&child, keep_inbox);
                }
            }
            Input::Disposed { child, epoch, notice, failure } => {
                self.disposed(&child, epoch, notice, failure);
            }
            Input::Noticed { child, epoch, at } => self.noticed(&child, epoch, at),
            Input::Drain { drain, scope, keep_inbox } => self.drain(drain, scope, keep_inbox),
            Input::Gone { agent } => drop(self.closed_below.remove(&agent)),
        }
        std::mem::take(&mut self.out)
    }

    /// Whether an agent may start or send, and a start may be under it.
    pub(super) fn admitted(&self, lineage: &Lineage) -> Result<(), ContinuationError> {
        let caller = lineage.first();
        if self.closed || lineage.iter().any(|above| self.closed_below.contains(above)) {
            let below = caller.cloned().unwrap_or_else(|| SessionId::from(""));
            return Err(ContinuationError::Draining { below });
        }
        match caller.and_then(|caller| Some((caller, self.children.get(caller)?))) {
            Some((id, child)) if child.is_closing() => {
                Err(ContinuationError::ActivationClosing { id: id.clone() })
            }
            _ => Ok(()),
        }
    }

    fn start(&mut self, child: SessionId, op: Op) {
        let refused = match self.admitted(&op.lineage) {
            Ok(()) if self.children.contains_key(&child) => {
                ContinuationError::DuplicateChild { id: child }
            }
            Ok(()) => return self.make(child, op, VecDeque::new()),
            Err(refused) => refused,
        };
        self.out.push(Effect::Answer { op: op.id, answer: Err(refused) });
    }

    fn deliver(&mut self, child: SessionId, op: Op) {
        if let Err(refused) = self.admitted(&op.lineage) {
            self.out.push(Effect::Answer { op: op.id, answer: Err(refused) });
        } else if let Some(known) = self.children.get_mut(&child) {
            known.queue.push_back(op);
            self.advance(&child);
        } else {
            self.make(child, op, VecDeque::new());
        }
    }

    /// Begins an epoch for the operation that asks for it. Its caller owns the child from now on, so
    /// that it outlives the making.
    fn make(&mut self, id: SessionId, op: Op, queue: VecDeque<Op>) {
        self.epochs += 1;
        let epoch = self.epochs;
        if let Some(parent) = op.lineage.first().and_then(|parent| self.children.get_mut(parent)) {
            parent.owned.insert(id.clone());
        }
        for above in op.lineage.iter() {
            *self.below.entry(above.clone()).or_default() += 1;
        }
        self.out.push(Effect::Make { child: id.clone(), epoch, op: op.id });
        self.children.insert(id, Child::making(epoch, op, queue));
    }

    fn cancelled(&mut self, id: &SessionId, op: OpId) {
        let Some(child) = self.children.get_mut(id) else { return };
        if let Some(at) = child.queue.iter().position(|queued| queued.id == op) {
            child.queue.remove(at);
            self.out.push(Effect::Answer { op, answer: Err(ContinuationError::Cancelled) });
            self.settle(id);
        } else if let Phase::Making { given_up } = &mut child.phase
            && child.head.as_ref().is_some_and(|head| head.id == op)
            && given_up.is_none()
        {
            *given_up = Some(ContinuationError::Cancelled);
            self.out.push(Effect::GiveUp { epoch: child.epoch });
        }
        // Its message is on its way to the log otherwise, and cannot be called back.
    }

    fn made(&mut self, id: &SessionId, epoch: Epoch, made: Result<Option<Seq>, ContinuationError>) {
        let Some(child) = self.current(id, epoch) else { return };
        let Phase::Making { given_up } = &mut child.phase else { return };
        let given_up = given_up.take();
        let Some(head) = child.head.take() else { return };
        let at = match made {
            Ok(at) => at,
            Err(failed) => {
                let answer = Err(given_up.unwrap_or(failed));
                self.out.push(Effect::Answer { op: head.id, answer });
                return self.release(id);
            }
        };
        child.phase = Phase::Resident;
        let refused = given_up.or_else(|| self.admitted(&head.lineage).err());
        if let Some(refused) = refused {
            self.out.push(Effect::Answer { op: head.id, answer: Err(refused) });
            return self.close(id, at.is_none());
        }
        let Some(child) = self.children.get_mut(id) else { return };
        self.out.push(Effect::Started { child: id.clone(), epoch });
        match at {
            Some(at) => {
                child.took(&head, Some(at));
                self.out.push(Effect::Answer { op: head.id, answer: Ok(()) });
                self.advance(id);
                self.settle(id);
            }
            None => {
                child.queue.push_front(head);
                self.advance(id);
            }
        }
    }

    /// Sends the next queued message, if the one before has been answered.
    fn advance(&mut self, id: &SessionId) {
        loop {
            let Some(child) = self.children.get_mut(id) else { return };
            if !child.is_resident() || child.head.is_some() {
                return;
            }
            let Some(op) = child.queue.pop_front() else { return };
            let (epoch, is_parents) = (child.epoch, child.lineage.first() == op.lineage.first());
            let refused = match self.admitted(&op.lineage) {
                Ok(()) if !is_parents => Some(not_its_parent(&op, id)),
                admitted => admitted.err(),
            };
            if let Some(refused) = refused {
                self.out.push(Effect::Answer { op: op.id, answer: Err(refused) });
                continue;
            }
            let Some(child) = self.children.get_mut(id) else { return };
            child.took(&op, None);
            self.out.push(Effect::Send { child: id.clone(), epoch, op: op.id });
            child.head = Some(op);
        }
    }

    fn sent(&mut self, id: &SessionId, epoch: Epoch, op: OpId, at: Result<Seq, ContinuationError>) {
        let Some(child) = self.current(id, epoch) else { return };
        let Some(head) = child.head.take_if(|head| head.id == op) else { return };
        match at {
            Ok(at) => {
                child.took(&head, Some(at));
                self.out.push(Effect::Answer { op, answer: Ok(()) });
            }
            // The child went while the message came: its next epoch takes it, once.
            Err(ContinuationError::ActivationClosing { .. }) => {
                child.accepted.remove(&head.message);
                child.queue.push_front(head);
                self.close(id, true);
            }
            Err(refused) => {
                child.accepted.remove(&head.message);
                self.out.push(Effect::Answer { op, answer: Err(refused) });
            }
        }
        self.advance(id);
        self.settle(id);
        self.tell(id);
    }

    fn interrupted(&mut self, id: &SessionId) {
        if let Some(child) = self.children.get_mut(id) {
            child.interrupted = true;
        }
    }

    /// Whether an agent may interrupt the child, and whether there is something to interrupt.
    pub(super) fn may_interrupt(
        &self,
        caller: &SessionId,
        id: &SessionId,
        by_user: bool,
    ) -> Result<bool, ContinuationError> {
        let refused = |why| {
            let (caller, target) = (caller.clone(), id.clone());
            Err(ContinuationError::Unauthorized { caller, target, why })
        };
        if caller == id {
            return refused("an agent does not interrupt itself");
        }
        let Some(child) = self.children.get(id) else { return Ok(false) };
        match by_user {
            true if child.lineage.first() != Some(caller) => refused("it is not its parent"),
            false if !child.lineage.contains(caller) => refused("it is not above it"),
            _ => Ok(child.is_resident()),
        }
    }

    fn report(&mut self, id: &SessionId, op: Op) {
        let answer = match self.children.get(id) {
            Some(child) if child.is_resident() => {
                let to = child.lineage.first().cloned().unwrap_or_else(|| id.clone());
                if let Some(parent) = self.children.get_mut(&to) {
                    parent.took(&op, None);
                }
                return self.out.push(Effect::Report { op: op.id, to });
            }
            Some(_) => Err(ContinuationError::ActivationClosing { id: id.clone() }),
            None => Err(ContinuationError::Unauthorized {
                caller: id.clone(),
                target: op.lineage.get(1).unwrap_or(id).clone(),
                why: "only a resident continuable child reports",
            }),
        };
        self.out.push(Effect::Answer { op: op.id, answer });
    }

    fn reported(&mut self, to: &SessionId, op: Op, at: Result<Option<Seq>, ContinuationError>) {
        if let Some(parent) = self.children.get_mut(to) {
            parent.delivered(&op.message, at.as_ref().ok().copied().flatten());
        }
        self.out.push(Effect::Answer { op: op.id, answer: at.map(drop) });
        self.settle(to);
    }

    /// Disposes the child if it is settled: in the moment in which that is found, so that nothing is
    /// admitted in between.
    fn settle(&mut self, id: &SessionId) {
        if let Some(child) = self.children.get_mut(id)
            && child.is_settled()
        {
            child.phase = Phase::Closing { keep_inbox: true, stage: Stage::WaitsForOwned };
            self.dispose(id);
        }
    }

    fn current(&mut self, id: &SessionId, epoch: Epoch) -> Option<&mut Child> {
        self.children.get_mut(id).filter(|child| child.epoch == epoch)
    }

    /// All children, parents before their children.
    pub(super) fn activations(&self) -> Vec<Activation> {
        let mut all: Vec<_> = self.children.iter().map(|(id, child)| child.seen(id)).collect();
        all.sort_by_key(|child| child.lineage.len());
        all
    }

    /// Whether nothing is left of any child.
    #[cfg(test)]
    fn counts_nobody(&self) -> bool {
        self.children.is_empty() && self.below.is_empty() && self.drains.is_empty()
    }

    /// One child.
    pub(super) fn activation(&self, id: &SessionId) -> Option<Activation> {
        self.children.get(id).map(|child| child.seen(id))
    }
}

fn not_its_parent(op: &Op, child: &SessionId) -> ContinuationError {
    ContinuationError::Unauthorized {
        caller: op.lineage.first().unwrap_or(child).clone(),
        target: child.clone(),
        why: "it is not its parent",
    }
}
