//! How often the actors of a harness may die, and how often they came back.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    agents::{root::SUPERVISOR_LIMITS, supervisor::PART_LIMITS},
    plugin_host::RestartLimits,
    providers::PROVIDER_LIMITS,
};

/// How often each kind of actor may die before it is given up. The defaults are for actors that die
/// of faults; who kills on purpose allows more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestartPolicy {
    /// Each of the three actors of an agent: loop, session, writer. Past it the agent is disposed, and
    /// its log says why by `agent/failed`.
    pub parts: RestartLimits,
    /// The supervisor of an agent. Past it the agent is disposed likewise.
    pub supervisors: RestartLimits,
    /// The actor of a provider's route. Past it the route is closed.
    pub providers: RestartLimits,
    /// The host of a plugin. Past it the plugin stays down until it is reloaded.
    pub plugins: RestartLimits,
}

impl RestartPolicy {
    /// The same limits for all.
    pub fn uniform(limits: RestartLimits) -> Self {
        Self { parts: limits, supervisors: limits, providers: limits, plugins: limits }
    }
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            parts: PART_LIMITS,
            supervisors: SUPERVISOR_LIMITS,
            providers: PROVIDER_LIMITS,
            plugins: RestartLimits::default(),
        }
    }
}

/// What the supervisors of a harness share: the policy, and a count of what they restarted.
#[derive(Debug, Clone)]
pub struct RestartBook {
    /// The policy.
    pub policy: RestartPolicy,
    restarts: Arc<AtomicU64>,
}

impl RestartBook {
    /// Nothing has been restarted yet.
    pub fn new(policy: RestartPolicy) -> Self {
        Self { policy, restarts: Arc::default() }
    }

    /// How many successors were started.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(crate) fn restarted(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }
}
