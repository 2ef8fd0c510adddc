//! The task board: who may do what with which task, and what it is then. Pure.

use playhouse_messages::id::SessionId;

use crate::{
    error::TeamError,
    record::{Task, TaskId, TaskStatus},
    scopes,
    team::Team,
};

/// The longest subject, in characters.
pub const SUBJECT_CHARS_MAX: usize = 200;

/// The longest description of a task, in characters.
pub const TASK_DESCRIPTION_CHARS_MAX: usize = 16_384;

/// A task to put on the board.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewTask {
    /// What is to be done, in a line of at most [`SUBJECT_CHARS_MAX`] characters.
    pub subject: String,
    /// What is to be done; at most [`TASK_DESCRIPTION_CHARS_MAX`] characters.
    pub description: String,
    /// What must be completed first.
    pub blocked_by: Vec<TaskId>,
    /// Which paths it will write to, relative to the workspace.
    pub write_scopes: Vec<String>,
}

/// What is done with a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskAction {
    /// Takes it: it must be pending and ready, and nobody else's.
    Claim,
    /// Gives it back; it is pending and nobody's then.
    Release,
    /// Says it otherwise; what is absent stays.
    Edit {
        /// The line.
        subject: Option<String>,
        /// The text.
        description: Option<String>,
        /// The paths.
        write_scopes: Option<Vec<String>>,
    },
    /// Has it wait for exactly these.
    SetDependencies(Vec<TaskId>),
    /// It is done.
    Complete,
    /// It is not done after all; it is pending and nobody's then.
    Reopen,
    /// Gives it to somebody, or to nobody, so that it is pending then. Only the Lead may.
    Reassign(Option<SessionId>),
    /// Takes it off the board.
    Delete,
}

impl TaskAction {
    /// Its name.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Release => "release",
            Self::Edit { .. } => "edit",
            Self::SetDependencies(_) => "set_dependencies",
            Self::Complete => "complete",
            Self::Reopen => "reopen",
            Self::Reassign(_) => "reassign",
            Self::Delete => "delete",
        }
    }
}

/// A task after a change, and what is to be said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// As it is now.
    pub task: Task,
    /// Where its paths meet those that others work on. Advice: nothing is refused for it.
    pub warnings: Vec<String>,
}

impl Team {
    /// The record of a new task.
    ///
    /// # Errors
    ///
    /// `TEAM_INVALID_ARGUMENT`, `TEAM_TASK_LIMIT`, `TEAM_TASK_NOT_FOUND` for a task to wait for.
    pub fn new_task(&self, new: NewTask, max_tasks: usize) -> Result<Changed, TeamError> {
        let on_board = |task: &&Task| task.status != TaskStatus::Deleted;
        if self.tasks().iter().filter(on_board).count() >= max_tasks {
            return Err(TeamError::TaskLimit { limit: max_tasks });
        }
        let NewTask { subject, description, blocked_by, write_scopes } = new;
        let id = TaskId(self.tasks().len() as u64 + 1);
        let task = Task {
            id,
            revision: 1,
            subject: checked_subject(subject)?,
            description: checked_description(description)?,
            status: TaskStatus::Pending,
            owner_id: None,
            blocked_by: self.dependencies(id, blocked_by)?,
            write_scopes: scopes::normalise(&write_scopes)?,
        };
        Ok(self.changed(task))
    }

    /// The record of what a task is after an action. `by` is in the team.
    ///
    /// # Errors
    ///
    /// `TEAM_TASK_NOT_FOUND`, `TEAM_TASK_STALE_REVISION` unless the task is at `expected`; then what
    /// the action forbids: `TEAM_TASK_ALREADY_CLAIMED`, `TEAM_TASK_BLOCKED`, `TEAM_TASK_FORBIDDEN`,
    /// `TEAM_LEAD_REQUIRED`, `TEAM_TASK_WRONG_STATUS`, `TEAM_TASK_DEPENDENCY_CYCLE`,
    /// `TEAM_TASK_HAS_DEPENDENTS`, `TEAM_MEMBER_NOT_FOUND`, `TEAM_INVALID_ARGUMENT`.
    pub fn changed_task(
        &self,
        by: &SessionId,
        id: TaskId,
        expected: u64,
        action: TaskAction,
    ) -> Result<Changed, TeamError> {
        let known = self.task(id).filter(|task| task.status != TaskStatus::Deleted);
        let known = known.ok_or(TeamError::NoSuchTask { id })?;
        if known.revision != expected {
            return Err(TeamError::StaleRevision { id, expected, found: known.revision });
        }
        let name = action.as_str();
        match &action {
            TaskAction::Claim => self.may_claim(by, known)?,
            TaskAction::Reassign(_) if by != self.id() => {
                return Err(TeamError::LeadRequired { what: "reassign tasks" });
            }
            _ if by != self.id() && known.owner_id.as_ref() != Some(by) => {
                return Err(TeamError::NotTheOwner { id, action: name });
            }
            _ => {}
        }
        let wrong = Err(TeamError::WrongStatus { id, status: known.status, action: name });
        let is_done = known.status == TaskStatus::Completed;
        let mut task = Task { revision: known.revision + 1, ..known.clone() };
        match action {
            TaskAction::Claim => {
                task.status = TaskStatus::InProgress;
                task.owner_id = Some(by.clone());
            }
            TaskAction::Release if is_done => return wrong,
            TaskAction::Reopen if !is_done => return wrong,
            TaskAction::Release | TaskAction::Reopen => {
                task.status = TaskStatus::Pending;
                task.owner_id = None;
            }
            TaskAction::Edit { subject, description, write_scopes } => {
                if let Some(subject) = subject {
                    task.subject = checked_subject(subject)?;
                }
                if let Some(description) = description {
                    task.description = checked_description(description)?;
                }
                if let Some(scopes) = write_scopes {
                    task.write_scopes = scopes::normalise(&scopes)?;
                }
            }
            TaskAction::SetDependencies(_) if is_done => return wrong,
            TaskAction::SetDependencies(on) => task.blocked_by = self.dependencies(id, on)?,
            TaskAction::Complete if known.status != TaskStatus::InProgress => return wrong,
            TaskAction::Complete => task.status = TaskStatus::Completed,
            TaskAction::Reassign(_) if is_done => return wrong,
            TaskAction::Reassign(Some(owner)) => {
                self.active(&owner, "given tasks")?;
                task.owner_id = Some(owner);
            }
            TaskAction::Reassign(None) => {
                task.status = TaskStatus::Pending;
                task.owner_id = None;
            }
            TaskAction::Delete => {
                let dependents = self.dependents(id);
                if !dependents.is_empty() {
                    return Err(TeamError::HasDependents { id, dependents });
                }
                task.status = TaskStatus::Deleted;
            }
        }
        Ok(self.changed(task))
    }

    fn may_claim(&self, by: &SessionId, task: &Task) -> Result<(), TeamError> {
        let id = task.id;
        if let Some(owner) = &task.owner_id
            && (owner != by || task.status == TaskStatus::InProgress)
        {
            let owner = self.name_of(owner).unwrap_or(owner.as_str()).into();
            return Err(TeamError::AlreadyClaimed { id, owner });
        }
        if task.status != TaskStatus::Pending {
            return Err(TeamError::WrongStatus { id, status: task.status, action: "claim" });
        }
        match self.blockers(task) {
            by if by.is_empty() => Ok(()),
            by => Err(TeamError::Blocked { id, by }),
        }
    }

    fn dependencies(&self, id: TaskId, on: Vec<TaskId>) -> Result<Vec<TaskId>, TeamError> {
        let mut once = Vec::new();
        for blocker in on {
            let stands = |task: &Task| task.status != TaskStatus::Deleted;
            if blocker != id && !self.task(blocker).is_some_and(stands) {
                return Err(TeamError::NoSuchTask { id: blocker });
            }
            if !once.contains(&blocker) {
                once.push(blocker);
            }
        }
        match self.cycle(id, &once) {
            Some(through) => Err(TeamError::DependencyCycle { id, through }),
            None => Ok(once),
        }
    }

    fn changed(&self, task: Task) -> Changed {
        let is_open = matches!(task.status, TaskStatus::Pending | TaskStatus::InProgress);
        let warnings = if is_open { scopes::warnings(self, &task) } else { Vec::new() };
        Changed { task, warnings }
    }
}

fn checked_subject(subject: String) -> Result<String, TeamError> {
    checked("subject", subject, SUBJECT_CHARS_MAX)
}

fn checked_description(description: String) -> Result<String, TeamError> {
    checked("description", description, TASK_DESCRIPTION_CHARS_MAX)
}

/// A text that says something, and not too much.
pub(crate) fn checked(
    argument: &'static str,
    text: String,
    max: usize,
) -> Result<String, TeamError> {
    let problem = match text.chars().count() {
        _ if text.trim().is_empty() => "must not be empty".to_owned(),
        chars if chars > max => format!("has {chars} characters, at most {max} are allowed"),
        _ => return Ok(text),
    };
    Err(TeamError::InvalidArgument { argument, problem })
}
