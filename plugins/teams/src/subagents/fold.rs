use std::sync::Arc;

use playhouse_messages::{
    candidate::Candidate,
    event::{EventBody, NewEvent},
    log::Log,
    validator::Validator,
};
use serde_json::{Value, json};

use super::{LEAD, team};
use crate::{Team, record::Record, validator::TeamRules};

fn member(id: &str, name: &str, phase: &str) -> (&'static str, Value) {
    let mut member = json!({
        "id": id, "name": name, "description": "d", "provider": "spawn", "context": "fresh",
        "phase": phase,
    });
    if phase == "failed" {
        member["error"] = "why".into();
    }
    ("team/member", json!({"member": member}))
}

fn task(
    n: u64,
    revision: u64,
    status: &str,
    owner: Option<&str>,
    by: &[u64],
) -> (&'static str, Value) {
    let blocked_by: Vec<_> = by.iter().map(|n| format!("task-{n}")).collect();
    let mut task = json!({
        "id": format!("task-{n}"), "revision": revision, "subject": "s", "description": "d",
        "status": status, "blockedBy": blocked_by, "writeScopes": [],
    });
    if let Some(owner) = owner {
        task["ownerId"] = owner.into();
    }
    ("team/task", json!({"task": task}))
}

fn queued(id: &str, from: &str, to: &str) -> (&'static str, Value) {
    let message = json!({
        "id": id, "senderId": from, "senderName": "n", "targetId": to, "delivery": "quiet",
        "content": [],
    });
    ("team/message/queued", json!({"message": message}))
}

fn delivered(id: &str, to: &str) -> (&'static str, Value) {
    ("team/message/delivered", json!({"messageId": id, "targetId": to}))
}

fn event((kind, mut data): (&'static str, Value)) -> NewEvent {
    data["version"] = 1.into();
    if data.get("teamId").is_none() {
        data["teamId"] = LEAD.into();
    }
    NewEvent::custom(kind, data)
}

fn log(records: &[(&'static str, Value)]) -> Log {
    let events = (0..).zip(records.iter().cloned());
    events.map(|(seq, record)| Arc::new(event(record).at(seq, 0))).collect()
}

/// What the fold says of the last of these records, if it takes those before; the validator agrees.
fn fold(records: &[(&'static str, Value)]) -> Result<(), String> {
    let log = log(records);
    let folded = Team::of(&LEAD.into(), &log);
    let mut trace = TeamRules.trace();
    let mut refused = None;
    for stored in log.iter() {
        let mut next = trace.fork();
        if let Err(why) = next.follow(Candidate::from(&**stored)) {
            refused = Some((stored.seq, why));
            break;
        }
        trace = next;
    }
    match (folded, refused) {
        (Ok(_), None) => Ok(()),
        (Err(violation), Some(refused)) => {
            assert_eq!((violation.seq, violation.cause.clone()), refused);
            assert_eq!(violation.seq + 1, records.len() as u64, "{violation:?}");
            Err(violation.cause)
        }
        differ => panic!("{differ:?}"),
    }
}

#[test]
fn orchestration_18_2_a_team_is_what_its_records_say_and_what_breaks_a_rule_is_corrupt() {
    let two = [
        member("a", "ann", "provisioning"),
        member("a", "ann", "active"),
        member("b", "bob", "provisioning"),
    ];
    let tasks = [task(1, 1, "pending", None, &[]), task(2, 1, "pending", None, &[1])];
    let sent = [queued("m", LEAD, "a")];
    let good: Vec<_> = two.iter().chain(&tasks).chain(&sent).cloned().collect();
    assert_eq!(fold(&good), Ok(()));
    let deleted = task(2, 2, "deleted", None, &[1]);
    for (then, expected) in [
        (vec![member("b", "bob", "failed")], None),
        (vec![member("b", "bob", "active")], None),
        (vec![member("c", "cid", "active")], Some("does not begin as provisioning")),
        (vec![member("c", "ann", "provisioning")], Some("used twice")),
        (vec![member("c", "lead", "provisioning")], Some("the Lead is no member")),
        (vec![member(LEAD, "cid", "provisioning")], Some("the Lead is no member")),
        (vec![member("a", "ann", "failed")], Some("settled twice")),
        (vec![member("b", "bob", "provisioning")], Some("settled twice")),
        (vec![member("b", "rob", "active")], Some("becomes another")),
        (vec![task(1, 2, "in_progress", Some("a"), &[])], None),
        (vec![task(1, 2, "in_progress", None, &[])], Some("nobody works on")),
        (vec![task(1, 2, "in_progress", Some("x"), &[])], Some("who is in no team")),
        (vec![task(1, 3, "pending", None, &[])], Some("from revision 1 to 3")),
        (vec![task(1, 1, "pending", None, &[])], Some("from revision 1 to 1")),
        (vec![task(3, 2, "pending", None, &[])], Some("from revision 0 to 2")),
        (vec![task(4, 1, "pending", None, &[])], Some("does not follow")),
        (vec![task(3, 1, "completed", None, &[])], Some("does not begin as pending")),
        (vec![task(3, 1, "pending", None, &[9])], Some("which is not there")),
        (vec![task(3, 1, "pending", None, &[3])], Some("waits for itself")),
        (vec![task(1, 2, "pending", None, &[2])], Some("waits for itself")),
        (vec![task(1, 2, "deleted", None, &[])], Some("task-2 waits for it")),
        (vec![deleted.clone(), task(1, 2, "deleted", None, &[])], None),
        (vec![deleted.clone(), task(2, 3, "pending", None, &[1])], Some("after it was deleted")),
        (vec![deleted, task(1, 2, "pending", None, &[2])], Some("which is not there")),
        (vec![queued("m", LEAD, "a")], Some("queued twice")),
        (vec![queued("n", "a", "a")], Some("its own sender")),
        (vec![queued("n", "a", "x")], Some("is in no team")),
        (vec![queued("n", "x", "a")], Some("is in no team")),
        (vec![delivered("m", "a")], None),
        (vec![delivered("m", "b")], Some("somebody else")),
        (vec![delivered("n", "a")], Some("never queued")),
        (vec![delivered("m", "a"), delivered("m", "a")], Some("delivered twice")),
        (vec![delivered("m", "a"), queued("m", LEAD, "a")], Some("queued twice")),
    ] {
        let records: Vec<_> = good.iter().chain(&then).cloned().collect();
        match (fold(&records), expected) {
            (Ok(()), None) => {}
            (Err(cause), Some(expected)) if cause.contains(expected) => {}
            (found, expected) => panic!("{then:?}: {found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn orchestration_18_7_9_records_of_another_team_do_not_count() {
    let (kind, mut data) = task(1, 1, "pending", None, &[]);
    data["teamId"] = "another".into();
    // Wrong for this team, and its own for the other.
    let log = log(&[
        (kind, data.clone()),
        task(1, 1, "pending", None, &[]),
        (kind, {
            data["task"]["revision"] = 2.into();
            data
        }),
    ]);
    let team = Team::of(&LEAD.into(), &log).unwrap();
    assert_eq!((team.tasks().len(), team.tasks()[0].revision), (1, 1));
    let mut trace = TeamRules.trace();
    for event in log.iter() {
        trace.follow(Candidate::from(&**event)).unwrap();
    }
}

#[test]
fn a_refused_record_changes_nothing() {
    let mut now = team(&["ann", "bob"]);
    let before = now.clone();
    for record in [task(1, 2, "pending", None, &[]), delivered("m", "ann"), queued("m", "x", "ann")]
    {
        let body: EventBody = event(record).body;
        let (_, record) = Record::read(&body).unwrap().unwrap();
        assert!(now.follow(&record).is_err());
        assert_eq!(now, before);
    }
}
