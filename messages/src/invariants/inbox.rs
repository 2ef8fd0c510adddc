//! Messages on their way through the inbox: invariants 37, 38, 41 and 42.

use std::ops::Range;

use super::{Fault, hold, steps::Steps};
use crate::{
    chunked::Chunked,
    event::{InboxSpliced, InboxTarget, SpliceOutcome},
    id::MessageId,
    shared_set::SharedSet,
};

#[derive(Debug, Clone, Default)]
pub(super) struct Mail {
    next_turn: Queue,
    next_step: Queue,
    /// All that ever entered: a message that is new needs no search.
    ever: SharedSet<MessageId>,
    /// The turn that has had its prompt.
    prompted: Option<u32>,
}

impl Mail {
    fn list(&self, target: InboxTarget) -> &Queue {
        match target {
            InboxTarget::NextTurn => &self.next_turn,
            InboxTarget::NextStep => &self.next_step,
        }
    }

    pub(super) fn judge(&self, splice: &InboxSpliced, steps: &Steps) -> Result<(), Fault> {
        let InboxSpliced { target, inserted, outcome, .. } = splice;
        let (list, gone) = (self.list(*target), removed(splice));
        hold(gone.end <= list.len(), 37, || {
            format!("removes {gone:?} of {} messages", list.len())
        })?;
        for (at, message) in inserted.iter().enumerate() {
            let id = &message.id;
            let twice = inserted[..at].iter().any(|other| other.id == *id);
            let stays = || {
                let leaves = list.range(gone.clone()).any(|other| other == id);
                !leaves && (self.next_turn.contains(id) || self.next_step.contains(id))
            };
            let pends = twice || self.ever.contains(id) && stays();
            hold(!pends, 37, || format!("\"{id}\" pends twice"))?;
        }
        if !splice.is_claim() {
            return hold(gone.is_empty() || *outcome == Some(SpliceOutcome::Canceled), 38, || {
                "a removal that is neither claim nor cancellation".to_owned()
            });
        }
        hold(steps.turn().is_some(), 38, || "a claim outside any turn".to_owned())?;
        hold(inserted.is_empty() && gone.start == 0, 38, || "not a pure deletion".to_owned())?;
        let steering = self.next_step.len();
        match target {
            InboxTarget::NextStep => hold(gone.len() == steering, 41, || {
                "a claim that leaves next-step input".to_owned()
            }),
            InboxTarget::NextTurn => {
                hold(gone.len() == 1, 38, || format!("a claim of {} prompts", gone.len()))?;
                hold(self.prompted != steps.turn(), 38, || "a second prompt in a turn".to_owned())?;
                hold(steering == 0, 41, || "the prompt goes before next-step input".to_owned())?;
                hold(!steps.stepped(), 42, || "a later step takes a prompt".to_owned())
            }
        }
    }

    pub(super) fn take(&mut self, splice: &InboxSpliced, steps: &Steps) {
        let (target, gone) = (splice.target, removed(splice));
        if target == InboxTarget::NextTurn && splice.is_claim() {
            self.prompted = steps.turn();
        }
        for message in &splice.inserted {
            self.ever.insert(message.id.clone());
        }
        let entered = splice.inserted.iter().map(|message| message.id.clone());
        match target {
            InboxTarget::NextTurn => self.next_turn.splice(gone, entered),
            InboxTarget::NextStep => self.next_step.splice(gone, entered),
        }
    }
}

fn removed(splice: &InboxSpliced) -> Range<usize> {
    let start = splice.start as usize;
    start..start + splice.removed_count as usize
}

/// A list whose clones are cheap, and whose head goes without a copy of the rest.
#[derive(Debug, Clone, Default)]
struct Queue {
    items: Chunked<MessageId>,
    /// Items at the head that have left.
    left: usize,
}

impl Queue {
    fn len(&self) -> usize {
        self.items.len() - self.left
    }

    fn range(&self, range: Range<usize>) -> impl Iterator<Item = &MessageId> {
        self.items.range(self.left + range.start..self.left + range.end)
    }

    fn contains(&self, id: &MessageId) -> bool {
        self.range(0..self.len()).any(|item| item == id)
    }

    fn splice(&mut self, gone: Range<usize>, entered: impl ExactSizeIterator<Item = MessageId>) {
        if gone.is_empty() && gone.start == self.len() {
            return entered.for_each(|id| self.items.push(id));
        }
        if gone.start == 0 && entered.len() == 0 {
            self.left = (self.left + gone.end).min(self.items.len());
            if self.left * 2 >= self.items.len() {
                self.items.splice(0..self.left, []);
                self.left = 0;
            }
            return;
        }
        self.items.splice(self.left + gone.start..self.left + gone.end, entered);
    }
}
