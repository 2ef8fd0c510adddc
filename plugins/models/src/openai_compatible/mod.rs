//! Chat completions over HTTP, as OpenAI defined them and many others speak them.
//!
//! [`Config::deepseek`] is DeepSeek's official service; [`Config::new`] is for any other endpoint.
//!
//! Each call makes one request and never retries: that is the loop's decision, from the failure's
//! code. One watchdog covers connecting and reading, and runs only while the adapter waits.

mod adapter;
mod config;
mod decode;
mod encode;
mod errors;
mod image_parts;
#[cfg(test)]
mod transcripts;
mod translate;
mod wire;

pub use adapter::OpenAiCompatible;
pub use config::{Config, Dialect, ModelEntry, Thinking};

pub use crate::http::{ConfigError, DEFAULT_IDLE_TIMEOUT, KeySource, Secret, SecretError};
