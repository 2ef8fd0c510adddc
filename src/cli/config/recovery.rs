//! What the config says of failed requests.

use playhouse_messages::{
    config::ModelChoice,
    retry::{Backoff, RetryPolicy},
};
use playhouse_policies::{FallbackError, FallbackPolicy};
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, reader::Reader};

/// `[providers.NAME.retry]`; what is absent is as by default.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryEntry {
    /// `normal`, or `always`: everything, without end.
    #[serde(default)]
    mode: Mode,
    /// The most retries of one step; 0 never retries. 5 if absent.
    max_retries: Option<u32>,
    /// The failure codes that are retried.
    codes: Option<Vec<String>>,
    /// The first delay in milliseconds; each further one is twice as long. 500 if absent.
    initial_delay_ms: Option<u64>,
    /// The longest delay in milliseconds. 10,000 if absent.
    max_delay_ms: Option<u64>,
    /// How far a delay is spread, from 0 to 1. 0.1 if absent.
    jitter_ratio: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Normal,
    Always,
}

/// `[fallback]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FallbackEntry {
    /// The routes to go on with, in order, each as `PROVIDER/MODEL`.
    routes: Spanned<Vec<Spanned<String>>>,
    /// The failure codes that lead to the next one.
    codes: Option<Spanned<Vec<String>>>,
}

impl RetryEntry {
    fn policy(self) -> RetryPolicy {
        let backoff = Backoff::default();
        let backoff = Backoff {
            initial_delay_ms: self.initial_delay_ms.unwrap_or(backoff.initial_delay_ms),
            max_delay_ms: self.max_delay_ms.unwrap_or(backoff.max_delay_ms),
            jitter_ratio: self.jitter_ratio.unwrap_or(backoff.jitter_ratio),
        };
        match (self.mode, RetryPolicy::default()) {
            // Limit and codes may be left over from the other mode.
            (Mode::Always, _) | (_, RetryPolicy::Always { .. }) => RetryPolicy::Always { backoff },
            (Mode::Normal, RetryPolicy::Normal { max_retries, retryable_codes, .. }) => {
                RetryPolicy::Normal {
                    max_retries: self.max_retries.unwrap_or(max_retries),
                    retryable_codes: self.codes.unwrap_or(retryable_codes),
                    backoff,
                }
            }
        }
    }
}

impl Reader<'_> {
    pub(super) fn retry(
        &self,
        entry: Spanned<RetryEntry>,
        key: &str,
    ) -> Result<RetryPolicy, ConfigError> {
        let span = entry.span();
        let policy = entry.into_inner().policy();
        match policy.check() {
            Ok(()) => Ok(policy),
            Err(fault) => Err(self.place(&span, key).fault(fault)),
        }
    }

    pub(super) fn fallback(&self, entry: FallbackEntry) -> Result<FallbackPolicy, ConfigError> {
        let FallbackEntry { routes, codes } = entry;
        let mut choices = Vec::new();
        for route in routes.get_ref() {
            let text = route.get_ref();
            let Some((provider, model)) = text.split_once('/') else {
                let problem = format!("expected PROVIDER/MODEL, not \"{text}\"");
                return Err(self.fault(route, "fallback.routes", problem));
            };
            let (provider, model) = (provider.to_owned(), model.to_owned());
            choices.push(ModelChoice { provider, model, reasoning_effort: None });
        }
        let refused =
            |at, key| move |error: FallbackError| self.place(&at, key).fault(error.to_string());
        let policy =
            FallbackPolicy::new(choices).map_err(refused(routes.span(), "fallback.routes"))?;
        match codes {
            None => Ok(policy),
            Some(codes) => {
                let span = codes.span();
                policy.on_codes(codes.into_inner()).map_err(refused(span, "fallback.codes"))
            }
        }
    }
}
