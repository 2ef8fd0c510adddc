//! A child's word to its parent.

use std::sync::Arc;

use futures::FutureExt;
use playhouse_messages::{chunk::Failure, content::ContentBlock};
use playhouse_plugin_api::{
    agent::Agent,
    plugin::PluginContext,
    prompt::Section,
    tool::{Tool, ToolOutput, ToolRun, tool_fn},
    world::World,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::caller;
use crate::{Continuations, continuable::ReportDelivery};

/// The tool's name.
pub const REPORT_TOOL: &str = "report";

/// The section that says how to use it.
pub const REPORT_SECTION: &str = "tool:report";

/// Where that section stands among the others.
pub const REPORT_ORDER: f64 = 117.0;

const DESCRIPTION: &str = "\
Reports to the agent that delegated to you. It sees the text and nothing else of your work, so write \
a result that stands alone. Your turn goes on.";

const SECTION: &str = "\
Before you finish, call `report` once with a self-contained result. The agent that delegated to you \
does not see your transcript: what is not in the report is lost to it. Reporting does not end your \
turn.";

#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    /// The result, with all facts that the reader needs.
    output: String,
}

/// The tool; its value is `{messageId}`. It works in continuable children alone.
pub fn report_tool(service: Continuations, delivery: ReportDelivery) -> Arc<dyn Tool> {
    Arc::new(tool_fn(REPORT_TOOL, DESCRIPTION, move |args: Args, call: ToolRun| {
        let service = service.clone();
        async move {
            let content = vec![ContentBlock::text(args.output)];
            let id = service.report(caller(&call)?, content, delivery).await?;
            let text = "Your delegator has the report.";
            Ok(ToolOutput::new(json!({"messageId": id})).showing(vec![ContentBlock::text(text)]))
        }
    }))
}

/// Puts tool and section into every continuable child.
pub(super) fn contribute(
    ctx: &PluginContext,
    world: &Arc<World>,
    service: &Continuations,
    delivery: ReportDelivery,
) -> Result<(), Failure> {
    let tool = report_tool(service.clone(), delivery);
    let world = world.clone();
    let contribution = Arc::new(move |child: Agent| {
        let (tool, world) = (tool.clone(), world.clone());
        async move {
            let section = Section::text(REPORT_SECTION, REPORT_ORDER, SECTION);
            let section = world.prompts.section(child.scope(), section)?;
            Ok(vec![section, world.tools.registry().register(child.scope(), tool)?])
        }
        .boxed()
    });
    service.register_set_up(&ctx.scope, contribution)?;
    Ok(())
}
