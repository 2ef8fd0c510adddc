//! The inbox: two ordered lists of pending messages, and nothing but the fold of their splices.
//!
//! Commands are pure: they read the fold and return the normalised events to append. Live
//! notifications follow from the events, and the fold changes only by [`Inbox::apply`].

use std::{collections::HashSet, sync::Arc};

use crate::{
    event::{InboxSpliced, InboxTarget, Seq, SpliceOutcome},
    id::MessageId,
    message::SharedMessage,
};

/// Why a splice does not fit an inbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpliceFault {
    /// Its coordinates lie outside the list.
    #[error("invalid inbox splice")]
    Range,
    /// It would put a message back that a turn has taken, so that it ran twice.
    #[error("message \"{id}\" was taken by a turn already")]
    AlreadyTaken {
        /// The message.
        id: MessageId,
    },
    /// It would make a message id pend twice, in one list or across both.
    #[error("message \"{id}\" is already pending")]
    AlreadyPending {
        /// The message.
        id: MessageId,
    },
}

impl SpliceFault {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Range => "INVALID_INBOX_SPLICE",
            Self::AlreadyTaken { .. } => "ALREADY_TAKEN",
            Self::AlreadyPending { .. } => "ALREADY_PENDING",
        }
    }
}

/// A splice in a log that does not fit the inbox which the log built so far.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid persisted inbox splice at session seq {seq}: {cause}")]
pub struct InboxError {
    /// The event.
    pub seq: Seq,
    /// What is wrong with it.
    #[source]
    pub cause: SpliceFault,
}

impl InboxError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        self.cause.code()
    }
}

/// The pending messages of a session. Clones share the lists.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inbox {
    next_turn: Arc<Vec<SharedMessage>>,
    next_step: Arc<Vec<SharedMessage>>,
    ids: Arc<HashSet<MessageId>>,
}

impl Inbox {
    /// An empty inbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// The messages of a list, in order.
    pub fn list(&self, target: InboxTarget) -> &[SharedMessage] {
        match target {
            InboxTarget::NextTurn => &self.next_turn,
            InboxTarget::NextStep => &self.next_step,
        }
    }

    /// Whether nothing pends.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// How many messages pend in both lists.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether a message pends, in either list.
    pub fn contains(&self, id: &MessageId) -> bool {
        self.ids.contains(id)
    }

    /// Where a message pends.
    pub fn position(&self, id: &MessageId) -> Option<(InboxTarget, usize)> {
        if !self.contains(id) {
            return None;
        }
        [InboxTarget::NextTurn, InboxTarget::NextStep].into_iter().find_map(|target| {
            let position = self.list(target).iter().position(|message| message.id == *id)?;
            Some((target, position))
        })
    }

    /// The messages that a splice takes out, if it fits.
    pub fn removed(&self, splice: &InboxSpliced) -> Result<&[SharedMessage], SpliceFault> {
        let start = splice.start as usize;
        let end = start.checked_add(splice.removed_count as usize).ok_or(SpliceFault::Range)?;
        self.list(splice.target).get(start..end).ok_or(SpliceFault::Range)
    }

    /// Whether a splice fits; what [`Inbox::apply`] would say.
    pub fn check(&self, splice: &InboxSpliced) -> Result<(), SpliceFault> {
        let removed = self.removed(splice)?;
        let mut entered = HashSet::new();
        for message in &splice.inserted {
            let stays = self.ids.contains(&message.id)
                && !removed.iter().any(|removed| removed.id == message.id);
            if stays || !entered.insert(&message.id) {
                return Err(SpliceFault::AlreadyPending { id: message.id.clone() });
            }
        }
        Ok(())
    }

    /// Folds the splice that a log holds at `seq`. On an error the inbox is as it was.
    pub fn apply(&mut self, seq: Seq, splice: &InboxSpliced) -> Result<(), InboxError> {
        self.check(splice).map_err(|cause| InboxError { seq, cause })?;
        let start = splice.start as usize;
        let end = start + splice.removed_count as usize;
        let list = Arc::make_mut(match splice.target {
            InboxTarget::NextTurn => &mut self.next_turn,
            InboxTarget::NextStep => &mut self.next_step,
        });
        let ids = Arc::make_mut(&mut self.ids);
        for removed in &list[start..end] {
            ids.remove(&removed.id);
        }
        ids.extend(splice.inserted.iter().map(|message| message.id.clone()));
        list.splice(start..end, splice.inserted.iter().cloned());
        Ok(())
    }

    /// Puts a message at the end of a list.
    pub fn insert_at_tail(
        &self,
        target: InboxTarget,
        message: SharedMessage,
    ) -> Result<InboxSpliced, SpliceFault> {
        self.insert(target, self.list(target).len(), message)
    }

    /// Puts a message at the front of a list.
    pub fn prepend(
        &self,
        target: InboxTarget,
        message: SharedMessage,
    ) -> Result<InboxSpliced, SpliceFault> {
        self.insert(target, 0, message)
    }

    fn insert(
        &self,
        target: InboxTarget,
        at: usize,
        message: SharedMessage,
    ) -> Result<InboxSpliced, SpliceFault> {
        self.checked(splice(target, at, 0, vec![message]))
    }

    /// Puts a message in the place of a pending one; `None` if that one does not pend.
    pub fn replace(
        &self,
        id: &MessageId,
        message: SharedMessage,
    ) -> Result<Option<InboxSpliced>, SpliceFault> {
        match self.position(id) {
            Some((target, at)) => self.checked(splice(target, at, 1, vec![message])).map(Some),
            None => Ok(None),
        }
    }

    /// Takes a pending message out; `None` if it does not pend.
    pub fn remove(&self, id: &MessageId) -> Option<InboxSpliced> {
        let (target, at) = self.position(id)?;
        Some(splice(target, at, 1, Vec::new()))
    }

    /// Takes everything out: next-step first, then next-turn; no event for an empty list.
    pub fn clear(&self) -> Vec<InboxSpliced> {
        [InboxTarget::NextStep, InboxTarget::NextTurn]
            .into_iter()
            .map(|target| (target, self.list(target).len()))
            .filter(|(_, len)| *len > 0)
            .map(|(target, len)| splice(target, 0, len, Vec::new()))
            .collect()
    }

    /// Splices a list as JavaScript's `Array.splice` would: coordinates are truncated, NaN is 0, a
    /// negative start counts from the end, and both are clamped. `None` if nothing changes.
    pub fn splice(
        &self,
        target: InboxTarget,
        start: f64,
        delete: f64,
        inserted: Vec<SharedMessage>,
    ) -> Result<Option<InboxSpliced>, SpliceFault> {
        let len = self.list(target).len();
        // `as` truncates, saturates and turns NaN into 0, which is the rule.
        let start = start as i64;
        let start = match usize::try_from(start) {
            Ok(start) => start.min(len),
            Err(_) => {
                len.saturating_sub(usize::try_from(start.unsigned_abs()).unwrap_or(usize::MAX))
            }
        };
        let delete = usize::try_from(delete as i64).unwrap_or(0).min(len - start);
        if delete == 0 && inserted.is_empty() {
            return Ok(None);
        }
        self.checked(splice(target, start, delete, inserted)).map(Some)
    }

    /// Takes what the loop is about to run: all of next-step and, at a turn boundary (`NextTurn`),
    /// the first prompt. Returns the splices, and the messages in the order in which they run.
    pub fn claim(&self, target: InboxTarget) -> (Vec<InboxSpliced>, Vec<SharedMessage>) {
        let mut splices = Vec::new();
        let mut claimed = self.next_step.to_vec();
        if !claimed.is_empty() {
            splices.push(pure(InboxTarget::NextStep, claimed.len()));
        }
        if let (InboxTarget::NextTurn, Some(prompt)) = (target, self.next_turn.first()) {
            splices.push(pure(InboxTarget::NextTurn, 1));
            claimed.push(prompt.clone());
        }
        (splices, claimed)
    }

    fn checked(&self, splice: InboxSpliced) -> Result<InboxSpliced, SpliceFault> {
        self.check(&splice)?;
        Ok(splice)
    }
}

impl InboxSpliced {
    /// Whether the splice hands messages to the loop: a deletion that is no cancellation.
    pub fn is_claim(&self) -> bool {
        self.removed_count > 0 && self.outcome.is_none()
    }
}

/// A list longer than `u32` has more messages than memory.
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn splice(
    target: InboxTarget,
    start: usize,
    removed: usize,
    inserted: Vec<SharedMessage>,
) -> InboxSpliced {
    InboxSpliced {
        target,
        start: count(start),
        removed_count: count(removed),
        inserted,
        outcome: (removed > 0).then_some(SpliceOutcome::Canceled),
    }
}

/// A claim's deletion at the front of a list.
fn pure(target: InboxTarget, removed: usize) -> InboxSpliced {
    InboxSpliced { outcome: None, ..splice(target, 0, removed, Vec::new()) }
}

#[cfg(test)]
mod tests;
