//! Which failures may be retried, and how far apart. The policy belongs to a provider route.

use serde::{Deserialize, Serialize};

/// Which failures of a route may be retried, and how far apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum RetryPolicy {
    /// The listed codes, a limited number of times.
    Normal {
        /// The most retries of one step; 0 never retries.
        max_retries: u32,
        /// The failure codes that may be retried.
        retryable_codes: Vec<String>,
        /// The delays.
        backoff: Backoff,
    },
    /// Everything, without end.
    Always {
        /// The delays.
        backoff: Backoff,
    },
}

impl Default for RetryPolicy {
    fn default() -> Self {
        let codes = ["EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT"];
        Self::Normal {
            max_retries: 5,
            retryable_codes: codes.map(str::to_owned).to_vec(),
            backoff: Backoff::default(),
        }
    }
}

/// Exponential delays with jitter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backoff {
    /// The first delay in milliseconds; positive.
    pub initial_delay_ms: u64,
    /// The longest delay in milliseconds.
    pub max_delay_ms: u64,
    /// How far a delay may stray either way, 0 to 1.
    pub jitter_ratio: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial_delay_ms: 500, max_delay_ms: 10_000, jitter_ratio: 0.1 }
    }
}
