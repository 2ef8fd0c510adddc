//! Another turn for a child.

use std::sync::Arc;

use playhouse_messages::{content::ContentBlock, message::Source};
use playhouse_plugin_api::tool::{Tool, ToolOutput, ToolRun, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::caller;
use crate::Continuations;

/// The tool's name.
pub const SEND_TOOL: &str = "send_message";

/// The source kind of what an agent sends to a child.
pub const COORDINATOR_KIND: &str = "coordinator";

const DESCRIPTION: &str = "\
Sends a message to a sub-agent that you started in the background. It is queued as the next turn of \
that sub-agent, which remembers all of its work so far; one that has settled is resumed. Returns at \
once: you are told when the sub-agent settles. Only sub-agents that you started yourself can be sent \
to.";

#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    /// The sub-agent's id.
    subagent_id: String,
    /// What it is to know or do.
    message: String,
}

/// The tool; its value is `{messageId}`.
pub fn send_tool(service: Continuations) -> Arc<dyn Tool> {
    Arc::new(tool_fn(SEND_TOOL, DESCRIPTION, move |args: Args, call: ToolRun| {
        let service = service.clone();
        async move {
            let parent = caller(&call)?;
            let Args { subagent_id, message } = args;
            let source = Source::of_kind(COORDINATOR_KIND)
                .with("form", "relay")
                .with("senderSessionId", parent.id().as_str());
            let content = vec![ContentBlock::text(message)];
            let child = subagent_id.as_str().into();
            let id = service.followup(parent, &child, content, source, call.cancel()).await?;
            let text = format!("Queued as the next turn of sub-agent {child}.");
            Ok(ToolOutput::new(json!({"messageId": id})).showing(vec![ContentBlock::text(text)]))
        }
    }))
}
