//! What is logged of fallbacks.

use playhouse_messages::{
    chunk::Failure,
    config::{ModelChoice, Route},
    event::{EventBody, NewEvent, StepAt},
    log::Log,
};
use serde::{Deserialize, Serialize};

use crate::step_log;

/// A step goes on with another route, or finds none to go on with.
pub const FALLBACK_KIND: &str = "llm/fallback";

/// The data of [`FALLBACK_KIND`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FellBack {
    /// The open step.
    #[serde(flatten)]
    pub at: StepAt,
    /// The route that failed.
    pub from: Route,
    /// Why.
    pub failure: Failure,
    /// What was passed over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
    /// Where the step goes on; `None` if the list is used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<ModelChoice>,
}

/// A route that was passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Which.
    #[serde(flatten)]
    pub route: Route,
    /// Why.
    pub reason: SkipReason,
}

/// Why a route was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SkipReason {
    /// It failed in this step.
    Failed,
    /// No adapter serves its provider now.
    Unregistered,
}

impl FellBack {
    /// Reads one; `None` for an event of another kind or shape.
    pub fn read(body: &EventBody) -> Option<Self> {
        step_log::read(FALLBACK_KIND, body)
    }

    /// The event.
    pub fn event(&self) -> NewEvent {
        step_log::write(FALLBACK_KIND, self)
    }
}

/// What the log says of the open step.
#[derive(Debug, Default)]
pub(super) struct StepSoFar {
    /// The routes that failed in it.
    pub failed: Vec<Route>,
    /// What the first of them failed with, if others followed.
    pub first_failure: Option<Failure>,
}

impl StepSoFar {
    /// `last` is the route that has failed just now.
    pub fn of(log: &Log, at: StepAt, last: Route) -> Self {
        let mut so_far = Self { failed: vec![last], first_failure: None };
        for event in step_log::newest_first(log, at) {
            match &event.body {
                // Whoever chose it: the step's requests went there.
                EventBody::RequestHeader(data) => so_far.failed.push(data.header.config.route()),
                body => {
                    let Some(earlier) = FellBack::read(body) else { continue };
                    so_far.failed.push(earlier.from);
                    so_far.first_failure = Some(earlier.failure);
                }
            }
        }
        so_far
    }
}
