//! Who is told that children begin and end.

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::{agent::Agent, hook::Notify};

use crate::{ChildResult, Run, StopReason};

/// Told to the listeners that the delegating agent's scope admits: of each run its start, and after
/// it exactly one end.
#[derive(Default)]
pub struct Lifecycle {
    /// A child was started; a local one stands in the registry.
    pub started: Notify<RunStarted>,
    /// Its run has a result.
    pub ended: Notify<RunEnded>,
}

/// A child was started.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunStarted {
    /// Who delegated.
    pub parent: Agent,
    /// Who started it.
    pub provider: String,
    /// The run, and the child if it is local.
    pub id: SessionId,
    /// Whether the child lives in this process.
    pub local: bool,
}

/// A run has a result.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunEnded {
    /// The run.
    pub run: RunStarted,
    /// How it ended.
    pub stop_reason: StopReason,
    /// Its last answer's text, if it said something.
    pub last_message: Option<String>,
}

impl RunStarted {
    pub(crate) fn of(parent: Agent, provider: &str, run: &Run) -> Self {
        let (provider, id) = (provider.to_owned(), run.id().clone());
        Self { parent, provider, id, local: run.agent().is_some() }
    }

    /// A fault without a stop reason counts as an error.
    pub(crate) fn ended(self, result: Option<ChildResult>) -> RunEnded {
        let result = result.unwrap_or_else(|| ChildResult::new(StopReason::Error));
        let last_message = Some(result.text()).filter(|text| !text.is_empty());
        RunEnded { run: self, stop_reason: result.stop_reason, last_message }
    }
}
