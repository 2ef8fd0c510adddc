//! A model that answers as a recorded session was answered.
//!
//! Each `assistant/message` and `assistant/attempt` of a log holds the whole stream of one call, so
//! a log is a script: the calls of a session get the recorded streams in order, a failed attempt
//! and its retry being two calls. With [`ReplayAdapter::strict`] each request is also compared with
//! the recorded one, which makes a recorded session a regression test of all that goes into
//! requests: prompts, tools, their results, and the loop itself.
//!
//! ```
//! use playhouse_models::replay::{Recording, ReplayAdapter};
//!
//! # let jsonl = "";
//! let recording = Recording::from_jsonl(jsonl)?;
//! let model = ReplayAdapter::new([recording]).strict();
//! // Register it, run the session anew, and then:
//! model.check_consumed()?;
//! # Ok::<(), playhouse_models::replay::ReplayError>(())
//! ```

mod adapter;
mod difference;
mod entry;
mod error;
mod performance;
mod placeholder;
mod recording;
#[cfg(test)]
mod tests;

pub use adapter::{Pacing, ReplayAdapter};
pub use entry::Entry;
pub use error::ReplayError;
pub use recording::{Recording, Unfinished};
