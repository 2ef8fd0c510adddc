//! The table `[hibernation]`.

use std::time::Duration;

use playhouse_supervisor::hibernation::HibernationPolicy;
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, reader::Reader};

/// `[hibernation]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HibernationEntry {
    /// How long an agent of the config rests before it gives up its memory, in milliseconds;
    /// positive.
    idle_after_ms: Spanned<i64>,
    /// How many fall asleep at the same time; positive. 64 if absent.
    at_once: Option<Spanned<i64>>,
}

impl Reader<'_> {
    pub(super) fn hibernation(
        &self,
        entry: &HibernationEntry,
    ) -> Result<HibernationPolicy, ConfigError> {
        let idle = self.positive(&entry.idle_after_ms, "hibernation.idle_after_ms")?;
        let policy = HibernationPolicy::after(Duration::from_millis(idle));
        let Some(at_once) = &entry.at_once else { return Ok(policy) };
        let agents = self.positive(at_once, "hibernation.at_once")?;
        Ok(policy.at_once(usize::try_from(agents).unwrap_or(usize::MAX)))
    }
}
