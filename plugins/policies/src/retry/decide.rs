//! Whether a failed request is tried again, and when.

use playhouse_messages::{
    chunk::Failure,
    retry::{Backoff, RetryPolicy},
};

/// What a policy says of a failure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision {
    /// Nothing: others may have a say.
    Delegate,
    /// To try again.
    Retry {
        /// Which retry of its chain this is, from 1.
        retry: u32,
        /// How long to wait first, in milliseconds; 0 or more.
        delay_ms: f64,
    },
}

/// Decides after `prior` retries under the same policy. `random`, from 0 to 1, spreads the delay.
///
/// A provider that asks for a time within the policy's longest delay gets exactly that. One that
/// asks for more is never asked again too early: a limited policy gives up.
///
/// ```
/// use playhouse_messages::{chunk::Failure, retry::RetryPolicy};
/// use playhouse_policies::retry::{Decision, decide};
///
/// let policy = RetryPolicy::default();
/// let busy = Failure::new("SERVER", "busy");
/// assert_eq!(decide(&policy, &busy, 0, 0.5), Decision::Retry { retry: 1, delay_ms: 500.0 });
/// assert_eq!(decide(&policy, &busy, 5, 0.5), Decision::Delegate);
/// ```
pub fn decide(policy: &RetryPolicy, failure: &Failure, prior: u32, random: f64) -> Decision {
    let retry = prior.saturating_add(1);
    let local = |backoff: &Backoff| backoff.delay_ms(retry, random);
    let asked = failure.provider_retry_after_ms;
    let delay_ms = match policy {
        RetryPolicy::Normal { max_retries, retryable_codes, backoff } => {
            if !retryable_codes.contains(&failure.code) || prior >= *max_retries {
                return Decision::Delegate;
            }
            match asked {
                Some(asked) if asked > backoff.max_delay_ms => return Decision::Delegate,
                Some(asked) => asked as f64,
                None => local(backoff),
            }
        }
        RetryPolicy::Always { backoff } => match asked {
            Some(asked) if asked <= backoff.max_delay_ms => asked as f64,
            _ => local(backoff),
        },
    };
    Decision::Retry { retry, delay_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backoff(initial_delay_ms: u64, max_delay_ms: u64, jitter_ratio: f64) -> Backoff {
        Backoff { initial_delay_ms, max_delay_ms, jitter_ratio }
    }

    fn asking(ms: u64) -> Failure {
        Failure { provider_retry_after_ms: Some(ms), ..Failure::new("RATE_LIMIT", "slow down") }
    }

    fn retry(retry: u32, delay_ms: f64) -> Decision {
        Decision::Retry { retry, delay_ms }
    }

    #[test]
    fn the_delay_never_overflows_and_may_be_nothing() {
        let policy = |jitter| RetryPolicy::Always { backoff: backoff(500, 10_000, jitter) };
        let failure = Failure::unknown("x");
        for prior in [5, 1_024, 1_100, u32::MAX - 1, u32::MAX] {
            let retry = prior.saturating_add(1);
            let expected = Decision::Retry { retry, delay_ms: 10_000.0 };
            assert_eq!(decide(&policy(0.1), &failure, prior, 1.0), expected, "{prior}");
        }
        assert_eq!(decide(&policy(1.0), &failure, 0, 0.0), retry(1, 0.0));
    }

    #[test]
    fn no_retries_are_no_retries() {
        let policy = RetryPolicy::Normal {
            max_retries: 0,
            retryable_codes: vec!["SERVER".into()],
            backoff: Backoff::default(),
        };
        assert_eq!(decide(&policy, &Failure::new("SERVER", "x"), 0, 0.5), Decision::Delegate);
    }

    mod scenario {
        use super::*;

        #[test]
        fn llm_57_58_llm_65_only_listed_codes_and_only_so_often() {
            let policy = RetryPolicy::default();
            for (code, prior, again) in [
                ("EMPTY_RESPONSE", 0, true),
                ("RATE_LIMIT", 0, true),
                ("SERVER", 0, true),
                ("TIMEOUT", 0, true),
                ("TRANSPORT", 4, true),
                ("TRANSPORT", 5, false),
                ("TRANSPORT", 6, false),
                ("AUTH", 0, false),
                ("STREAM_CLOSED", 0, false),
            ] {
                let decision = decide(&policy, &Failure::new(code, "x"), prior, 0.5);
                assert_eq!(decision != Decision::Delegate, again, "{code} after {prior}");
            }
        }

        #[test]
        fn llm_59_a_provider_s_delay_is_kept_exactly_or_not_at_all() {
            let normal = RetryPolicy::default();
            let always = RetryPolicy::Always { backoff: Backoff::default() };
            for (ms, of_normal, of_always) in [
                (1, retry(1, 1.0), retry(1, 1.0)),
                (10_000, retry(1, 10_000.0), retry(1, 10_000.0)),
                (10_001, Decision::Delegate, retry(1, 450.0)),
            ] {
                assert_eq!(decide(&normal, &asking(ms), 0, 0.0), of_normal, "{ms}");
                assert_eq!(decide(&always, &asking(ms), 0, 0.0), of_always, "{ms}");
            }
        }

        #[test]
        fn llm_60_jitter_strays_by_its_ratio_and_never_past_the_longest_delay() {
            let server = Failure::new("SERVER", "x");
            for (prior, random, delay) in [
                (0, 0.0, 450.0),
                (0, 1.0, 550.0),
                (1, 0.0, 900.0),
                (1, 1.0, 1_100.0),
                (4, 0.5, 8_000.0),
                (4, 1.0, 8_800.0),
            ] {
                let decision = decide(&RetryPolicy::default(), &server, prior, random);
                let Decision::Retry { delay_ms, .. } = decision else { panic!("{decision:?}") };
                assert!((delay_ms - delay).abs() < 1e-6, "{prior} {random}: {delay_ms}");
            }
            let capped = RetryPolicy::Always { backoff: backoff(1_000, 1_000, 0.5) };
            assert_eq!(decide(&capped, &server, 0, 1.0), retry(1, 1_000.0));
            assert_eq!(decide(&capped, &server, 3, 0.0), retry(4, 500.0));
        }
    }
}
