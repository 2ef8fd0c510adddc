//! Playhouse runs LLM agents as supervised actors over durable, event-sourced sessions.
//!
//! A [`Harness`] owns a world of agents. Each [`Agent`] drives one [`Session`]: an append-only log of
//! typed events, of which model history, inbox and all else are folds. Agents stream from models,
//! call tools, spawn children, are steered and cancelled while they work, and survive crashes.
//!
//! ```
//! use playhouse::{AgentOptions, NewAgent, models::scripted::{Reply, Script, ScriptedAdapter}};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let harness = playhouse::minimal().start().await?;
//! let script = Script::sequence([Reply::text("Hello.")]);
//! harness.world().models.register(["scripted"], std::sync::Arc::new(ScriptedAdapter::new(script)))?;
//! let options = AgentOptions::new().model("scripted", "any");
//! let agent = harness.create(NewAgent::new(options)).await?;
//! assert_eq!(agent.prompt("Hi").await?.text, "Hello.");
//! harness.shutdown().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # Layout
//!
//! - [`messages`]: what actors say, and the pure machines that decide.
//! - [`plugin_api`]: what a plugin may use.
//! - [`supervisor`]: the harness, and who restarts what.
//! - [`models`][]: adapters.
//! - `stores`: the journal, and stores in memory, JSONL files and SQLite (feature `journal`; SQLite
//!   with `sqlite`).
//! - `subagents`: delegation to child agents (feature `subagents`).
//! - `policies`: retry, fallback models, timeouts, reminders, spilled outputs (feature `policies`).
//! - `context`: the token meter and images (feature `context`).
//! - `sessions`: projections, titles, statistics and search (feature `sessions`).
//! - `transfer`: export and import (feature `transfer`).
//! - `jobs`: background work with output (feature `jobs`).
//! - `budgets`: what agents and trees may spend, and a fair share of model requests (feature `budgets`).
//! - `presets`: agents composed from files (feature `presets`).
//! - `workflows`: scripts and native workflows over children (feature `workflows`).
//! - `teams`: a roster, a task board and a mailbox (feature `teams`).
//! - `acp`: the Agent Client Protocol, both sides of it (feature `acp`).
//! - `testing`: a kit for tests (feature `testing`).
//! - `stress`: a fleet under load while actors are killed (feature `stress`).
//! - `sim`: simulations of the whole harness from a seed (feature `sim`).
//!
//! The default feature `cli` is the command with all it needs; a library takes
//! `default-features = false` and adds what it uses: `http`, `journal`, `subagents`, `policies`,
//! `context`, `sessions`, `transfer`, `jobs`, `budgets`, `presets`, `workflows`, `teams`, `acp`, `sqlite`,
//! `mock-server`.

mod base;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod crash_test;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "stress")]
pub mod stress;
#[cfg(feature = "testing")]
pub mod testing;

pub use base::{Identity, base};
#[cfg(feature = "acp")]
pub use playhouse_acp as acp;
#[cfg(feature = "budgets")]
pub use playhouse_budgets as budgets;
#[cfg(feature = "context")]
pub use playhouse_context as context;
#[cfg(feature = "jobs")]
pub use playhouse_jobs as jobs;
pub use playhouse_messages as messages;
pub use playhouse_messages::{
    chunk::Failure,
    config::ModelChoice,
    content::ContentBlock,
    event::{CancelCause, Event, EventBody, NewEvent, TurnEndReason},
    id::{CallId, MessageId, SessionId},
    machine::{Recovery, Status},
    message::{Message, Source},
    outcome::Outcome,
};
pub use playhouse_models as models;
pub use playhouse_plugin_api as plugin_api;
pub use playhouse_plugin_api::{
    agent::{Agent, AgentError, Prompt},
    blueprint::Blueprint,
    cancel::CancelToken,
    creation::{AgentHandle, CreateError, NewAgent},
    fork::ForkPoint,
    options::{AgentOptions, Durability},
    plugin::{Plugin, PluginContext},
    scope::Scope,
    session::Session,
    tool::{Tool, ToolError, ToolOutput, ToolRun, tool_fn},
};
#[cfg(feature = "policies")]
pub use playhouse_policies as policies;
#[cfg(feature = "presets")]
pub use playhouse_presets as presets;
#[cfg(feature = "sessions")]
pub use playhouse_sessions as sessions;
#[cfg(feature = "journal")]
pub use playhouse_stores as stores;
#[cfg(feature = "subagents")]
pub use playhouse_subagents as subagents;
pub use playhouse_supervisor as supervisor;
pub use playhouse_supervisor::{
    harness::{Harness, HarnessBuilder, HarnessError, HarnessState},
    hibernation::HibernationPolicy,
};
#[cfg(feature = "teams")]
pub use playhouse_teams as teams;
#[cfg(feature = "transfer")]
pub use playhouse_transfer as transfer;
#[cfg(feature = "workflows")]
pub use playhouse_workflows as workflows;

/// A harness with nothing in it: no store, no prompt, no tools, no models.
pub fn minimal() -> HarnessBuilder {
    Harness::builder()
}

/// The examples of the documents, compiled and run.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/hibernation.md")]
    mod hibernation {}
    #[doc = include_str!("../docs/cookbook/README.md")]
    mod cookbook {}
    #[doc = include_str!("../docs/cookbook/tool.md")]
    mod tool {}
    #[doc = include_str!("../docs/cookbook/adapter.md")]
    mod adapter {}
    #[doc = include_str!("../docs/cookbook/hook.md")]
    mod hook {}
    #[doc = include_str!("../docs/cookbook/plugin.md")]
    mod plugin {}
    #[doc = include_str!("../docs/cookbook/sessions.md")]
    mod sessions {}
    #[doc = include_str!("../docs/cookbook/agent.md")]
    mod agent {}
    #[doc = include_str!("../docs/cookbook/children.md")]
    mod children {}
}
