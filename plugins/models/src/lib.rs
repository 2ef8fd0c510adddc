//! Model adapters for Playhouse.
//!
//! - [`scripted`]: a model that plays a script, in process. For tests, demos and load.
//! - `openai_compatible` (feature `http`): chat completions over HTTP, with a DeepSeek profile.
//! - `anthropic` (feature `http`): the Messages API of Anthropic.
//! - `EnvModel` (feature `http`): one of these two if the environment has a key, else a script.
//! - `http` (feature `http`): what an adapter of one's own over HTTP can use, too.
//! - `mock_server` (feature `mock-server`): a server that speaks both from the same scripts.
//! - [`replay`]: a model that answers as a recorded session was answered. For regression tests.

// A test that unwraps nothing says less.
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(feature = "http")]
pub mod anthropic;
#[cfg(feature = "http")]
mod env_model;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mock-server")]
pub mod mock_server;
#[cfg(feature = "http")]
pub mod openai_compatible;
mod plain_wire;
pub mod replay;
pub mod scripted;

#[cfg(feature = "http")]
pub use env_model::EnvModel;

#[cfg(test)]
mod contract;
#[cfg(all(test, feature = "http"))]
mod messages_over_http;
#[cfg(all(test, feature = "http"))]
mod over_http;
