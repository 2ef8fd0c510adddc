//! The decisions of a team, without a runtime.

mod board;
mod delivery;
mod fold;
mod interleavings;

use playhouse_messages::id::SessionId;

use crate::{
    NewMember, NewTask, Task, TaskAction, TaskId, Team, TeamError, TeamsConfig, record::Record,
};

pub(super) const LEAD: &str = "lead-session";

/// A team whose members are active; their sessions are named as they are.
pub(super) fn team(members: &[&str]) -> Team {
    let mut team = Team::new(LEAD.into());
    for name in members {
        let new = NewMember::new(*name, "works", "go");
        let member = team.new_member((*name).into(), &new, "spawn", 99).unwrap();
        take(&mut team, Record::Member(member));
        let member = team.settled_member(&(*name).into(), None).unwrap();
        take(&mut team, Record::Member(member));
    }
    team
}

pub(super) fn take(team: &mut Team, record: Record) {
    team.follow(&record).unwrap();
}

pub(super) fn create(team: &mut Team, subject: &str, blocked_by: &[u64]) -> TaskId {
    let blocked_by = blocked_by.iter().map(|n| TaskId(*n)).collect();
    let new = NewTask {
        subject: subject.into(),
        description: "d".into(),
        blocked_by,
        ..NewTask::default()
    };
    let changed = team.new_task(new, TeamsConfig::default().max_tasks).unwrap();
    take(team, Record::Task(changed.task.clone()));
    changed.task.id
}

/// Decides and records; the code of a refusal.
pub(super) fn act(
    team: &mut Team,
    by: &str,
    task: u64,
    revision: u64,
    action: TaskAction,
) -> Result<Task, String> {
    let by = SessionId::from(by);
    let changed = team.changed_task(&by, TaskId(task), revision, action);
    let changed = changed.map_err(|error: TeamError| error.code().to_owned())?;
    take(team, Record::Task(changed.task.clone()));
    Ok(changed.task)
}
