//! What became of each message that was sent: invariant 39.

use std::collections::HashMap;

use crate::{
    event::{EventBody, InboxSpliced, InboxTarget},
    id::MessageId,
    log::Log,
};

/// What became of a message: always exactly one of these.
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

/// What became of the messages of a log.
#[derive(Debug, Clone, Default)]
pub struct Fates {
    turn: u32,
    lists: [Vec<MessageId>; 2],
    fates: HashMap<MessageId, Fate>,
}

impl Fates {
    /// Those of a log whose splices fit.
    pub fn of(log: &Log) -> Self {
        let mut fates = Self::default();
        for event in log.iter() {
            match &event.body {
                EventBody::TurnStart(data) => fates.turn = data.turn,
                EventBody::InboxSpliced(splice) => fates.splice(splice),
                _ => {}
            }
        }
        fates
    }

    fn splice(&mut self, splice: &InboxSpliced) {
        let list = &mut self.lists[usize::from(splice.target == InboxTarget::NextStep)];
        let start = (splice.start as usize).min(list.len());
        let end = (start + splice.removed_count as usize).min(list.len());
        let entered = splice.inserted.iter().map(|message| message.id.clone());
        let gone = list.splice(start..end, entered);
        let claimed = Fate::Claimed { turn: self.turn };
        let fate = if splice.is_claim() { claimed } else { Fate::Discarded };
        self.fates.extend(gone.map(|id| (id, fate)));
        let entered = splice.inserted.iter();
        self.fates.extend(entered.map(|message| (message.id.clone(), Fate::Pending)));
    }

    /// What became of a message; `None` if it never came.
    pub fn get(&self, id: &MessageId) -> Option<Fate> {
        self.fates.get(id).copied()
    }
}
