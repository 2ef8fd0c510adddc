//! The tools by which models talk to continuable children, and these to their parents.
//!
//! Where a delegation tool starts such children, all agents of the harness see `send_message`, `interrupt_agent`, `list_agents` and `wait_agent`; `report` is in
//! the scope of continuable children alone, and so exempt from their tool filters. None of them is
//! parallel: they change what the caller owns, or wait for it.

mod interrupt;
mod list;
mod report;
mod send;
mod wait;

use std::sync::Arc;

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    agent::Agent,
    plugin::PluginContext,
    tool::{Tool, ToolError, ToolRun},
};

pub use self::{
    interrupt::{INTERRUPT_TOOL, interrupt_tool},
    list::{LIST_TOOL, list_tool},
    report::{REPORT_ORDER, REPORT_SECTION, REPORT_TOOL, report_tool},
    send::{SEND_TOOL, send_tool},
    wait::{WAIT_MS_DEFAULT, WAIT_MS_MAX, WAIT_TOOL, wait_tool},
};
use super::{Continuations, ReportDelivery};

/// Registers them until the plugin's scope closes: those of parents only if models start such children,
/// since without any they would but cost tokens.
pub(super) fn register(
    ctx: &PluginContext,
    service: &Continuations,
    by_models: bool,
) -> Result<(), Failure> {
    let world = ctx.world()?;
    report::contribute(ctx, &world, service, ReportDelivery::NextStep)?;
    if !by_models {
        return Ok(());
    }
    let tools: [Arc<dyn Tool>; 4] = [
        send_tool(service.clone()),
        interrupt_tool(service.clone()),
        list_tool(service.clone()),
        wait_tool(service.clone()),
    ];
    for tool in tools {
        ctx.tie(world.tools.registry().register(&world.scope, tool)?)?;
    }
    Ok(())
}

fn caller(call: &ToolRun) -> Result<&Agent, ToolError> {
    call.agent().ok_or_else(|| ToolError::new("only an agent has sub-agents"))
}
