//! Model adapters for Playhouse.
//!
//! - [`scripted`]: a model that plays a script, in process. For tests, demos and load.
//! - `openai_compatible` (feature `http`): chat completions over HTTP, with a DeepSeek profile.
//! - `mock_server` (feature `mock-server`): a server that speaks chat completions from the same
//!   scripts.

pub mod scripted;
