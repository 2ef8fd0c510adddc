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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::Message;
    use InboxTarget::{NextStep, NextTurn};

    fn m(id: &str) -> SharedMessage {
        Arc::new(Message::user(id, id))
    }

    fn ids(messages: &[SharedMessage]) -> Vec<&str> {
        messages.iter().map(|message| message.id.as_str()).collect()
    }

    fn inbox(next_turn: &[&str], next_step: &[&str]) -> Inbox {
        let mut inbox = Inbox::new();
        for (target, list) in [(NextTurn, next_turn), (NextStep, next_step)] {
            for id in list {
                let splice = inbox.insert_at_tail(target, m(id)).unwrap();
                inbox.apply(0, &splice).unwrap();
            }
        }
        inbox
    }

    fn json(splice: &InboxSpliced) -> String {
        serde_json::to_string(splice).unwrap()
    }

    #[test]
    fn tail_and_front() {
        let mut inbox = inbox(&["a", "b"], &[]);
        let front = inbox.prepend(NextTurn, m("c")).unwrap();
        assert_eq!((front.start, front.removed_count, front.outcome), (0, 0, None));
        inbox.apply(2, &front).unwrap();
        assert_eq!(ids(inbox.list(NextTurn)), ["c", "a", "b"]);
        assert!(inbox.contains(&"a".into()) && !inbox.contains(&"z".into()));
        assert_eq!(inbox.len(), 3);
    }

    #[test]
    fn removal_is_canceled_and_absence_is_no_event() {
        let mut inbox = inbox(&["a"], &["s"]);
        let gone = inbox.remove(&"s".into()).unwrap();
        assert_eq!(
            json(&gone),
            r#"{"target":"next-step","start":0,"removedCount":1,"inserted":[],"outcome":"canceled"}"#
        );
        inbox.apply(0, &gone).unwrap();
        assert_eq!(inbox.remove(&"s".into()), None);
        assert_eq!(inbox.replace(&"s".into(), m("x")), Ok(None));
    }

    #[test]
    fn claims_have_no_outcome() {
        let (splices, _) = inbox(&["a"], &["s", "t"]).claim(NextTurn);
        assert_eq!(
            splices.iter().map(json).collect::<Vec<_>>(),
            [
                r#"{"target":"next-step","start":0,"removedCount":2,"inserted":[]}"#,
                r#"{"target":"next-turn","start":0,"removedCount":1,"inserted":[]}"#,
            ]
        );
        assert!(splices.iter().all(InboxSpliced::is_claim));
        assert_eq!(inbox(&["a"], &[]).claim(NextStep), (vec![], vec![]));
        assert_eq!(Inbox::new().claim(NextTurn), (vec![], vec![]));
    }

    #[test]
    fn a_clone_does_not_see_later_splices() {
        let mut inbox = inbox(&["a"], &[]);
        let before = inbox.clone();
        let splices = inbox.clear();
        inbox.apply(1, &splices[0]).unwrap();
        assert!(inbox.is_empty());
        assert_eq!(ids(before.list(NextTurn)), ["a"]);
    }

    mod scenario {
        use super::*;

        #[test]
        fn newest_39_same_id_in_both_lists_names_the_seq() {
            let mut inbox = inbox(&["a"], &[]);
            let before = inbox.clone();
            let splice = Inbox::new().insert_at_tail(NextStep, m("a")).unwrap();
            let fault = inbox.apply(17, &splice).unwrap_err();
            assert!(
                fault.to_string().starts_with("invalid persisted inbox splice at session seq 17:")
            );
            assert_eq!(fault.cause.to_string(), "message \"a\" is already pending");
            assert_eq!(fault.code(), "ALREADY_PENDING");
            assert_eq!(inbox, before);
        }

        #[test]
        fn newest_40_clear_cancels_next_step_first_and_is_idempotent() {
            let mut inbox = inbox(&["a", "b"], &["s"]);
            let splices = inbox.clear();
            assert_eq!(
                splices.iter().map(|s| (s.target, s.removed_count)).collect::<Vec<_>>(),
                [(NextStep, 1), (NextTurn, 2)]
            );
            assert!(splices.iter().all(|s| s.outcome == Some(SpliceOutcome::Canceled)));
            for splice in &splices {
                inbox.apply(9, splice).unwrap();
            }
            assert!(inbox.is_empty());
            assert_eq!(inbox.clear(), []);
        }

        #[test]
        fn core_014_claims_run_next_step_in_order_then_the_prompt() {
            let mut inbox = inbox(&["p", "q"], &["i1", "i2", "s"]);
            let (splices, claimed) = inbox.claim(NextTurn);
            assert_eq!(ids(&claimed), ["i1", "i2", "s", "p"]);
            assert_eq!(splices.len(), 2);
            for splice in &splices {
                inbox.apply(9, splice).unwrap();
            }
            assert_eq!(ids(inbox.list(NextTurn)), ["q"]);
            assert!(inbox.list(NextStep).is_empty());
        }

        #[test]
        fn core_149_splice_coordinates_are_clamped() {
            let inbox = inbox(&["a", "b", "c"], &[]);
            for (start, delete, expected) in [
                (-1.0, 1.0, (2, 1)),
                (-99.0, 1.0, (0, 1)),
                (99.0, 99.0, (3, 0)),
                (f64::NAN, 1.0, (0, 1)),
                (1.9, 1.9, (1, 1)),
                (-1.9, 1.0, (2, 1)),
                (0.0, -3.0, (0, 0)),
                (0.0, 99.0, (0, 3)),
                (0.0, f64::NAN, (0, 0)),
                (f64::INFINITY, 1.0, (3, 0)),
                (f64::NEG_INFINITY, f64::INFINITY, (0, 3)),
            ] {
                let splice = inbox.splice(NextTurn, start, delete, vec![m("x")]).unwrap().unwrap();
                assert_eq!(
                    (splice.start, splice.removed_count),
                    expected,
                    "splice({start}, {delete})"
                );
                assert_eq!(splice.outcome.is_some(), splice.removed_count > 0);
            }
            assert_eq!(inbox.splice(NextTurn, 99.0, 5.0, vec![]), Ok(None));
            assert_eq!(inbox.splice(NextStep, 0.0, 5.0, vec![]), Ok(None));
        }

        #[test]
        fn core_150_a_duplicate_id_is_refused_on_insert_and_on_edit() {
            let inbox = inbox(&["a", "b"], &["s"]);
            let pending = |id: &str| SpliceFault::AlreadyPending { id: id.into() };
            assert_eq!(inbox.insert_at_tail(NextStep, m("a")), Err(pending("a")));
            assert_eq!(inbox.prepend(NextTurn, m("s")), Err(pending("s")));
            assert_eq!(inbox.replace(&"a".into(), m("s")), Err(pending("s")));
            assert_eq!(inbox.splice(NextTurn, 0.0, 0.0, vec![m("x"), m("x")]), Err(pending("x")));
        }

        #[test]
        fn core_151_an_edit_keeps_its_position() {
            let mut inbox = inbox(&["a", "b", "c"], &[]);
            let splice = inbox.replace(&"b".into(), m("b2")).unwrap().unwrap();
            assert_eq!(ids(inbox.removed(&splice).unwrap()), ["b"]);
            assert_eq!((splice.start, splice.removed_count), (1, 1));
            assert_eq!(splice.outcome, Some(SpliceOutcome::Canceled));
            inbox.apply(3, &splice).unwrap();
            assert_eq!(ids(inbox.list(NextTurn)), ["a", "b2", "c"]);
            // The same id may stay, with other content.
            let same = inbox.replace(&"b2".into(), m("b2")).unwrap().unwrap();
            inbox.apply(4, &same).unwrap();
            assert_eq!(inbox.len(), 3);
        }

        #[test]
        fn core_152_a_splice_beyond_the_list_names_the_seq() {
            for (start, removed_count) in [(2, 0), (0, 2), (1, 1), (u32::MAX, u32::MAX)] {
                let mut inbox = inbox(&["a"], &[]);
                let splice = InboxSpliced {
                    target: NextTurn,
                    start,
                    removed_count,
                    inserted: vec![],
                    outcome: None,
                };
                let fault = inbox.apply(5, &splice).unwrap_err();
                assert_eq!(fault, InboxError { seq: 5, cause: SpliceFault::Range });
                assert_eq!(fault.cause.to_string(), "invalid inbox splice");
                assert_eq!(ids(inbox.list(NextTurn)), ["a"]);
            }
        }
    }

    proptest! {
        /// Core invariants 37 and 39: commands always fold, ids stay unique, nobody is lost.
        #[test]
        fn commands_always_fold(ops in prop::collection::vec((0u8..7, -3i8..6, 0u8..8), 0..60)) {
            let mut inbox = Inbox::new();
            let mut entered = 0usize;
            let mut left = 0usize;
            for (step, (op, at, id)) in ops.into_iter().enumerate() {
                let target = if at % 2 == 0 { NextTurn } else { NextStep };
                let message = m(&id.to_string());
                let splices = match op {
                    0 => inbox.insert_at_tail(target, message).into_iter().collect(),
                    1 => inbox.prepend(target, message).into_iter().collect(),
                    2 => inbox.remove(&message.id).into_iter().collect(),
                    3 => inbox.clear(),
                    4 => inbox.claim(target).0,
                    5 => inbox
                        .replace(&at.unsigned_abs().to_string().into(), message)
                        .into_iter().flatten().collect(),
                    _ => inbox
                        .splice(target, at.into(), id.into(), vec![message])
                        .into_iter().flatten().collect::<Vec<_>>(),
                };
                for splice in splices {
                    entered += splice.inserted.len();
                    left += splice.removed_count as usize;
                    inbox.apply(step as u64, &splice).unwrap();
                }
                let all: HashSet<_> = [NextTurn, NextStep]
                    .iter()
                    .flat_map(|target| inbox.list(*target))
                    .map(|message| message.id.clone())
                    .collect();
                prop_assert_eq!(all.len(), inbox.list(NextTurn).len() + inbox.list(NextStep).len());
                prop_assert_eq!(&all, &*inbox.ids);
                prop_assert_eq!(entered, left + all.len());
            }
        }
    }
}
