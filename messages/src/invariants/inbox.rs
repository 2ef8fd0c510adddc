//! Messages on their way through the inbox: invariants 37 to 42.

use std::collections::HashMap;

use super::{Fault, hold};
use crate::{
    event::{InboxSpliced, InboxTarget, SpliceOutcome},
    id::MessageId,
};

/// What became of a message: always exactly one of these (39).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It waits.
    Pending,
    /// It was taken out and not run.
    Discarded,
    /// A turn took it.
    Claimed {
        /// The turn.
        turn: u32,
    },
}

#[derive(Debug, Clone, Default)]
pub(super) struct Mail {
    next_turn: Vec<MessageId>,
    next_step: Vec<MessageId>,
    fates: HashMap<MessageId, Fate>,
    /// The turn that has had its prompt.
    prompted: Option<u32>,
}

impl Mail {
    pub(super) fn fate(&self, id: &MessageId) -> Option<Fate> {
        self.fates.get(id).copied()
    }

    pub(super) fn follow(
        &mut self,
        splice: &InboxSpliced,
        turn: Option<u32>,
        stepped: bool,
    ) -> Result<(), Fault> {
        let InboxSpliced { target, start, removed_count, inserted, outcome } = splice;
        let (start, removed) = (*start as usize, *removed_count as usize);
        let steps_waiting = self.next_step.len();
        let list = match target {
            InboxTarget::NextTurn => &mut self.next_turn,
            InboxTarget::NextStep => &mut self.next_step,
        };
        hold(start + removed <= list.len(), 37, || {
            format!("removes {removed} at {start} of {}", list.len())
        })?;
        let claim = removed > 0 && outcome.is_none();
        let gone: Vec<_> =
            list.splice(start..start + removed, inserted.iter().map(|m| m.id.clone())).collect();
        let fate = match (claim, turn) {
            (false, _) => Fate::Discarded,
            (true, Some(turn)) => Fate::Claimed { turn },
            (true, None) => return Err((38, "a claim outside any turn".to_owned())),
        };
        hold(removed == 0 || claim || *outcome == Some(SpliceOutcome::Canceled), 38, || {
            "a removal that is neither claim nor cancellation".to_owned()
        })?;
        self.fates.extend(gone.into_iter().map(|id| (id, fate)));
        if claim {
            hold(inserted.is_empty() && start == 0, 38, || "not a pure deletion".to_owned())?;
            match target {
                InboxTarget::NextStep => hold(removed == steps_waiting, 41, || {
                    "a claim that leaves next-step input".to_owned()
                })?,
                InboxTarget::NextTurn => {
                    hold(removed == 1, 38, || format!("a claim of {removed} prompts"))?;
                    hold(self.prompted != turn, 38, || "a second prompt in a turn".to_owned())?;
                    hold(steps_waiting == 0, 41, || "the prompt goes first".to_owned())?;
                    hold(!stepped, 42, || "a later step takes a prompt".to_owned())?;
                    self.prompted = turn;
                }
            }
        }
        for message in inserted {
            let again = self.fates.insert(message.id.clone(), Fate::Pending);
            hold(again != Some(Fate::Pending), 37, || format!("\"{}\" pends twice", message.id))?;
        }
        Ok(())
    }
}
