//! Which failures may be retried, and how far apart. The policy belongs to a provider route.

use std::hash::{DefaultHasher, Hash, Hasher};

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

impl RetryPolicy {
    /// Checks that delays and codes are usable.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        if let Self::Normal { retryable_codes: codes, .. } = self {
            let repeated = |(at, code): (usize, &String)| codes[..at].contains(code);
            if codes.iter().any(String::is_empty) || codes.iter().enumerate().any(repeated) {
                return Err("retryable codes must be unique and not empty");
            }
        }
        let (Self::Normal { backoff, .. } | Self::Always { backoff }) = self;
        if backoff.initial_delay_ms == 0
            || backoff.initial_delay_ms > backoff.max_delay_ms
            || backoff.max_delay_ms > i32::MAX as u64
        {
            return Err(
                "delays must be positive, the initial at most the maximum, which is at most 2147483647",
            );
        }
        if !(0.0..=1.0).contains(&backoff.jitter_ratio) {
            return Err("the jitter ratio must be from 0 to 1");
        }
        Ok(())
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

impl Backoff {
    /// How long to wait before a retry, counted from 1, in milliseconds. It doubles from retry to
    /// retry, up to the longest, and strays by the jitter either way: `random` is from 0 to 1.
    ///
    /// ```
    /// use playhouse_messages::retry::Backoff;
    ///
    /// let backoff = Backoff { initial_delay_ms: 500, max_delay_ms: 3_000, jitter_ratio: 0.1 };
    /// let delays = [1, 2, 3, 4].map(|retry| backoff.delay_ms(retry, 0.5));
    /// assert_eq!(delays, [500.0, 1_000.0, 2_000.0, 3_000.0]);
    /// ```
    pub fn delay_ms(&self, retry: u32, random: f64) -> f64 {
        let Self { initial_delay_ms, max_delay_ms, jitter_ratio } = *self;
        let longest = max_delay_ms as f64;
        // Far out the power is infinite, and the longest delay counts.
        let doublings = i32::try_from(retry.saturating_sub(1)).unwrap_or(i32::MAX);
        let delay = (initial_delay_ms as f64 * 2f64.powi(doublings)).min(longest);
        (delay * (1.0 - jitter_ratio + 2.0 * jitter_ratio * random)).min(longest).max(0.0)
    }
}

/// A number from 0 to 1 to spread a delay by: as random as the id of a chain of retries, and the same
/// for the same one.
pub fn spread(id: &str, prior: u32) -> f64 {
    let mut hasher = DefaultHasher::new();
    (id, prior).hash(&mut hasher);
    hasher.finish() as f64 / u64::MAX as f64
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial_delay_ms: 500, max_delay_ms: 10_000, jitter_ratio: 0.1 }
    }
}
