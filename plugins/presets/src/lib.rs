//! Agents composed from files for Playhouse: presets and persona.
//!
//! A preset is a directory with a [`composition`] file, whose rows say who an agent is, what it is
//! told, which tools it sees and which model it uses, and perhaps a file with its name for people.
//! It is read anew for each agent, mounted once for all agents that are composed from the same
//! content, and immutable: an edit makes a new *generation* for agents to come, and those that live
//! keep theirs.
//!
//! - [`composition`]: what the files say, parsed and checked.
//! - [`discovery`]: which presets there are, and what is wrong with them.
//! - [`generation`]: a mounted composition and who uses it.
//! - [`service`]: agents made, resumed, forked and switched with presets, [`Presets`].
//! - [`rows`]: rows of an embedder's own.
//! - [`author`]: presets copied and removed.
//! - [`selected`]: which preset a log says it has.
//! - [`plugin`]: all of it as a plugin.
//!
//! ```
//! use std::sync::Arc;
//! use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
//! use playhouse_plugin_api::{creation::NewAgent, options::AgentOptions};
//! use playhouse_presets::{PRESETS_SERVICE, Presets, PresetsPlugin, Root};
//! use playhouse_supervisor::harness::Harness;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let dir = tempfile::tempdir()?;
//! std::fs::create_dir(dir.path().join("reviewer"))?;
//! let rows = r#"
//!     [[row]]
//!     kind = "persona"
//!     text = "You review code."
//!
//!     [[row]]
//!     kind = "model"
//!     provider = "scripted"
//!     model = "any"
//! "#;
//! std::fs::write(dir.path().join("reviewer/composition.toml"), rows)?;
//! let plugin = PresetsPlugin::new([Root::user(dir.path())]);
//! let harness = Harness::builder().plugin(plugin).start().await?;
//! # let model = Arc::new(ScriptedAdapter::new(Script::sequence([Reply::text("Looks good.")])));
//! # harness.world().models.register(["scripted"], model)?;
//! let presets = harness.world().services.require::<Presets>(PRESETS_SERVICE)?;
//! let new = presets.compose("reviewer", NewAgent::new(AgentOptions::new())).await?;
//! let agent = harness.create(new).await?;
//! assert_eq!(agent.prompt("What do you think?").await?.text, "Looks good.");
//! # harness.shutdown().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

pub mod author;
pub mod composition;
pub mod discovery;
pub mod error;
pub mod generation;
pub mod plugin;
pub mod rows;
pub mod selected;
pub mod service;
#[cfg(test)]
mod subagents;

pub use self::{
    composition::{Composition, Row},
    discovery::{Preset, Root, State, Trust},
    error::PresetError,
    generation::Composed,
    plugin::{EVENT_KINDS, PRESETS_SERVICE, PresetsPlugin},
    rows::{RowContext, RowFactories},
    selected::{SELECTED_KIND, selected_preset},
    service::Presets,
};
