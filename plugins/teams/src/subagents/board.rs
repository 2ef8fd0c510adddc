use playhouse_messages::id::MessageId;

use super::{LEAD, act, create, take, team};
use crate::{
    NewMember, NewMessage, NewTask, TaskAction, TaskId, TaskStatus, TeamsConfig, record::Record,
};

fn edit(subject: &str) -> TaskAction {
    TaskAction::Edit { subject: Some(subject.into()), description: None, write_scopes: None }
}

#[test]
fn orchestration_18_7_4_of_two_claims_at_one_revision_one_is_stale() {
    let mut team = team(&["ann", "bob"]);
    create(&mut team, "one", &[]);
    let claimed = act(&mut team, "ann", 1, 1, TaskAction::Claim).unwrap();
    assert_eq!((claimed.revision, claimed.owner_id), (2, Some("ann".into())));
    let stale = act(&mut team, "bob", 1, 1, TaskAction::Claim);
    assert_eq!(stale.unwrap_err(), "TEAM_TASK_STALE_REVISION");
    let late = act(&mut team, "bob", 1, 2, TaskAction::Claim);
    assert_eq!(late.unwrap_err(), "TEAM_TASK_ALREADY_CLAIMED");
}

#[test]
fn orchestration_18_7_5_what_is_blocked_can_be_claimed_once_its_blocker_is_completed() {
    let mut team = team(&["ann", "bob"]);
    create(&mut team, "first", &[]);
    create(&mut team, "second", &[1]);
    let is_ready = |team: &crate::Team| team.is_ready(team.task(TaskId(2)).unwrap());
    let blocked = act(&mut team, "bob", 2, 1, TaskAction::Claim);
    assert_eq!((blocked.unwrap_err().as_str(), is_ready(&team)), ("TEAM_TASK_BLOCKED", false));
    act(&mut team, "ann", 1, 1, TaskAction::Claim).unwrap();
    assert!(act(&mut team, "bob", 2, 1, TaskAction::Claim).is_err());
    act(&mut team, "ann", 1, 2, TaskAction::Complete).unwrap();
    assert!(is_ready(&team));
    act(&mut team, "bob", 2, 1, TaskAction::Claim).unwrap();
}

#[test]
fn orchestration_18_7_6_a_cycle_is_refused_and_its_way_is_told() {
    let mut team = team(&[]);
    create(&mut team, "a", &[]);
    create(&mut team, "b", &[1]);
    create(&mut team, "c", &[2]);
    let cycle = |team: &mut crate::Team, on: u64| {
        let action = TaskAction::SetDependencies(vec![TaskId(on)]);
        team.changed_task(&LEAD.into(), TaskId(1), 1, action).unwrap_err()
    };
    let refused = cycle(&mut team, 3);
    assert_eq!(refused.code(), "TEAM_TASK_DEPENDENCY_CYCLE");
    assert!(refused.to_string().ends_with("task-1 -> task-3 -> task-2 -> task-1"), "{refused}");
    assert_eq!(cycle(&mut team, 1).code(), "TEAM_TASK_DEPENDENCY_CYCLE");
}

#[test]
fn orchestration_18_5_who_may_do_what_and_when() {
    use TaskAction::{Claim, Complete, Delete, Reassign, Release, Reopen, SetDependencies};
    let to = |name: &str| Reassign(Some(name.into()));
    // Task 1 is pending, 2 is in progress and ann's, 3 is completed and ann's, 4 is blocked by 1.
    let start = || {
        let mut team = team(&["ann", "bob"]);
        for subject in ["one", "two", "three"] {
            create(&mut team, subject, &[]);
        }
        create(&mut team, "four", &[1]);
        act(&mut team, "ann", 2, 1, Claim).unwrap();
        act(&mut team, "ann", 3, 1, Claim).unwrap();
        act(&mut team, "ann", 3, 2, Complete).unwrap();
        team
    };
    let revisions = [1, 2, 3, 1];
    let pending = Ok((TaskStatus::Pending, None));
    let anns = |status| Ok((status, Some("ann")));
    for (by, task, action, expected) in [
        ("bob", 1, Claim, Ok((TaskStatus::InProgress, Some("bob")))),
        ("bob", 2, Claim, Err("TEAM_TASK_ALREADY_CLAIMED")),
        ("ann", 2, Claim, Err("TEAM_TASK_ALREADY_CLAIMED")),
        ("bob", 3, Claim, Err("TEAM_TASK_ALREADY_CLAIMED")),
        ("bob", 4, Claim, Err("TEAM_TASK_BLOCKED")),
        ("ann", 2, Release, pending),
        (LEAD, 2, Release, pending),
        ("bob", 2, Release, Err("TEAM_TASK_FORBIDDEN")),
        ("ann", 3, Release, Err("TEAM_TASK_WRONG_STATUS")),
        ("ann", 2, edit("new"), anns(TaskStatus::InProgress)),
        ("ann", 1, edit("new"), Err("TEAM_TASK_FORBIDDEN")),
        (LEAD, 1, edit(" "), Err("TEAM_INVALID_ARGUMENT")),
        ("ann", 2, SetDependencies(vec![TaskId(1)]), anns(TaskStatus::InProgress)),
        ("ann", 2, SetDependencies(vec![TaskId(9)]), Err("TEAM_TASK_NOT_FOUND")),
        ("ann", 3, SetDependencies(vec![]), Err("TEAM_TASK_WRONG_STATUS")),
        ("ann", 2, Complete, anns(TaskStatus::Completed)),
        (LEAD, 1, Complete, Err("TEAM_TASK_WRONG_STATUS")),
        ("ann", 3, Reopen, pending),
        ("ann", 2, Reopen, Err("TEAM_TASK_WRONG_STATUS")),
        ("bob", 3, Reopen, Err("TEAM_TASK_FORBIDDEN")),
        (LEAD, 2, to("bob"), Ok((TaskStatus::InProgress, Some("bob")))),
        (LEAD, 1, to("bob"), Ok((TaskStatus::Pending, Some("bob")))),
        (LEAD, 2, Reassign(None), pending),
        ("ann", 2, to("bob"), Err("TEAM_LEAD_REQUIRED")),
        (LEAD, 2, to("cid"), Err("TEAM_MEMBER_NOT_FOUND")),
        (LEAD, 3, to("bob"), Err("TEAM_TASK_WRONG_STATUS")),
        (LEAD, 1, Delete, Err("TEAM_TASK_HAS_DEPENDENTS")),
        ("ann", 3, Delete, anns(TaskStatus::Deleted)),
        ("bob", 4, Delete, Err("TEAM_TASK_FORBIDDEN")),
    ] {
        let mut team = start();
        let done = act(&mut team, by, task, revisions[task as usize - 1], action.clone());
        let done = done.map(|task| (task.status, task.owner_id));
        let expected = expected.map(|(status, owner)| (status, owner.map(Into::into)));
        assert_eq!(done, expected.map_err(str::to_owned), "{by} {action:?} task-{task}");
    }
    let mut team = start();
    // What was given to somebody is that one's to claim.
    act(&mut team, LEAD, 1, 1, to("bob")).unwrap();
    assert_eq!(act(&mut team, "ann", 1, 2, Claim).unwrap_err(), "TEAM_TASK_ALREADY_CLAIMED");
    act(&mut team, "bob", 1, 2, Claim).unwrap();
    // Deleted is gone; its number stays taken.
    act(&mut team, LEAD, 4, 1, Delete).unwrap();
    assert_eq!(act(&mut team, LEAD, 4, 2, Reopen).unwrap_err(), "TEAM_TASK_NOT_FOUND");
    assert_eq!(create(&mut team, "five", &[]), TaskId(5));
}

#[test]
fn orchestration_18_5_scopes_that_overlap_work_in_progress_warn_and_refuse_nothing() {
    let mut team = team(&["ann", "bob"]);
    let new = |scope: &str| NewTask {
        subject: "s".into(),
        description: "d".into(),
        write_scopes: vec![scope.into()],
        ..NewTask::default()
    };
    let add = |team: &mut crate::Team, scope: &str| {
        let changed = team.new_task(new(scope), 9).unwrap();
        take(team, Record::Task(changed.task.clone()));
        changed.warnings
    };
    assert_eq!(add(&mut team, "./src/"), [""; 0]);
    act(&mut team, "ann", 1, 1, TaskAction::Claim).unwrap();
    assert_eq!(add(&mut team, "src/a.rs"), ["src/a.rs overlaps src of task-1, which ann works on"]);
    let claimed = team.changed_task(&"bob".into(), TaskId(2), 1, TaskAction::Claim).unwrap();
    assert_eq!(claimed.warnings.len(), 1);
    assert_eq!(add(&mut team, "docs"), [""; 0]);
}

#[test]
fn orchestration_18_1_limits_hold() {
    let mut team = team(&["ann", "bob"]);
    let new = NewMember::new("cid", "d", "go");
    let refused = team.new_member("c".into(), &new, "spawn", 2).unwrap_err();
    assert_eq!(refused.code(), "TEAM_MEMBER_LIMIT");
    create(&mut team, "one", &[]);
    let task = NewTask { subject: "s".into(), description: "d".into(), ..NewTask::default() };
    assert_eq!(team.new_task(task.clone(), 1).unwrap_err().code(), "TEAM_TASK_LIMIT");
    // What is deleted does not count.
    act(&mut team, LEAD, 1, 1, TaskAction::Delete).unwrap();
    assert!(team.new_task(task, 1).is_ok());

    let config =
        TeamsConfig { max_pending_messages: 1, max_message_bytes: 400, ..TeamsConfig::default() };
    let send = |team: &crate::Team, id: &str, from: &str, new: NewMessage| {
        let message = team.new_message(MessageId::from(id), &from.into(), new, &config);
        message.map_err(|error| error.code().to_owned())
    };
    let refused = |new: NewMessage| send(&team, "m", "ann", new).unwrap_err();
    assert_eq!(refused(NewMessage::quiet("ann", "x")), "TEAM_SELF_MESSAGE");
    assert_eq!(refused(NewMessage::quiet("cid", "x")), "TEAM_MEMBER_NOT_FOUND");
    assert_eq!(refused(NewMessage::quiet("bob", "")), "TEAM_INVALID_ARGUMENT");
    assert_eq!(refused(NewMessage::quiet("bob", "x".repeat(400))), "TEAM_MESSAGE_TOO_LARGE");
    let message = send(&team, "m", "ann", NewMessage::wakeup("bob", "x")).unwrap();
    let framed = message.framed(team.id());
    assert_eq!(framed.text(), "Message m from ann:x");
    assert_eq!(framed.id.as_str(), "m");
    assert_eq!(
        serde_json::to_value(&framed.source).unwrap(),
        serde_json::json!({
            "kind": "team-message", "teamId": LEAD, "messageId": "m", "senderId": "ann",
            "senderName": "ann",
        })
    );
    take(&mut team, Record::Queued(message));
    let full = send(&team, "n", "ann", NewMessage::quiet("bob", "x"));
    assert_eq!(full.unwrap_err(), "TEAM_MAILBOX_FULL");
    assert!(send(&team, "n", "bob", NewMessage::quiet("lead", "x")).is_ok());
    // Only who is active is sent to.
    let new = NewMember::new("cid", "d", "go");
    let member = team.new_member("cid".into(), &new, "spawn", 9).unwrap();
    take(&mut team, Record::Member(member));
    let early = send(&team, "n", "ann", NewMessage::quiet("cid", "x"));
    assert_eq!(early.unwrap_err(), "TEAM_MEMBER_NOT_ACTIVE");
}
