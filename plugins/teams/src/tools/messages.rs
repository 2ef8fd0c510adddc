//! What members say to each other.

use std::sync::Arc;

use playhouse_plugin_api::tool::{Tool, ToolRun, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::seat;
use crate::{NewMessage, Teams};

/// Tells a member something.
pub const SEND_TOOL: &str = "send_message";
/// Gives a member a turn.
pub const FOLLOWUP_TOOL: &str = "followup_task";

const SEND: &str = "\
Sends a message to a member or to `lead` without waking it: one that works reads it with its next step, \
any other when it is next given a turn. With status `accepted` it is in the target's inbox, with \
`queued` it is recorded and will get there: do not send it again.";

const FOLLOWUP: &str = "\
Gives a member, or `lead`, a turn over this message after those that it was given before, and starts a \
member that is inactive. With status `queued` it is recorded and will get there: do not send it again. \
Returns without waiting for the turn.";

#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    /// The member's name, or `lead`.
    target: String,
    /// What it is to know or do.
    #[schemars(length(min = 1))]
    message: String,
}

type Of = fn(String, String) -> NewMessage;

pub(super) fn tools(teams: &Teams) -> Vec<Arc<dyn Tool>> {
    let quiet: Of = |target, text| NewMessage::quiet(target, text);
    let wakeup: Of = |target, text| NewMessage::wakeup(target, text);
    vec![sending(teams, SEND_TOOL, SEND, quiet), sending(teams, FOLLOWUP_TOOL, FOLLOWUP, wakeup)]
}

/// The tool; its value is `{messageId, status}`.
fn sending(teams: &Teams, name: &str, description: &str, message: Of) -> Arc<dyn Tool> {
    let teams = teams.clone();
    Arc::new(tool_fn(name, description, move |args: Args, call: ToolRun| {
        let teams = teams.clone();
        async move {
            let message = message(args.target, args.message);
            let sent = seat(&teams, &call)?.send(message, call.cancel()).await?;
            let status = if sent.accepted { "accepted" } else { "queued" };
            Ok(json!({"messageId": sent.message, "status": status}))
        }
    }))
}
