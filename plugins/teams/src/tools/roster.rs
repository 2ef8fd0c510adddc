//! Who is in the team.

use std::sync::Arc;

use playhouse_plugin_api::tool::{Tool, ToolRun, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::seat;
use crate::{NewMember, RosterRow, Seat, TeamContext, TeamError, Teams};

/// Starts a member.
pub const SPAWN_TOOL: &str = "spawn_teammate";
/// Names all.
pub const LIST_TOOL: &str = "list_agents";
/// Ends a member's turn.
pub const INTERRUPT_TOOL: &str = "interrupt_agent";

const SPAWN: &str = "\
Starts a long-lived teammate that works in the background. Only the Lead may. Its name is lower-case \
letters, digits and single dashes, and can never be used again in this team, even if the start fails. \
With context `fresh` it knows nothing but the prompt, so write a prompt that stands alone; with `fork` \
it knows your completed turns. Returns once it is started.";

const LIST: &str = "\
Lists the Lead and all members with what they are for and at: `provisioning`, `failed`, `running`, \
`idle`, or `inactive`; one that is inactive starts again when followup_task gives it a turn.";

const INTERRUPT: &str = "\
Ends the current turn of a teammate; what waits for it stays queued. Only the Lead may. Says what it was \
at before.";

#[derive(Debug, Deserialize, JsonSchema)]
struct Spawn {
    /// How the team calls it; not `lead`.
    #[schemars(length(min = 1, max = 64))]
    name: String,
    /// What it is for, in at most 200 characters.
    #[schemars(length(min = 1, max = 200))]
    description: String,
    /// What it is to do first.
    #[schemars(length(min = 1))]
    prompt: String,
    /// What it knows; `fresh` if absent.
    context: Option<Context>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Context {
    Fresh,
    Fork,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct NoArgs {}

#[derive(Debug, Deserialize, JsonSchema)]
struct Interrupt {
    /// The teammate's name.
    target: String,
}

pub(super) fn tools(teams: &Teams) -> Vec<Arc<dyn Tool>> {
    let (spawning, listing, interrupting) = (teams.clone(), teams.clone(), teams.clone());
    let spawn = move |args: Spawn, call: ToolRun| {
        let teams = spawning.clone();
        async move {
            let Spawn { name, description, prompt, context } = args;
            let context = match context {
                Some(Context::Fork) => TeamContext::Fork,
                Some(Context::Fresh) | None => TeamContext::Fresh,
            };
            let new = NewMember::new(name, description, prompt).context(context);
            let member = seat(&teams, &call)?.spawn(new, call.cancel()).await?;
            Ok(json!({"name": member.name, "agentId": member.id, "phase": member.phase}))
        }
    };
    let list = move |_: NoArgs, call: ToolRun| {
        let teams = listing.clone();
        async move { Ok(listed(&seat(&teams, &call)?)?) }
    };
    let interrupt = move |args: Interrupt, call: ToolRun| {
        let teams = interrupting.clone();
        async move {
            let status = seat(&teams, &call)?.interrupt(&args.target)?;
            Ok(json!({"target": args.target, "previousStatus": status.as_str()}))
        }
    };
    vec![
        Arc::new(tool_fn(SPAWN_TOOL, SPAWN, spawn)),
        Arc::new(tool_fn(LIST_TOOL, LIST, list)),
        Arc::new(tool_fn(INTERRUPT_TOOL, INTERRUPT, interrupt)),
    ]
}

fn listed(seat: &Seat) -> Result<Value, TeamError> {
    let row = |row: &RosterRow| {
        let role = if row.id == *seat.id() { "lead" } else { "teammate" };
        let mut value = json!({"name": row.name, "role": role, "status": row.status.as_str()});
        if !row.description.is_empty() {
            value["description"] = row.description.as_str().into();
        }
        if let Some(error) = &row.error {
            value["error"] = error.as_str().into();
        }
        value
    };
    let members: Vec<_> = seat.roster()?.iter().map(row).collect();
    Ok(json!({"teamId": seat.id(), "you": seat.name(), "members": members}))
}
