//! The Messages API of Anthropic, over HTTP.
//!
//! [`Config::anthropic`] is the official service; [`Config::new`] is for other endpoints that speak
//! its wire.
//!
//! Tools and system prompt stand before the messages of a request, and settings after them, so that
//! consecutive requests share everything up to the last old message. Caching is asked for beside the
//! messages: a mark within them would have to move, and so change old bytes.
//!
//! Each call makes one request and never retries. `pause_turn`, which only tools that Anthropic runs
//! itself give rise to, is an error like any stop reason that nothing maps: this adapter declares no
//! such tools.

mod adapter;
mod config;
mod decode;
mod encode;
mod errors;
mod frame;
mod replay;
#[cfg(test)]
mod transcripts;
mod translate;
mod wire;

pub use adapter::Anthropic;
pub use config::{Config, ModelEntry, Thinking};

pub use crate::http::{ConfigError, DEFAULT_IDLE_TIMEOUT, KeySource, Secret, SecretError};
