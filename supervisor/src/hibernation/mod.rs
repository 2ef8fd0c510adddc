//! Hibernation: an idle agent gives up its actors and its memory, and stays addressable.
//!
//! Nothing is kept of one that hibernates but its stored session. Its header names the blueprint
//! from which it is made again when somebody wants it. What decides is **acceptance**: senders are
//! held back for the moment of the decision, everything that was sent before stands in the log by
//! then, and an agent with input to run does not fall asleep. So a message is either accepted by the
//! life that ends, which then does not end, or comes to the next one.

pub mod address;
pub mod decision;
mod fall;
pub(crate) mod sleeper;
pub(crate) mod wake;

use std::time::Duration;

use playhouse_messages::{chunk::Failure, id::SessionId};

pub use self::{address::SendError, decision::Awake};

/// When agents hibernate by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HibernationPolicy {
    /// How long an agent rests before it hibernates, if it can.
    pub idle_after: Duration,
    /// How many fall asleep at the same time; at least 1. Each takes a task and a sync that it shares
    /// with the others.
    pub at_once: usize,
}

impl HibernationPolicy {
    /// Agents hibernate that have rested for so long; up to 64 at the same time.
    pub fn after(idle: Duration) -> Self {
        Self { idle_after: idle, at_once: 64 }
    }

    /// The same, with so many that fall asleep at the same time.
    #[must_use]
    pub fn at_once(mut self, agents: usize) -> Self {
        self.at_once = agents.max(1);
        self
    }
}

/// Why an agent does not hibernate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HibernateError {
    /// No agent of this id lives.
    #[error("no agent \"{id}\" is live: it hibernates already, or there is none")]
    NotLive {
        /// The id.
        id: SessionId,
    },
    /// It cannot, for all of these reasons.
    #[error("agent \"{id}\" cannot hibernate: {}", decision::listed(.reasons))]
    Refused {
        /// The id.
        id: SessionId,
        /// All that keeps it awake; at least one.
        reasons: Vec<Awake>,
    },
    /// The store failed. The agent lives on if nothing had been given up yet; if something went wrong
    /// later, it is gone as after a disposal.
    #[error("agent \"{id}\" does not hibernate well: {failure}")]
    Failed {
        /// The id.
        id: SessionId,
        /// What failed.
        failure: Failure,
    },
}

impl HibernateError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::NotLive { .. } => "AGENT_NOT_FOUND",
            Self::Refused { .. } => "CANNOT_HIBERNATE",
            Self::Failed { failure, .. } => &failure.code,
        }
    }
}

impl From<HibernateError> for Failure {
    fn from(error: HibernateError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
