//! Waiting for the team, bounded and cancellable.

use std::{sync::Arc, time::Duration};

use playhouse_plugin_api::tool::{Tool, ToolError, ToolRun, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::seat;
use crate::{TeamError, Teams, Waited};

/// Waits for a change.
pub const WAIT_TOOL: &str = "wait_agent";

/// The shortest that a call may ask for, in milliseconds.
pub const WAIT_MS_MIN: u64 = 10_000;
/// How long a call waits unless it says otherwise, in milliseconds.
pub const WAIT_MS_DEFAULT: u64 = 30_000;
/// The longest that a call may wait, in milliseconds.
pub const WAIT_MS_MAX: u64 = 3_600_000;

const WAIT: &str = "\
Waits until something changes in the team: a message, a task, what somebody is at. Returns at once, with \
`noProgress`, if no other member works; then nothing will happen unless you give somebody a turn. It \
wakes nobody.";

const NO_PEER: &str = "\
No other member is running or being started, so waiting changes nothing. Give somebody a turn with \
followup_task, do the work yourself, or end your turn.";

#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    /// How long to wait at most, in milliseconds; 30000 if absent.
    #[schemars(range(min = 10_000, max = 3_600_000))]
    timeout_ms: Option<u64>,
}

/// The tool; its value is `{timedOut}`, or `{timedOut: false, noProgress: {reason, message}}`.
pub(super) fn tools(teams: &Teams) -> Vec<Arc<dyn Tool>> {
    let teams = teams.clone();
    vec![Arc::new(tool_fn(WAIT_TOOL, WAIT, move |args: Args, call: ToolRun| {
        let teams = teams.clone();
        async move {
            let limit = args.timeout_ms.unwrap_or(WAIT_MS_DEFAULT);
            let limit = Duration::from_millis(limit.clamp(WAIT_MS_MIN, WAIT_MS_MAX));
            let waited = match seat(&teams, &call)?.wait(limit, call.cancel()).await {
                Err(TeamError::Cancelled) => return Err(ToolError::aborted()),
                waited => waited?,
            };
            Ok(match waited {
                Waited::Changed => json!({"timedOut": false}),
                Waited::TimedOut => json!({"timedOut": true}),
                Waited::NoActivePeer => json!({
                    "timedOut": false,
                    "noProgress": {"reason": "no-active-peer", "message": NO_PEER},
                }),
            })
        }
    }))]
}
