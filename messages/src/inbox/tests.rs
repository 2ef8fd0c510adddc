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
        assert!(fault.to_string().starts_with("invalid persisted inbox splice at session seq 17:"));
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
            assert_eq!((splice.start, splice.removed_count), expected, "splice({start}, {delete})");
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
