//! Long-lived teams of Playhouse agents: roster, task board, mailbox.
//!
//! Every agent that no other delegated to is the Lead of a team. Its members are continuable
//! sub-agents that it starts by name; they write to each other, and take work from one board. All that
//! is durable stands in the Lead's log, so that a later life of the Lead finds its team as it was.
//!
//! - [`TeamsPlugin`] puts teams into a harness; [`Teams`] and [`Seat`] are what code drives them by.
//! - [`Team`] is the fold of a Lead's log, with the decisions on roster, board and mailbox as pure
//!   functions of it; [`record`] is what is logged.
//! - [`tools`] is what models see.

#![warn(missing_docs)]

pub mod board;
mod carrying;
pub mod config;
pub mod error;
mod lead;
pub mod mailbox;
mod plugin;
pub mod policy;
pub mod record;
mod recovery;
pub mod roster;
mod scopes;
mod seat;
mod service;
mod spawning;
pub mod team;
pub mod tools;
mod validator;

pub use self::{
    board::{Changed, NewTask, TaskAction},
    config::{TeamsConfig, TeamsConfigError},
    error::TeamError,
    mailbox::NewMessage,
    plugin::TeamsPlugin,
    record::{
        Delivery, EVENT_KINDS, Member, Phase, Task, TaskId, TaskStatus, TeamContext, TeamMessage,
    },
    roster::{MemberStatus, NewMember},
    seat::{RosterRow, Seat, Sent, Waited},
    service::{TEAMS_SERVICE, Teams},
    team::{LEAD_NAME, Team, Violation},
    validator::VALIDATOR,
};

#[cfg(test)]
mod subagents;
