//! Whether the work that was sent has run.

use crate::event::{EventBody, Seq, TurnEndReason};

/// The end of the last turn that accounts for work.
#[derive(Debug, Clone, PartialEq)]
pub struct AccountedEnd {
    /// Its `turn/end`.
    pub seq: Seq,
    /// The turn.
    pub turn: u32,
    /// Why it ended.
    pub reason: TurnEndReason,
}

/// The fold of turns that account for work. A turn does if it had a step, or if it claimed input
/// and ended in anything but `completed`: balanced turns over nothing are no outcome.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConsumedWork {
    end: Option<AccountedEnd>,
    dropped_unrun: bool,
    open: Option<Open>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Open {
    stepped: bool,
    claimed: bool,
}

impl ConsumedWork {
    /// Before the first event.
    pub fn new() -> Self {
        Self::default()
    }

    /// The end of the last turn that accounts.
    pub fn end(&self) -> Option<&AccountedEnd> {
        self.end.as_ref()
    }

    /// Whether input was cancelled before any turn opened over it, since then.
    pub fn dropped_unrun(&self) -> bool {
        self.dropped_unrun
    }

    /// Folds the event at `seq`.
    pub fn apply(&mut self, seq: Seq, body: &EventBody) {
        match body {
            EventBody::TurnStart(_) => self.open = Some(Open::default()),
            EventBody::StepStart(_) => {
                if let Some(open) = &mut self.open {
                    open.stepped = true;
                }
            }
            EventBody::InboxSpliced(splice) if splice.is_claim() => {
                if let Some(open) = &mut self.open {
                    open.claimed = true;
                }
            }
            // An edit is a cancellation that inserts; nothing is lost with it.
            EventBody::InboxSpliced(splice)
                if splice.outcome.is_some() && splice.inserted.is_empty() =>
            {
                self.dropped_unrun = true;
            }
            EventBody::TurnEnd(data) => {
                let Some(open) = self.open.take() else { return };
                if open.stepped || (open.claimed && data.reason != TurnEndReason::Completed) {
                    self.end =
                        Some(AccountedEnd { seq, turn: data.turn, reason: data.reason.clone() });
                    self.dropped_unrun = false;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    mod scenario {
        use std::sync::Arc;

        use super::super::*;
        use crate::{
            event::{InboxSpliced, InboxTarget, SpliceOutcome},
            message::Message,
            testing::Script,
        };

        fn splice(script: &mut Script, removed_count: u32, inserted: bool, canceled: bool) {
            script.log_only(EventBody::InboxSpliced(InboxSpliced {
                target: InboxTarget::NextTurn,
                start: 0,
                removed_count,
                inserted: inserted.then(|| Arc::new(Message::user("m", "m"))).into_iter().collect(),
                outcome: canceled.then_some(SpliceOutcome::Canceled),
            }));
        }

        fn fold(script: &Script) -> ConsumedWork {
            let mut work = ConsumedWork::new();
            for event in script.log.iter() {
                work.apply(event.seq, &event.body);
            }
            work
        }

        #[test]
        fn core_153_what_accounts_and_what_was_dropped() {
            let mut script = Script::new();
            script.turn(1);
            splice(&mut script, 1, false, false);
            script.end_turn(1, TurnEndReason::Blocked);
            let work = fold(&script);
            assert_eq!(work.end().unwrap().reason, TurnEndReason::Blocked, "a blocked claim");
            assert_eq!((work.end().unwrap().seq, work.end().unwrap().turn), (2, 1));

            script.turn(2);
            splice(&mut script, 1, false, false);
            script.end_turn(2, TurnEndReason::Completed);
            assert_eq!(fold(&script), work, "completed without a step");

            splice(&mut script, 1, true, true);
            assert!(!fold(&script).dropped_unrun(), "an edit is no drop");
            splice(&mut script, 1, false, true);
            assert!(fold(&script).dropped_unrun());

            script.turn(3).step(3, 1).end_step(3, 1).end_turn(3, TurnEndReason::Completed);
            let work = fold(&script);
            assert!(!work.dropped_unrun(), "reset by a turn that accounts");
            assert_eq!(work.end().unwrap().turn, 3);

            script.turn(4).end_turn(4, TurnEndReason::Interrupted);
            assert_eq!(fold(&script).end().unwrap().turn, 3, "nothing claimed, nothing stepped");
        }
    }
}
