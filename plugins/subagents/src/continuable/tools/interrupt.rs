//! An end to a descendant's turn.

use std::sync::Arc;

use playhouse_messages::content::ContentBlock;
use playhouse_plugin_api::tool::{Tool, ToolOutput, ToolRun, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::caller;
use crate::{Continuations, continuable::Authority};

/// The tool's name.
pub const INTERRUPT_TOOL: &str = "interrupt_agent";

const DESCRIPTION: &str = "\
Interrupts the current turn of a sub-agent below you, at any depth. Messages that wait for it stay \
queued until it is sent another one, and its own sub-agents go on. Returns at once; a sub-agent that \
does not run is left as it is.";

#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    /// The sub-agent's id.
    agent_id: String,
}

/// The tool; its value is `{accepted}`.
pub fn interrupt_tool(service: Continuations) -> Arc<dyn Tool> {
    Arc::new(tool_fn(INTERRUPT_TOOL, DESCRIPTION, move |args: Args, call: ToolRun| {
        let service = service.clone();
        async move {
            let authority = Authority::Ancestor(caller(&call)?.clone());
            service.interrupt(&args.agent_id.as_str().into(), authority)?;
            let text = format!("The interrupt of {} is accepted.", args.agent_id);
            Ok(ToolOutput::new(json!({"accepted": true})).showing(vec![ContentBlock::text(text)]))
        }
    }))
}
