//! How children end: all are cut off top down in one transition, and released bottom up.

use std::collections::BTreeSet;

use playhouse_messages::{
    event::Seq,
    id::{MessageId, SessionId},
};

use super::{
    super::ContinuationError,
    DrainScope, Effect, Epoch, Machine, OpId,
    child::{Child, Phase, Stage},
};

/// Somebody who waits for the end of some children.
#[derive(Debug)]
pub(super) struct Drain {
    id: OpId,
    waits_for: BTreeSet<(SessionId, Epoch)>,
    failures: Vec<String>,
}

impl Machine {
    /// Cuts a child off, and all that it owns; what owns nothing is disposed.
    pub(super) fn close(&mut self, id: &SessionId, keep_inbox: bool) {
        let mut order = vec![id.clone()];
        let mut next = 0;
        while let Some(id) = order.get(next).cloned() {
            next += 1;
            let Some(child) = self.children.get_mut(&id) else { continue };
            let epoch = child.epoch;
            match &mut child.phase {
                Phase::Making { given_up } => {
                    if given_up.is_none() {
                        let below = child.lineage.first().unwrap_or(&id).clone();
                        *given_up = Some(ContinuationError::Draining { below });
                        self.out.push(Effect::GiveUp { epoch });
                    }
                    continue;
                }
                Phase::Resident => {
                    child.phase = Phase::Closing { keep_inbox, stage: Stage::WaitsForOwned };
                    self.out.push(Effect::Cancel { child: id, epoch, keep_inbox });
                }
                Phase::Closing { .. } | Phase::Noticing(_) => {}
            }
            order.extend(child.owned.iter().cloned());
        }
        for id in order.iter().rev() {
            self.dispose(id);
        }
    }

    pub(super) fn dispose(&mut self, id: &SessionId) {
        let Some(child) = self.children.get_mut(id) else { return };
        if let Phase::Closing { keep_inbox, stage } = &mut child.phase
            && *stage == Stage::WaitsForOwned
            && child.owned.is_empty()
        {
            *stage = Stage::Disposing;
            let (child, epoch, keep_inbox) = (id.clone(), child.epoch, *keep_inbox);
            self.out.push(Effect::Dispose { child, epoch, keep_inbox });
        }
    }

    pub(super) fn disposed(
        &mut self,
        id: &SessionId,
        epoch: Epoch,
        notice: MessageId,
        failure: Option<String>,
    ) {
        let Some(child) = self.current(id, epoch) else { return };
        let Phase::Closing { stage, .. } = &mut child.phase else { return };
        *stage = Stage::Disposed(notice);
        if let Some(failure) = failure {
            let waiting = (id.clone(), epoch);
            for drain in self.drains.iter_mut().filter(|drain| drain.waits_for.contains(&waiting)) {
                drain.failures.push(failure.clone());
            }
        }
        self.tell(id);
    }

    /// Tells the parent of a disposed child, before it stops owning it: otherwise it could settle with
    /// the notice on its way.
    pub(super) fn tell(&mut self, id: &SessionId) {
        let Some(child) = self.children.get_mut(id) else { return };
        let Phase::Closing { stage: Stage::Disposed(message), .. } = &child.phase else { return };
        if child.head.is_some() {
            return;
        }
        let message = message.clone();
        child.phase = Phase::Noticing(message.clone());
        if !child.announced {
            return self.release(id);
        }
        let (epoch, lineage, interrupted) = (child.epoch, child.lineage.clone(), child.interrupted);
        let to = lineage.first().unwrap_or(id).clone();
        if let Some(parent) = self.children.get_mut(&to) {
            parent.accepted.insert(message.clone(), None);
        }
        // What an end tells must not wake those that end with it.
        let wake = self.admitted(&lineage).is_ok();
        let child = id.clone();
        self.out.push(Effect::Notice { child, epoch, to, message, wake, interrupted });
    }

    pub(super) fn noticed(&mut self, id: &SessionId, epoch: Epoch, at: Option<Seq>) {
        let Some(child) = self.current(id, epoch) else { return };
        let Phase::Noticing(message) = &child.phase else { return };
        let (message, parent) = (message.clone(), child.lineage.first().cloned());
        if let Some(parent) = parent.and_then(|parent| self.children.get_mut(&parent)) {
            parent.delivered(&message, at);
        }
        self.release(id);
    }

    /// The end of an epoch. What is queued begins another.
    pub(super) fn release(&mut self, id: &SessionId) {
        let Some(mut child) = self.children.remove(id) else { return };
        if !matches!(child.phase, Phase::Making { .. }) {
            self.out.push(Effect::Ended { child: id.clone(), epoch: child.epoch });
        }
        for above in child.lineage.iter() {
            if let Some(count) = self.below.get_mut(above) {
                *count -= 1;
                if *count == 0 {
                    self.below.remove(above);
                }
            }
        }
        let parent = child.lineage.first().cloned();
        if let Some(parent) = parent.as_ref().and_then(|parent| self.children.get_mut(parent)) {
            parent.owned.remove(id);
        }
        while let Some(op) = child.queue.pop_front() {
            match self.admitted(&op.lineage) {
                Ok(()) => {
                    self.make(id.clone(), op, std::mem::take(&mut child.queue));
                    break;
                }
                Err(refused) => self.out.push(Effect::Answer { op: op.id, answer: Err(refused) }),
            }
        }
        if let Some(parent) = parent {
            self.dispose(&parent);
            self.settle(&parent);
        }
        let over = (id.clone(), child.epoch);
        for drain in &mut self.drains {
            drain.waits_for.remove(&over);
        }
        self.drained();
    }

    fn drained(&mut self) {
        let (over, under_way) = std::mem::take(&mut self.drains)
            .into_iter()
            .partition(|drain| drain.waits_for.is_empty());
        self.drains = under_way;
        for Drain { id, failures, .. } in over {
            self.out.push(Effect::Drained { drain: id, failures });
        }
    }

    /// Whether these, as far as they are here, are direct children of this agent.
    pub(in super::super) fn direct_children(
        &self,
        parent: &SessionId,
        children: &[SessionId],
    ) -> Result<(), ContinuationError> {
        let foreign = children.iter().find(|id| {
            self.children.get(*id).is_some_and(|child| child.lineage.first() != Some(parent))
        });
        match foreign {
            None => Ok(()),
            Some(target) => Err(ContinuationError::Unauthorized {
                caller: parent.clone(),
                target: target.clone(),
                why: "it is not its parent",
            }),
        }
    }

    pub(super) fn drain(&mut self, id: OpId, scope: DrainScope, keep_inbox: bool) {
        let mut selected: Vec<SessionId> = match &scope {
            DrainScope::All => {
                self.closed = true;
                self.children.keys().cloned().collect()
            }
            DrainScope::Below(above) => {
                self.closed_below.extend(above.iter().cloned());
                let is_below =
                    |child: &Child| child.lineage.iter().any(|ancestor| above.contains(ancestor));
                match above.iter().any(|above| self.below.contains_key(above)) {
                    true => {
                        let all = self.children.iter();
                        all.filter(|(_, child)| is_below(child)).map(|(id, _)| id.clone()).collect()
                    }
                    false => Vec::new(),
                }
            }
            DrainScope::Children(children) => children.clone(),
        };
        selected.retain(|id| self.children.contains_key(id));
        selected.sort_by_key(|id| self.children.get(id).map(|child| child.lineage.len()));
        let epochs =
            selected.iter().filter_map(|id| Some((id.clone(), self.children.get(id)?.epoch)));
        self.drains.push(Drain { id, waits_for: epochs.collect(), failures: Vec::new() });
        for id in &selected {
            if !matches!(scope, DrainScope::Children(_)) {
                self.refuse_queued(id);
            }
            self.close(id, keep_inbox);
        }
        self.drained();
    }

    /// Answers what waits behind a child that will not be back.
    fn refuse_queued(&mut self, id: &SessionId) {
        let Some(child) = self.children.get_mut(id) else { return };
        let queue = std::mem::take(&mut child.queue);
        for op in queue {
            match self.admitted(&op.lineage) {
                Ok(()) => {
                    if let Some(child) = self.children.get_mut(id) {
                        child.queue.push_back(op);
                    }
                }
                Err(refused) => self.out.push(Effect::Answer { op: op.id, answer: Err(refused) }),
            }
        }
    }
}
