//! Who is told that jobs end and change.

use playhouse_plugin_api::{agent::Agent, hook::Notify};

use crate::JobSnapshot;

/// Told to the listeners that the owner's scope admits; of a job without one, to the harness's.
#[derive(Default)]
pub struct JobsEvents {
    /// A job is over. Told last, and again if the one who was to know was not reached.
    pub done: Notify<JobDone>,
    /// Something about somebody's jobs is otherwise than before.
    pub changed: Notify<JobsChanged>,
}

/// A job is over.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobDone {
    /// How it ended.
    pub job: JobSnapshot,
    /// Who it belongs to.
    pub owner: Option<Agent>,
}

/// Something about somebody's jobs is otherwise than before.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobsChanged {
    /// Whose; `None` for those without an owner.
    pub owner: Option<Agent>,
}
