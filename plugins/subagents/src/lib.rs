//! Child agents for Playhouse: spawn from code and from a model-facing tool.
//!
//! A child is an agent like any other, with a session of its own; what makes it a child is that
//! another agent delegated work to it. Three relations are kept apart: the scope that *owns* it
//! (the parent's unless told otherwise; its closing disposes the child), the *runtime parent* that
//! is told of it, and the supervisor that restarts it.
//!
//! - [`provider`], [`providers`] and [`mod@request`]: the seam. A [`ChildProvider`] starts children,
//!   [`ChildProviders`] knows them all, a [`ChildRequest`] says what is wanted.
//! - [`mod@spawn`] and [`mod@fork`]: the providers of this library, which make an agent in this
//!   process: a fresh one, or one that begins with what its parent has completed.
//! - [`compose`] and [`depth`]: what is put into a child's scope, and how deep it may stand.
//! - [`structured`]: results by a JSON Schema.
//! - [`descriptor`]: who a stored session is.
//! - [`run`]: what a started child is to its starter, and what became of it.
//! - [`continuable`]: children that can be sent to again, also after a restart.
//! - [`listing`]: who an agent's children are, live and stored.
//! - [`lifecycle`]: who is told that children begin and end.
//! - [`group`]: orchestration from code: all of them, the first of them, one for each input, stages,
//!   retries.
//! - [`slots`]: how many children may live at once.
//! - [`tool`]: delegation as a tool for models.
//! - [`plugin`]: all of it as a plugin.
//!
//! ```
//! use std::sync::Arc;
//! use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
//! use playhouse_plugin_api::{creation::NewAgent, options::AgentOptions};
//! use playhouse_subagents::{ChildRequest, StopReason, spawn};
//! use playhouse_supervisor::harness::Harness;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let harness = Harness::builder().start().await?;
//! # let model = Arc::new(ScriptedAdapter::new(Script::sequence([Reply::text("42")])));
//! # harness.world().models.register(["scripted"], model)?;
//! # let options = AgentOptions::new().model("scripted", "any");
//! # let parent = harness.create(NewAgent::new(options)).await?;
//! let run = spawn(harness.world(), ChildRequest::new(&parent, "What is six times seven?")).await?;
//! let result = run.result().await?;
//! assert_eq!((result.text().as_str(), &result.stop_reason), ("42", &StopReason::Completed));
//! run.dispose().await?;
//! # harness.shutdown().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

pub mod basis;
pub mod compose;
pub mod continuable;
pub mod depth;
pub mod descriptor;
pub mod error;
pub mod fork;
pub mod group;
pub mod lifecycle;
pub mod listing;
pub mod plugin;
pub mod provider;
pub mod providers;
pub mod request;
pub mod run;
pub mod slots;
pub mod spawn;
mod start;
pub mod structured;
pub mod tool;

pub use self::{
    basis::Basis,
    compose::Composition,
    continuable::{
        CONTINUATIONS_SERVICE, ContinuationError, Continuations, StartContinuable, Started,
    },
    depth::Depth,
    error::ChildError,
    fork::{Fork, fork},
    group::{ChildFailed, ChildGroup, ChildOutcome, ChildRetries, Pipeline},
    lifecycle::{Lifecycle, ProviderNotice, RunEnded, RunId, RunStarted},
    listing::{
        Activity, ChildRow, Diagnostic, Identity, Known, ListError, identify, list_children,
        list_descendants,
    },
    plugin::{EVENT_KINDS, SUBAGENTS_SERVICE, Subagents},
    provider::{Capabilities, ChildProvider},
    providers::ChildProviders,
    request::{ChildOptions, ChildRequest},
    run::{ChildResult, Run, StopReason},
    slots::{Slot, Slots},
    spawn::{Spawn, spawn},
    tool::{Background, DepthLimit, ToolConfig, mount_tool},
};
