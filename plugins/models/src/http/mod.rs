//! What adapters over HTTP share, also those of others: keys, connections, the watchdog, and the framing of answers. What
//! the frames mean is each adapter's own affair.

mod config;
mod exchange;
mod retry_after;
mod secret;
mod sse;
#[cfg(test)]
pub(crate) mod transcript;

pub use config::{ConfigError, DEFAULT_IDLE_TIMEOUT, KeySource};
pub(crate) use config::{Lookup, check_idle_timeout, process_environment};
pub(crate) use exchange::{Connection, Exchange, ResponseFacts, Wire, flatten};
pub use secret::{Secret, SecretError};
pub use sse::SseDecoder;
