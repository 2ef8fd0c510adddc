//! Workflows over child agents for Playhouse: scripts and native ones.
//!
//! A workflow fans work out to one-shot child agents, with limits, phases and typed results, and
//! returns one JSON value. It is a *script*, JavaScript that a model may write, or *native*, an async
//! function in Rust. Both speak to the same host, which starts, counts and disposes the children; so
//! that nothing is left, however a workflow ends.
//!
//! - [`engine`]: [`WorkflowEngine`] starts workflows.
//! - [`run`]: a started one, and its result.
//! - [`native`]: [`Cx`], what a native workflow works with. `docs/workflows.md` has the script API.
//! - [`meta`], [`request`]: what a workflow says of itself, and what it asks of a child.
//! - [`notice`]: what is told of runs. [`record`]: what is logged of them.
//! - [`tool`], [`ralph`]: the tools `workflow` and `ralph` for models.
//! - [`plugin`]: all of it as a plugin.

mod children;
pub mod config;
pub mod engine;
pub mod error;
mod host;
pub mod meta;
pub mod native;
pub mod notice;
pub mod plugin;
mod protocol;
pub mod ralph;
pub mod record;
pub mod request;
pub mod run;
mod script;
mod settlement;
pub mod tool;

pub use self::{
    config::EngineConfig,
    engine::{Live, WORKFLOW_ENGINE_SERVICE, WorkflowEngine, WorkflowRequest},
    error::WorkflowError,
    meta::{Meta, Phase},
    native::{Cx, Halt},
    notice::{AgentOutcome, NoticeKind, WorkflowNotice},
    plugin::Workflows,
    ralph::RalphConfig,
    record::{WorkflowRecord, WorkflowRecords},
    request::AgentRequest,
    run::{WorkflowResult, WorkflowRun, WorkflowStop},
    tool::ToolConfig,
};

#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
