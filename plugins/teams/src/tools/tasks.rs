//! The task board.

use std::sync::Arc;

use playhouse_plugin_api::tool::{Tool, ToolRun, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::seat;
use crate::{
    Changed, NewTask, Task, TaskAction, TaskId, TaskStatus, Team, TeamError, Teams,
    record::NotATaskId,
};

/// Puts a task on the board.
pub const TASK_CREATE_TOOL: &str = "team_task_create";
/// Lists tasks.
pub const TASK_LIST_TOOL: &str = "team_task_list";
/// Reads a task.
pub const TASK_GET_TOOL: &str = "team_task_get";
/// Does something with a task.
pub const TASK_UPDATE_TOOL: &str = "team_task_update";

const PAGE_DEFAULT: usize = 50;
const UNOWNED: &str = "unowned";

const CREATE: &str = "\
Puts a task on the team's board, pending and nobody's. Tasks in blocked_by must be completed before it \
can be claimed. write_scopes are paths that the work will write to; warnings say where they meet those \
that others work on.";

const LIST: &str = "\
Lists the tasks of the board that are not deleted, by their numbers, without their descriptions. A task \
is ready if it is pending and all that blocks it is completed. With nextCursor there are more.";

const GET: &str = "Reads a task whole, with the revision that a change of it must name.";

const UPDATE: &str = "\
Does something with a task. expected_revision is the one that you read; if the task has changed since, \
nothing happens. `claim` takes a ready task for you. The owner and the Lead may `release` it, `edit` it \
(subject, description, write_scopes), `set_dependencies` (blocked_by, whole), `complete` it while in \
progress, `reopen` it when completed, `delete` it if none waits for it. The Lead may `reassign` it: \
owner is a name, or empty for nobody.";

#[derive(Debug, Deserialize, JsonSchema)]
struct Create {
    /// What is to be done, in a line of at most 200 characters.
    #[schemars(length(min = 1, max = 200))]
    subject: String,
    /// What is to be done, so that it can be understood alone.
    #[schemars(length(min = 1, max = 16_384))]
    description: String,
    /// Tasks that must be completed first.
    blocked_by: Option<Vec<String>>,
    /// Paths that the work will write to, relative to the workspace.
    write_scopes: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct List {
    /// Only those that are at this.
    status: Option<Status>,
    /// Only those of this member, or `unowned`.
    owner: Option<String>,
    /// Only those that are ready, or are not.
    ready: Option<bool>,
    /// Where to go on: the nextCursor of the page before.
    cursor: Option<u64>,
    /// How many at most; 50 if absent.
    #[schemars(range(min = 1, max = 100))]
    limit: Option<usize>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
    Pending,
    InProgress,
    Completed,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Get {
    /// The task's id.
    task_id: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Update {
    /// The task's id.
    task_id: String,
    /// The revision that you have read.
    #[schemars(range(min = 1))]
    expected_revision: u64,
    /// What to do.
    action: Action,
    /// For `edit`.
    #[schemars(length(min = 1, max = 200))]
    subject: Option<String>,
    /// For `edit`.
    #[schemars(length(min = 1, max = 16_384))]
    description: Option<String>,
    /// For `set_dependencies`: all that must be completed first.
    blocked_by: Option<Vec<String>>,
    /// For `edit`.
    write_scopes: Option<Vec<String>>,
    /// For `reassign`: a member's name, `lead`, or empty for nobody.
    owner: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Action {
    Claim,
    Release,
    Edit,
    SetDependencies,
    Complete,
    Reopen,
    Reassign,
    Delete,
}

pub(super) fn tools(teams: &Teams) -> Vec<Arc<dyn Tool>> {
    let (creating, listing, getting, updating) =
        (teams.clone(), teams.clone(), teams.clone(), teams.clone());
    let create = move |args: Create, call: ToolRun| {
        let teams = creating.clone();
        async move {
            let new = NewTask {
                subject: args.subject,
                description: args.description,
                blocked_by: task_ids(args.blocked_by.as_deref())?,
                write_scopes: args.write_scopes.unwrap_or_default(),
            };
            let seat = seat(&teams, &call)?;
            let changed = seat.create_task(new).await?;
            Ok(answer(&seat.team()?, &changed))
        }
    };
    let list = move |args: List, call: ToolRun| {
        let teams = listing.clone();
        async move { Ok(page(&seat(&teams, &call)?.team()?, &args)?) }
    };
    let get = move |args: Get, call: ToolRun| {
        let teams = getting.clone();
        async move {
            let team = seat(&teams, &call)?.team()?;
            let id = args.task_id.parse().map_err(TeamError::NotATaskId)?;
            let found = team.task(id).filter(|task| task.status != TaskStatus::Deleted);
            Ok(json!({"task": view(&team, found.ok_or(TeamError::NoSuchTask { id })?, true)}))
        }
    };
    let update = move |args: Update, call: ToolRun| {
        let teams = updating.clone();
        async move {
            let seat = seat(&teams, &call)?;
            let id = args.task_id.parse().map_err(TeamError::NotATaskId)?;
            let expected = args.expected_revision;
            let action = args.action(&seat.team()?)?;
            let changed = seat.change_task(id, expected, action).await?;
            Ok(answer(&seat.team()?, &changed))
        }
    };
    vec![
        Arc::new(tool_fn(TASK_CREATE_TOOL, CREATE, create)),
        Arc::new(tool_fn(TASK_LIST_TOOL, LIST, list)),
        Arc::new(tool_fn(TASK_GET_TOOL, GET, get)),
        Arc::new(tool_fn(TASK_UPDATE_TOOL, UPDATE, update)),
    ]
}

fn task_ids(ids: Option<&[String]>) -> Result<Vec<TaskId>, TeamError> {
    let parsed: Result<_, NotATaskId> =
        ids.unwrap_or_default().iter().map(|id| id.parse()).collect();
    Ok(parsed?)
}

impl Update {
    fn action(self, team: &Team) -> Result<TaskAction, TeamError> {
        let missing = |argument| {
            let problem = "is required for this action".to_owned();
            Err(TeamError::InvalidArgument { argument, problem })
        };
        let Self { subject, description, blocked_by, write_scopes, owner, action, .. } = self;
        Ok(match action {
            Action::Claim => TaskAction::Claim,
            Action::Release => TaskAction::Release,
            Action::Complete => TaskAction::Complete,
            Action::Reopen => TaskAction::Reopen,
            Action::Delete => TaskAction::Delete,
            Action::Edit
                if subject.is_none() && description.is_none() && write_scopes.is_none() =>
            {
                return missing("subject, description or write_scopes");
            }
            Action::Edit => TaskAction::Edit { subject, description, write_scopes },
            Action::SetDependencies if blocked_by.is_none() => return missing("blocked_by"),
            Action::SetDependencies => {
                TaskAction::SetDependencies(task_ids(blocked_by.as_deref())?)
            }
            Action::Reassign => match owner.as_deref().map(str::trim) {
                None => return missing("owner"),
                Some("") => TaskAction::Reassign(None),
                Some(name) => TaskAction::Reassign(Some(team.resolve(name)?)),
            },
        })
    }
}

fn page(team: &Team, args: &List) -> Result<Value, TeamError> {
    let owner = match args.owner.as_deref() {
        None => None,
        Some(UNOWNED) => Some(None),
        Some(name) => Some(Some(team.resolve(name)?)),
    };
    let status = args.status.map(|status| match status {
        Status::Pending => TaskStatus::Pending,
        Status::InProgress => TaskStatus::InProgress,
        Status::Completed => TaskStatus::Completed,
    });
    let is_meant = |task: &&Task| {
        task.status != TaskStatus::Deleted
            && task.id.0 > args.cursor.unwrap_or(0)
            && status.is_none_or(|status| task.status == status)
            && owner.as_ref().is_none_or(|owner| task.owner_id == *owner)
            && args.ready.is_none_or(|ready| team.is_ready(task) == ready)
    };
    let limit = args.limit.unwrap_or(PAGE_DEFAULT).clamp(1, 100);
    let mut found: Vec<_> = team.tasks().iter().filter(is_meant).take(limit + 1).collect();
    let more = found.len() > limit;
    found.truncate(limit);
    let tasks: Vec<_> = found.iter().map(|task| view(team, task, false)).collect();
    let mut value = json!({"tasks": tasks});
    if let Some(last) = found.last().filter(|_| more) {
        value["nextCursor"] = last.id.0.into();
    }
    Ok(value)
}

fn view(team: &Team, task: &Task, whole: bool) -> Value {
    let owner = task.owner_id.as_ref().and_then(|id| team.name_of(id));
    let mut value = json!({
        "id": task.id,
        "revision": task.revision,
        "subject": task.subject,
        "status": task.status,
        "owner": owner,
        "ready": team.is_ready(task),
        "blockedBy": task.blocked_by,
        "writeScopes": task.write_scopes,
    });
    if whole {
        value["description"] = task.description.as_str().into();
    }
    value
}

fn answer(team: &Team, changed: &Changed) -> Value {
    let mut value = json!({"task": view(team, &changed.task, true)});
    if !changed.warnings.is_empty() {
        value["warnings"] = json!(changed.warnings);
    }
    value
}
