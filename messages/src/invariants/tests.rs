use super::*;
use crate::{
    event::{InboxSpliced, InboxTarget, SpliceOutcome, TurnEndReason},
    message::Message,
    testing::{Script, user},
};

fn found(write: impl FnOnce(&mut Script)) -> Option<u32> {
    let mut script = Script::new();
    write(&mut script);
    check(&script.log).err().map(|violation| violation.number)
}

fn splice(target: InboxTarget, start: u32, removed: u32, ids: &[&str]) -> InboxSpliced {
    InboxSpliced {
        target,
        start,
        removed_count: removed,
        inserted: ids.iter().map(|id| Message::user(*id, *id).into()).collect(),
        outcome: None,
    }
}

#[test]
fn each_violation_has_its_number() {
    use InboxTarget::{NextStep, NextTurn};
    let put = |script: &mut Script, splice| {
        script.log_only(EventBody::InboxSpliced(splice));
    };
    type Case<'a> = (Option<u32>, Box<dyn FnOnce(&mut Script) + 'a>);
    let cases: Vec<Case<'_>> = vec![
        (
            None,
            Box::new(|s| {
                put(s, splice(NextTurn, 0, 0, &["a"]));
                s.turn(1);
                put(s, splice(NextTurn, 0, 1, &[]));
                s.step(1, 1);
                s.system("P");
                s.push(user("a", "a"));
                s.header(&[]);
                s.context();
                s.attempt();
                s.assistant("x", &["c", "d"]);
                s.call("c");
                s.call("d");
                s.result("c", "");
                s.result("d", "");
                s.end_step(1, 1).end_turn(1, TurnEndReason::Completed);
            }),
        ),
        (
            Some(2),
            Box::new(|s| {
                s.turn(2);
            }),
        ),
        (
            Some(2),
            Box::new(|s| {
                s.turn(1).turn(2);
            }),
        ),
        (
            Some(3),
            Box::new(|s| {
                s.turn(1).step(1, 1).end_turn(1, TurnEndReason::Completed);
            }),
        ),
        (
            Some(4),
            Box::new(|s| {
                s.turn(1).step(1, 2);
            }),
        ),
        (
            Some(5),
            Box::new(|s| {
                s.turn(1);
                s.system("P");
            }),
        ),
        (
            Some(6),
            Box::new(|s| {
                s.turn(1).step(1, 1);
                s.assistant("", &["c"]);
                s.result("c", "");
            }),
        ),
        (
            Some(8),
            Box::new(|s| {
                s.header(&[]);
            }),
        ),
        (
            Some(23),
            Box::new(|s| {
                s.turn(1);
                s.header(&[]);
                s.header(&["x"]);
            }),
        ),
        (
            Some(25),
            Box::new(|s| {
                s.turn(1);
                s.context();
                s.context();
            }),
        ),
        (
            Some(30),
            Box::new(|s| {
                s.turn(1).step(1, 1);
                s.assistant("x", &[]);
                s.attempt();
            }),
        ),
        (
            Some(33),
            Box::new(|s| {
                s.turn(1).step(1, 1);
                s.assistant("", &["c", "d"]);
                s.call("d");
                s.result("d", "");
            }),
        ),
        (
            Some(35),
            Box::new(|s| {
                s.turn(1).step(1, 1);
                s.assistant("", &["c"]);
                s.end_step(1, 1);
            }),
        ),
        (
            Some(36),
            Box::new(|s| {
                s.turn(1).step(1, 1);
                s.call("c");
            }),
        ),
        (Some(37), Box::new(|s| put(s, splice(NextTurn, 1, 0, &["a"])))),
        (
            Some(37),
            Box::new(|s| {
                put(s, splice(NextTurn, 0, 0, &["a"]));
                put(s, splice(NextStep, 0, 0, &["a"]));
            }),
        ),
        (
            Some(38),
            Box::new(|s| {
                put(s, splice(NextTurn, 0, 0, &["a"]));
                put(s, splice(NextTurn, 0, 1, &[]));
            }),
        ),
        (
            Some(38),
            Box::new(|s| {
                put(s, splice(NextTurn, 0, 0, &["a", "b"]));
                s.turn(1);
                put(s, splice(NextTurn, 0, 2, &[]));
            }),
        ),
        (
            Some(41),
            Box::new(|s| {
                put(s, splice(NextTurn, 0, 0, &["a"]));
                put(s, splice(NextStep, 0, 0, &["b"]));
                s.turn(1);
                put(s, splice(NextTurn, 0, 1, &[]));
            }),
        ),
        (
            Some(42),
            Box::new(|s| {
                put(s, splice(NextTurn, 0, 0, &["a"]));
                s.turn(1).step(1, 1).end_step(1, 1);
                put(s, splice(NextTurn, 0, 1, &[]));
            }),
        ),
    ];
    for (row, (expected, write)) in cases.into_iter().enumerate() {
        assert_eq!(found(write), expected, "row {row}");
    }
}

#[test]
fn a_message_has_one_fate() {
    let mut script = Script::new();
    let put = |script: &mut Script, start, removed, ids: &[&str], outcome| {
        let splice = splice(InboxTarget::NextTurn, start, removed, ids);
        script.log_only(EventBody::InboxSpliced(InboxSpliced { outcome, ..splice }));
    };
    put(&mut script, 0, 0, &["a", "b", "c"], None);
    put(&mut script, 1, 1, &[], Some(SpliceOutcome::Canceled));
    script.turn(1);
    put(&mut script, 0, 1, &[], None);
    let fates = Fates::of(&script.log);
    let fates = ["a", "b", "c", "z"].map(|id| fates.get(&id.into()));
    let [claimed, discarded] = [Fate::Claimed { turn: 1 }, Fate::Discarded];
    assert_eq!(fates, [Some(claimed), Some(discarded), Some(Fate::Pending), None]);
}
