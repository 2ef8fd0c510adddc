//! What a Lead's log says of its team: closed records of version 1.

use std::{fmt, str::FromStr};

use playhouse_messages::{
    content::ContentBlock,
    event::{EventBody, NewEvent},
    id::{MessageId, SessionId},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::Value;

/// A member has come, or what became of it.
pub const MEMBER_KIND: &str = "team/member";
/// A task as it is now.
pub const TASK_KIND: &str = "team/task";
/// A message that somebody has to get.
pub const QUEUED_KIND: &str = "team/message/queued";
/// A message stands in its target's log.
pub const DELIVERED_KIND: &str = "team/message/delivered";

/// The event kinds that a harness must know to load the session of a Lead.
pub const EVENT_KINDS: [&str; 4] = [MEMBER_KIND, TASK_KIND, QUEUED_KIND, DELIVERED_KIND];

/// The version of the records that this build writes, and the only one that it reads.
pub const RECORD_VERSION: u32 = 1;

/// How a member begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TeamContext {
    /// With its prompt alone.
    #[default]
    Fresh,
    /// Knowing the turns that its Lead has completed.
    Fork,
}

/// How far a member has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It is being started.
    Provisioning,
    /// Its prompt is in its log.
    Active,
    /// It never came to be.
    Failed,
}

/// A member, as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Member {
    /// Its session.
    pub id: SessionId,
    /// How the team calls it.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The provider of sub-agents that starts it.
    pub provider: String,
    /// How it begins.
    pub context: TeamContext,
    /// How far it has got.
    pub phase: Phase,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A task's name: `task-<n>`, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task-{}", self.0)
    }
}

/// It is not of the form `task-<n>`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no task id: they are task-1, task-2 and so on")]
pub struct NotATaskId(pub String);

impl FromStr for TaskId {
    type Err = NotATaskId;

    fn from_str(text: &str) -> Result<Self, NotATaskId> {
        let number = text.strip_prefix("task-").and_then(|digits| digits.parse().ok());
        let id = number.map(Self);
        // The form is unique: no signs, no leading zeros.
        id.filter(|id| id.0 > 0 && id.to_string() == text).ok_or_else(|| NotATaskId(text.into()))
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TaskId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a task is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Nobody works on it.
    Pending,
    /// Its owner works on it.
    InProgress,
    /// It is done.
    Completed,
    /// It is gone; its id stays taken.
    Deleted,
}

impl TaskStatus {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Deleted => "deleted",
        }
    }
}

/// A task, as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Counts its changes, from 1.
    pub revision: u64,
    /// What is to be done, in a line.
    pub subject: String,
    /// What is to be done.
    pub description: String,
    /// What it is at.
    pub status: TaskStatus,
    /// Whose it is: a member's session, or the Lead's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<SessionId>,
    /// What must be completed first.
    pub blocked_by: Vec<TaskId>,
    /// Which paths it will write to: normalised relative prefixes.
    pub write_scopes: Vec<String>,
}

/// Whether a message wakes its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// It is read with the next step, whenever that comes.
    Quiet,
    /// It is a turn of its own, and starts a target that is not live.
    Wakeup,
}

/// A message of the team, as recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TeamMessage {
    /// Its id, also in its target's log.
    pub id: MessageId,
    /// Who sent it.
    pub sender_id: SessionId,
    /// How the team calls who sent it.
    pub sender_name: String,
    /// Who is to get it.
    pub target_id: SessionId,
    /// Whether it wakes the target.
    pub delivery: Delivery,
    /// What it says.
    pub content: Vec<ContentBlock>,
}

/// What one event of a Lead's log says.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// `team/member`.
    Member(Member),
    /// `team/task`.
    Task(Task),
    /// `team/message/queued`.
    Queued(TeamMessage),
    /// `team/message/delivered`.
    Delivered {
        /// Which.
        message: MessageId,
        /// To whom.
        target: SessionId,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MemberData {
    version: u32,
    team_id: SessionId,
    member: Member,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TaskData {
    version: u32,
    team_id: SessionId,
    task: Task,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct QueuedData {
    version: u32,
    team_id: SessionId,
    message: TeamMessage,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeliveredData {
    version: u32,
    team_id: SessionId,
    message_id: MessageId,
    target_id: SessionId,
}

impl Record {
    /// Reads a team's record: whose, and what. `None` for an event of another kind.
    ///
    /// # Errors
    ///
    /// What is wrong with it: another version, an unknown key, a value of a wrong type.
    pub fn read(body: &EventBody) -> Result<Option<(SessionId, Self)>, String> {
        let EventBody::Custom { kind, data } = body else { return Ok(None) };
        Ok(Some(match &**kind {
            MEMBER_KIND => {
                let MemberData { team_id, member, .. } = closed(data)?;
                (team_id, Self::Member(member))
            }
            TASK_KIND => {
                let TaskData { team_id, task, .. } = closed(data)?;
                (team_id, Self::Task(task))
            }
            QUEUED_KIND => {
                let QueuedData { team_id, message, .. } = closed(data)?;
                (team_id, Self::Queued(message))
            }
            DELIVERED_KIND => {
                let DeliveredData { team_id, message_id, target_id, .. } = closed(data)?;
                (team_id, Self::Delivered { message: message_id, target: target_id })
            }
            _ => return Ok(None),
        }))
    }

    /// The event that records it for this team.
    pub fn event(&self, team: &SessionId) -> NewEvent {
        let (version, team_id) = (RECORD_VERSION, team.clone());
        let (kind, data) = match self.clone() {
            Self::Member(member) => (MEMBER_KIND, json(MemberData { version, team_id, member })),
            Self::Task(task) => (TASK_KIND, json(TaskData { version, team_id, task })),
            Self::Queued(message) => (QUEUED_KIND, json(QueuedData { version, team_id, message })),
            Self::Delivered { message: message_id, target: target_id } => {
                let data = DeliveredData { version, team_id, message_id, target_id };
                (DELIVERED_KIND, json(data))
            }
        };
        NewEvent::custom(kind, data)
    }
}

fn closed<T: DeserializeOwned>(data: &Value) -> Result<T, String> {
    match data.get("version").and_then(Value::as_u64) {
        Some(version) if version == u64::from(RECORD_VERSION) => {
            T::deserialize(data).map_err(|fault| fault.to_string())
        }
        Some(version) => Err(format!("version {version}; this build reads {RECORD_VERSION}")),
        None => Err("it has no version".to_owned()),
    }
}

fn json(data: impl Serialize) -> Value {
    serde_json::to_value(data).expect("strings, numbers and blocks are JSON")
}

#[cfg(test)]
mod tests {
    mod subagents {
        use serde_json::json;

        use super::super::*;

        #[test]
        fn orchestration_18_2_records_are_closed_and_have_one_version() {
            let task = Task {
                id: TaskId(2),
                revision: 3,
                subject: "s".into(),
                description: "d".into(),
                status: TaskStatus::InProgress,
                owner_id: Some("a".into()),
                blocked_by: vec![TaskId(1)],
                write_scopes: vec!["src".into()],
            };
            let event = Record::Task(task.clone()).event(&"lead".into());
            let EventBody::Custom { kind, data } = &event.body else { panic!("{event:?}") };
            assert_eq!(&**kind, TASK_KIND);
            let expected = json!({
                "version": 1, "teamId": "lead",
                "task": {
                    "id": "task-2", "revision": 3, "subject": "s", "description": "d",
                    "status": "in_progress", "ownerId": "a", "blockedBy": ["task-1"],
                    "writeScopes": ["src"],
                },
            });
            assert_eq!(data, &expected);
            let read = Record::read(&event.body).unwrap();
            assert_eq!(read, Some(("lead".into(), Record::Task(task))));
            for (at, value) in [
                ("/version", json!(2)),
                ("/version", json!("1")),
                ("/task/id", json!("task-02")),
                ("/task/id", json!("task-0")),
                ("/task/status", json!("done")),
                ("/task/revision", json!(-1)),
                ("/task", json!({})),
            ] {
                let mut data = expected.clone();
                *data.pointer_mut(at).unwrap() = value;
                let body = EventBody::Custom { kind: TASK_KIND.into(), data };
                assert!(Record::read(&body).is_err(), "{body:?}");
            }
            let mut open = expected;
            open["more"] = json!(true);
            let body = EventBody::Custom { kind: TASK_KIND.into(), data: open };
            assert!(Record::read(&body).unwrap_err().contains("more"));
        }
    }
}
