//! A delegation that goes on after its call.

use playhouse_messages::content::ContentBlock;
use playhouse_plugin_api::tool::{ToolError, ToolOutput};
use serde_json::json;

use crate::{ChildRequest, Continuations, StartContinuable};

/// Answers once the child has accepted its prompt; from then on the call's cancel does not reach it.
pub(super) async fn start(
    continuations: &Continuations,
    provider: &str,
    label: String,
    request: ChildRequest,
) -> Result<ToolOutput, ToolError> {
    let start = StartContinuable { label, child_id: None, request };
    let started = continuations.start(provider, start).await?;
    let id = started.child;
    let text = format!("sub-agent {id} works in the background; you will be told when it is done");
    let value = json!({"kind": "continuable", "subagentId": id});
    Ok(ToolOutput::new(value.clone()).showing(vec![ContentBlock::text(text)]).with_meta(value))
}
