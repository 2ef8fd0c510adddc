//! The tools of a team. They are in the scopes of its members alone, where they stand before tools of
//! the same names that all agents see. None of them is parallel: they change what the team shares, or
//! wait for it.

mod messages;
mod roster;
mod tasks;
mod wait;

use std::sync::Arc;

use playhouse_plugin_api::tool::{Tool, ToolError, ToolRun};

use crate::{Seat, Teams};

pub use self::{
    messages::{FOLLOWUP_TOOL, SEND_TOOL},
    roster::{INTERRUPT_TOOL, LIST_TOOL, SPAWN_TOOL},
    tasks::{TASK_CREATE_TOOL, TASK_GET_TOOL, TASK_LIST_TOOL, TASK_UPDATE_TOOL},
    wait::{WAIT_MS_DEFAULT, WAIT_MS_MAX, WAIT_MS_MIN, WAIT_TOOL},
};

/// All of them.
pub(crate) fn team_tools(teams: &Teams) -> Vec<Arc<dyn Tool>> {
    let tools = [roster::tools(teams), messages::tools(teams), wait::tools(teams)];
    tools.into_iter().flatten().chain(tasks::tools(teams)).collect()
}

fn seat(teams: &Teams, call: &ToolRun) -> Result<Seat, ToolError> {
    let agent = call.agent().ok_or_else(|| ToolError::new("only an agent is in a team"))?;
    Ok(teams.seat(agent)?)
}
