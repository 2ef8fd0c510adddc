//! Why a team did not do what was asked.

use playhouse_messages::{chunk::Failure, event::Seq, id::SessionId};
use playhouse_plugin_api::{session::SessionError, tool::ToolError};
use playhouse_subagents::ContinuationError;

use crate::record::{NotATaskId, TaskId, TaskStatus};

/// Why an operation on a team was refused, or failed. Unless a variant says otherwise, nothing has
/// changed then.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TeamError {
    /// The caller is in no team, or is not the live agent of its session.
    #[error("agent \"{agent}\" is in no team: only live roots and their active members are")]
    NotAMember {
        /// Who asked.
        agent: SessionId,
    },
    /// Only the Lead may do this.
    #[error("only the Lead of a team may {what}; ask it with send_message to \"lead\"")]
    LeadRequired {
        /// What.
        what: &'static str,
    },
    /// An argument is out of its range.
    #[error("{argument}: {problem}")]
    InvalidArgument {
        /// Which.
        argument: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A member had this name before, perhaps one that failed.
    #[error("the name \"{name}\" was used in this team before; choose another")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No name is left.
    #[error("the team has had {limit} members, and may have no more; give work to those it has")]
    MemberLimit {
        /// How many it may have had.
        limit: usize,
    },
    /// Somebody else has settled meanwhile whether the member came to be.
    #[error("what became of \"{name}\" was decided otherwise meanwhile; it was ended")]
    ProvisioningConflict {
        /// The member's name.
        name: String,
    },
    /// The member could not be started. It is recorded as failed.
    #[error("\"{name}\" could not be started: {cause}. Its name stays taken")]
    Provisioning {
        /// The member's name.
        name: String,
        /// Why not.
        cause: Box<ContinuationError>,
    },
    /// The team has no such member.
    #[error("no member is named \"{name}\"; list_agents names them")]
    NoSuchMember {
        /// What was asked for.
        name: String,
    },
    /// The member is still being started, or never came to be.
    #[error("\"{name}\" is not active, so it cannot be {what}")]
    NotActive {
        /// The member's name.
        name: String,
        /// What it cannot be.
        what: &'static str,
    },
    /// Sender and target are the same.
    #[error("a member does not send messages to itself")]
    SelfMessage,
    /// Too much waits for the target already.
    #[error("{limit} messages wait for \"{target}\" already; wait until it has read some")]
    MailboxFull {
        /// The target's name.
        target: String,
        /// How many may wait.
        limit: usize,
    },
    /// The message is too long.
    #[error("the message has {bytes} bytes with its frame, at most {limit} are allowed")]
    MessageTooLarge {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The board has no such task.
    #[error("there is no {id} on the board, or it was deleted; team_task_list names all")]
    NoSuchTask {
        /// What was asked for.
        id: TaskId,
    },
    /// It is not of the form `task-<n>`.
    #[error(transparent)]
    NotATaskId(#[from] NotATaskId),
    /// The board is full.
    #[error("the board has {limit} tasks, and may have no more; delete what is done")]
    TaskLimit {
        /// How many it may have.
        limit: usize,
    },
    /// The task has changed since the caller read it.
    #[error("{id} is at revision {found}, not {expected}; read it again and decide anew")]
    StaleRevision {
        /// The task.
        id: TaskId,
        /// What the caller had read.
        expected: u64,
        /// What it is at.
        found: u64,
    },
    /// The task is somebody's.
    #[error("{id} is claimed by {owner}; choose another task")]
    AlreadyClaimed {
        /// The task.
        id: TaskId,
        /// Whose it is.
        owner: SessionId,
    },
    /// Other tasks must be completed first.
    #[error("{id} is blocked by {}; these must be completed first", list(.by))]
    Blocked {
        /// The task.
        id: TaskId,
        /// What is not completed.
        by: Vec<TaskId>,
    },
    /// A task would wait for itself.
    #[error("{id} would wait for itself: {}", .through.iter().map(ToString::to_string).collect::<Vec<_>>().join(" -> "))]
    DependencyCycle {
        /// The task.
        id: TaskId,
        /// The way from it back to it.
        through: Vec<TaskId>,
    },
    /// Others wait for the task.
    #[error("{} wait for {id}; change what they are blocked by first", list(.dependents))]
    HasDependents {
        /// The task.
        id: TaskId,
        /// Who waits for it.
        dependents: Vec<TaskId>,
    },
    /// Only the owner of the task and the Lead may do this.
    #[error("only the owner of {id} and the Lead may {action} it")]
    NotTheOwner {
        /// The task.
        id: TaskId,
        /// What.
        action: &'static str,
    },
    /// The task is at something else.
    #[error("{id} is {}, so nobody can {action} it", .status.as_str())]
    WrongStatus {
        /// The task.
        id: TaskId,
        /// What it is at.
        status: TaskStatus,
        /// What was asked for.
        action: &'static str,
    },
    /// The Lead is being disposed.
    #[error("the team of \"{team}\" is being ended; nothing is taken any more")]
    Closing {
        /// The team.
        team: SessionId,
    },
    /// The Lead's log breaks a rule of teams. Nothing of this team can be used.
    #[error("event {seq} of \"{team}\" breaks a rule of teams: {cause}; begin a new session")]
    Corrupt {
        /// The team.
        team: SessionId,
        /// The event.
        seq: Seq,
        /// Which rule, and how.
        cause: String,
    },
    /// Whether a message has arrived cannot be told, so it stays queued.
    #[error("the session of \"{target}\" cannot be read now")]
    Unreadable {
        /// Whose.
        target: SessionId,
    },
    /// The record would break a rule of teams.
    #[error("the record breaks a rule of teams: {cause}")]
    Refused {
        /// Which rule, and how.
        cause: String,
    },
    /// The Lead's log did not take the record, or could not be made durable; in that case it may
    /// stand all the same: read before you repeat.
    #[error("the Lead's log: {0}")]
    Log(Box<SessionError>),
    /// A sub-agent did not do what was asked.
    #[error(transparent)]
    Continuation(Box<ContinuationError>),
    /// The caller's token fired.
    #[error("cancelled")]
    Cancelled,
}

fn list(ids: &[TaskId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl TeamError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::NotAMember { .. } => "TEAM_NOT_A_MEMBER",
            Self::LeadRequired { .. } => "TEAM_LEAD_REQUIRED",
            Self::InvalidArgument { .. } | Self::NotATaskId(_) => "TEAM_INVALID_ARGUMENT",
            Self::NameTaken { .. } => "TEAM_MEMBER_NAME_TAKEN",
            Self::MemberLimit { .. } => "TEAM_MEMBER_LIMIT",
            Self::ProvisioningConflict { .. } => "TEAM_PROVISIONING_CONFLICT",
            Self::Provisioning { cause, .. } => cause.code(),
            Self::NoSuchMember { .. } => "TEAM_MEMBER_NOT_FOUND",
            Self::NotActive { .. } => "TEAM_MEMBER_NOT_ACTIVE",
            Self::SelfMessage => "TEAM_SELF_MESSAGE",
            Self::MailboxFull { .. } => "TEAM_MAILBOX_FULL",
            Self::MessageTooLarge { .. } => "TEAM_MESSAGE_TOO_LARGE",
            Self::NoSuchTask { .. } => "TEAM_TASK_NOT_FOUND",
            Self::TaskLimit { .. } => "TEAM_TASK_LIMIT",
            Self::StaleRevision { .. } => "TEAM_TASK_STALE_REVISION",
            Self::AlreadyClaimed { .. } => "TEAM_TASK_ALREADY_CLAIMED",
            Self::Blocked { .. } => "TEAM_TASK_BLOCKED",
            Self::DependencyCycle { .. } => "TEAM_TASK_DEPENDENCY_CYCLE",
            Self::HasDependents { .. } => "TEAM_TASK_HAS_DEPENDENTS",
            Self::NotTheOwner { .. } => "TEAM_TASK_FORBIDDEN",
            Self::WrongStatus { .. } => "TEAM_TASK_WRONG_STATUS",
            Self::Closing { .. } => "TEAM_CLOSING",
            Self::Corrupt { .. } => "TEAM_CORRUPT",
            Self::Unreadable { .. } => "TEAM_TARGET_UNREADABLE",
            Self::Refused { .. } => "TEAM_RECORD_REFUSED",
            Self::Log(error) => error.code(),
            Self::Continuation(error) => error.code(),
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl From<SessionError> for TeamError {
    fn from(error: SessionError) -> Self {
        Self::Log(Box::new(error))
    }
}

impl From<ContinuationError> for TeamError {
    fn from(error: ContinuationError) -> Self {
        Self::Continuation(Box::new(error))
    }
}

impl From<TeamError> for Failure {
    fn from(error: TeamError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<TeamError> for ToolError {
    fn from(error: TeamError) -> Self {
        Self::coded("TeamError", error.code(), error.to_string())
    }
}
