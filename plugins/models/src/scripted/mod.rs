//! A model that plays a script.
//!
//! A script is rules or a sequence. Rules are matched against each request and the first that fits
//! answers; they hold no state, so any number of agents share them. A sequence is a queue of replies
//! for tests, which also records every request.
//!
//! ```
//! use playhouse_models::scripted::{Reply, Rule, Script, When};
//!
//! let script = Script::new()
//!     .rule(When::default().user_contains("weather"), Reply::call("forecast", r#"{"days":2}"#))
//!     .reply(Reply::text("I can only talk about the weather."));
//! let same = Script::from_toml(
//!     r#"
//!     [[rules]]
//!     when = { user_contains = "weather" }
//!     reply = { calls = [{ name = "forecast", arguments = { days = 2 } }] }
//!
//!     [[rules]]
//!     reply = { text = "I can only talk about the weather." }
//!     "#,
//! )?;
//! assert_eq!(script, same);
//! # Ok::<(), playhouse_models::scripted::ScriptError>(())
//! ```

mod adapter;
mod behaviours;
mod conversation;
mod plan;
mod reply;
mod script;
mod stage;
mod streamed;
mod template;
#[cfg(test)]
mod tests;

pub use adapter::ScriptedAdapter;
#[cfg(feature = "mock-server")]
pub(crate) use conversation::Turn;
pub use conversation::{Conversation, ToolOutcome};
#[cfg(any(test, feature = "mock-server"))]
pub(crate) use plan::Step;
pub use reply::{Arguments, Call, Chunking, Fault, FaultKind, Reply, UsageSpec, Wire};
pub use script::{Rule, Script, ScriptError, When};
pub use stage::{Gate, Stage};
pub use streamed::Streamed;
