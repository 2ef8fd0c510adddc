//! How often something may be restarted: a window and growing delays, as a pure value.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// How often a plugin's host may die before it stays down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartLimits {
    /// The most restarts within the window; 0 never restarts.
    pub max_restarts: usize,
    /// The window.
    pub within: Duration,
    /// The delay before the first restart of a window; each further one doubles it.
    pub first_delay: Duration,
    /// The longest delay.
    pub max_delay: Duration,
}

impl Default for RestartLimits {
    fn default() -> Self {
        Self {
            max_restarts: 5,
            within: Duration::from_secs(30),
            first_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(10),
        }
    }
}

/// The deaths of one host.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    deaths: VecDeque<Instant>,
}

impl Restarts {
    /// Notes a death. Returns the delay before the restart, or `None` if the limit is passed.
    pub(crate) fn died(&mut self, now: Instant, limits: &RestartLimits) -> Option<Duration> {
        self.deaths.retain(|death| now.duration_since(*death) < limits.within);
        let earlier = self.deaths.len();
        self.deaths.push_back(now);
        if earlier >= limits.max_restarts {
            return None;
        }
        let factor = u32::try_from(earlier).ok().and_then(|n| 1_u32.checked_shl(n));
        let delay = factor.and_then(|factor| limits.first_delay.checked_mul(factor));
        Some(delay.unwrap_or(limits.max_delay).min(limits.max_delay))
    }

    pub(super) fn count(&self) -> usize {
        self.deaths.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_the_window_moves_on() {
        let limits = RestartLimits {
            max_restarts: 4,
            within: Duration::from_secs(30),
            first_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(3),
        };
        let start = Instant::now();
        let mut restarts = Restarts::default();
        for (at, delay) in
            [(0, Some(1)), (1, Some(2)), (2, Some(3)), (3, Some(3)), (4, None), (33, Some(2))]
        {
            let died = restarts.died(start + Duration::from_secs(at), &limits);
            assert_eq!(died, delay.map(Duration::from_secs), "at {at} s");
        }
    }

    #[test]
    fn delays_never_overflow_and_zero_restarts_means_none() {
        let mut limits = RestartLimits { max_restarts: 100, ..RestartLimits::default() };
        let mut restarts = Restarts::default();
        let delays = (0..100).map(|_| restarts.died(Instant::now(), &limits));
        assert_eq!(delays.last(), Some(Some(limits.max_delay)));
        limits.max_restarts = 0;
        assert_eq!(Restarts::default().died(Instant::now(), &limits), None);
    }
}
