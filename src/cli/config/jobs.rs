//! Background jobs.

use std::time::Duration;

use playhouse_jobs::{Delivery, JobsConfig, JobsPlugin, notice::UnknownDelivery};
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, reader::Reader};

/// `[jobs]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct JobsEntry {
    /// How many jobs of one agent may run at once; positive. 10 if absent.
    max_per_owner: Option<Spanned<i64>>,
    /// How long `job_output` waits unless told, in milliseconds; positive. 30,000 if absent.
    wait_timeout_ms: Option<Spanned<i64>>,
    /// How long it waits at most, in milliseconds; not less than that. 600,000 if absent.
    max_wait_timeout_ms: Option<Spanned<i64>>,
    /// How an agent is told that a job has ended: `wakeup` wakes an idle one, `quiet` waits for its
    /// next step. `wakeup` if absent.
    completion_delivery: Option<Spanned<String>>,
    /// How often ends may wake an agent until a person speaks to it again; 0 or more. 3 if absent.
    max_consecutive_wakes: Option<Spanned<i64>>,
}

impl Reader<'_> {
    pub(super) fn jobs(&self, entry: &Spanned<JobsEntry>) -> Result<JobsConfig, ConfigError> {
        let JobsEntry {
            max_per_owner,
            wait_timeout_ms,
            max_wait_timeout_ms,
            completion_delivery,
            max_consecutive_wakes,
        } = entry.get_ref();
        let mut config = JobsConfig::default();
        if let Some(at) = max_per_owner {
            let jobs = self.positive(at, "jobs.max_per_owner")?;
            config.max_per_owner = usize::try_from(jobs).unwrap_or(usize::MAX);
        }
        if let Some(at) = wait_timeout_ms {
            config.wait_timeout = Duration::from_millis(self.positive(at, "jobs.wait_timeout_ms")?);
        }
        if let Some(at) = max_wait_timeout_ms {
            let longest = self.positive(at, "jobs.max_wait_timeout_ms")?;
            config.max_wait_timeout = Duration::from_millis(longest);
        }
        if let Some(at) = completion_delivery {
            let delivery: Result<Delivery, UnknownDelivery> = at.get_ref().parse();
            config.completion_delivery = delivery
                .map_err(|fault| self.fault(at, "jobs.completion_delivery", fault.to_string()))?;
        }
        if let Some(at) = max_consecutive_wakes {
            config.max_consecutive_wakes = u32::try_from(*at.get_ref()).map_err(|_| {
                self.fault(at, "jobs.max_consecutive_wakes", "must be a number, 0 or more")
            })?;
        }
        let checked = JobsPlugin::new(config.clone());
        checked.map_err(|fault| self.fault(entry, "jobs", fault.to_string()))?;
        Ok(config)
    }
}
