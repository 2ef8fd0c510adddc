use super::*;
use crate::{
    event::{NewEvent, TurnEndReason},
    inbox::Inbox,
    testing::{Script, user},
};

/// The boundary after a script's log, and what it says to one more event.
fn verdict(script: &Script, event: &NewEvent) -> Result<Boundary, BoundaryError> {
    let mut boundary = Boundary::new();
    for event in script.log.iter() {
        boundary = boundary.next(Candidate::from(&**event)).unwrap();
    }
    boundary.next(Candidate::new(script.log.len(), event))
}

/// The last event that `write` writes.
fn event(write: impl FnOnce(&mut Script)) -> NewEvent {
    let mut script = Script::new();
    write(&mut script);
    let event = script.log.last().unwrap();
    NewEvent { body: event.body.clone(), surface: event.surface, sources: vec![], ignorable: false }
}

/// A state, how to get there, and its verdict on each event.
type Row = (&'static str, fn(&mut Script), &'static str);

#[test]
fn the_whole_legality_table() {
    let at = |write: fn(&mut Script)| {
        event(move |s| {
            s.turn(1).step(1, 1);
            write(s);
        })
    };
    let claim = {
        let mut inbox = Inbox::new();
        let message = crate::message::Message::user("m", "m").into();
        let insert = inbox.insert_at_tail(crate::event::InboxTarget::NextStep, message).unwrap();
        inbox.apply(0, &insert).unwrap();
        let (mut splices, _) = inbox.claim(crate::event::InboxTarget::NextStep);
        (
            NewEvent::log_only(EventBody::InboxSpliced(insert)),
            NewEvent::log_only(EventBody::InboxSpliced(splices.remove(0))),
        )
    };
    let completed = TurnEndReason::Completed;
    let events: Vec<(&str, NewEvent)> = vec![
        (
            "turn/start 1",
            event(|s| {
                s.turn(1);
            }),
        ),
        (
            "turn/start 2",
            event(|s| {
                s.turn(2);
            }),
        ),
        (
            "turn/end 1",
            event(|s| {
                s.end_turn(1, completed.clone());
            }),
        ),
        (
            "turn/end 2",
            event(|s| {
                s.end_turn(2, completed.clone());
            }),
        ),
        (
            "step/start 1.1",
            event(|s| {
                s.step(1, 1);
            }),
        ),
        (
            "step/start 1.2",
            event(|s| {
                s.step(1, 2);
            }),
        ),
        (
            "step/end 1.1",
            event(|s| {
                s.end_step(1, 1);
            }),
        ),
        (
            "step/end 1.2",
            event(|s| {
                s.end_step(1, 2);
            }),
        ),
        (
            "system",
            at(|s| {
                s.system("P");
            }),
        ),
        (
            "header",
            at(|s| {
                s.header(&[]);
            }),
        ),
        (
            "context",
            at(|s| {
                s.context();
            }),
        ),
        (
            "assistant",
            at(|s| {
                s.assistant("x", &[]);
            }),
        ),
        (
            "attempt",
            at(|s| {
                s.attempt();
            }),
        ),
        (
            "call",
            at(|s| {
                s.call("c");
            }),
        ),
        (
            "result",
            at(|s| {
                s.result("c", "x");
            }),
        ),
        ("user", user("u", "u")),
        ("insert", claim.0),
        ("claim", claim.1),
        ("custom", NewEvent::custom("x", serde_json::Value::Null)),
    ];
    // One row a state, one column an event; `ok` or the refusal.
    let table: Vec<Row> = vec![
        (
            "empty",
            |_| {},
            "ok TURN_NUMBER NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN \
             NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN \
             NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN ok ok NO_OPEN_TURN ok",
        ),
        (
            "turn 1",
            |s| {
                s.turn(1);
            },
            "TURN_OPEN TURN_OPEN ok NOT_THE_OPEN_TURN ok STEP_NUMBER NO_OPEN_STEP \
             NO_OPEN_STEP NO_OPEN_STEP ok ok NO_OPEN_STEP NO_OPEN_STEP NO_OPEN_STEP \
             NO_OPEN_STEP ok ok ok ok",
        ),
        (
            "step 1.1",
            |s| {
                s.turn(1).step(1, 1);
            },
            "TURN_OPEN TURN_OPEN STEP_OPEN NOT_THE_OPEN_TURN STEP_OPEN STEP_OPEN ok \
             NOT_THE_OPEN_STEP ok ok ok ok ok ok ok ok ok ok ok",
        ),
        (
            "settled",
            |s| {
                s.turn(1).step(1, 1);
                s.assistant("x", &[]);
            },
            "TURN_OPEN TURN_OPEN STEP_OPEN NOT_THE_OPEN_TURN STEP_OPEN STEP_OPEN ok \
             NOT_THE_OPEN_STEP ok ok ok STEP_SETTLED STEP_SETTLED ok ok ok ok ok ok",
        ),
        (
            "after 1.1",
            |s| {
                s.turn(1).step(1, 1).end_step(1, 1);
            },
            "TURN_OPEN TURN_OPEN ok NOT_THE_OPEN_TURN STEP_NUMBER ok NO_OPEN_STEP \
             NO_OPEN_STEP NO_OPEN_STEP ok ok NO_OPEN_STEP NO_OPEN_STEP NO_OPEN_STEP \
             NO_OPEN_STEP ok ok ok ok",
        ),
        (
            "after turn 1",
            |s| {
                s.turn(1).end_turn(1, TurnEndReason::Completed);
            },
            "TURN_NUMBER ok NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN \
             NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN \
             NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN NO_OPEN_TURN ok ok NO_OPEN_TURN ok",
        ),
    ];
    for (state, write, row) in table {
        let mut script = Script::new();
        write(&mut script);
        let row: Vec<_> = row.split_whitespace().collect();
        assert_eq!(row.len(), events.len(), "{state}");
        for ((name, event), expected) in events.iter().zip(row) {
            let found = verdict(&script, event).map_or_else(|fault| fault.code(), |_| "ok");
            assert_eq!(found, expected, "{name} in state {state}");
        }
    }
}

#[test]
fn a_rewrite_of_an_old_result_stands_in_a_later_turn() {
    let mut script = Script::new();
    script.turn(1).step(1, 1);
    script.assistant("", &["c"]);
    script.call("c");
    let result = script.result("c", "long");
    script.end_step(1, 1).end_turn(1, TurnEndReason::Completed);
    let old = script.log.get(result).unwrap().body.clone();
    let rewrite = NewEvent::replace(old, result, result, vec![result]);
    assert_eq!(verdict(&script, &rewrite).unwrap_err().code(), "NO_OPEN_TURN");
    script.turn(2);
    assert!(verdict(&script, &rewrite).is_ok());
}

#[test]
fn the_fold_says_where_it_stands() {
    let mut script = Script::new();
    script.turn(1).step(1, 1);
    script.attempt();
    script.attempt();
    let boundary = verdict(&script, &NewEvent::custom("x", 1.into())).unwrap();
    assert_eq!(boundary.at(), Some(StepAt { turn: 1, step: 1 }));
    assert_eq!(boundary.open_turn().unwrap().start_seq, 0);
    let step = boundary.open_step().unwrap();
    assert_eq!((step.start_seq, step.attempts, step.settled), (1, 2, None));
    assert_eq!(boundary.last_turn(), 1);
    assert_eq!(Boundary::new().at(), None);
}
