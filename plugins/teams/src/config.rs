//! How large a team may be.

use std::time::Duration;

use playhouse_messages::chunk::Failure;

/// The longest that a disposal may be configured to wait: 2^31 - 1 ms.
pub const DISPOSAL_TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// What bounds each team of a harness.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TeamsConfig {
    /// Members beside the Lead. Every name that was ever used counts, those of failed members too.
    /// Positive.
    pub max_members: usize,
    /// Tasks that are not deleted; positive.
    pub max_tasks: usize,
    /// Messages that wait for one member; positive.
    pub max_pending_messages: usize,
    /// Bytes of a message as JSON, framed as its target gets it; positive.
    pub max_message_bytes: usize,
    /// How long a Lead's disposal waits for spawns, for messages on their way and for its members, each;
    /// above zero, and at most [`DISPOSAL_TIMEOUT_MAX`].
    pub disposal_timeout: Duration,
}

impl Default for TeamsConfig {
    fn default() -> Self {
        Self {
            max_members: 8,
            max_tasks: 256,
            max_pending_messages: 64,
            max_message_bytes: 65_536,
            disposal_timeout: Duration::from_secs(5),
        }
    }
}

/// Why a [`TeamsConfig`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TeamsConfigError {
    /// Nothing would ever fit.
    #[error("teams: `{key}` must be positive; leave the plugin out for no teams")]
    NotPositive {
        /// The field.
        key: &'static str,
    },
    /// The wait makes no sense.
    #[error(
        "teams: `disposal_timeout` ({timeout:?}) must be above zero and at most \
         {DISPOSAL_TIMEOUT_MAX:?}"
    )]
    DisposalTimeout {
        /// What was configured.
        timeout: Duration,
    },
}

impl TeamsConfigError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        "INVALID_CONFIG"
    }
}

impl From<TeamsConfigError> for Failure {
    fn from(error: TeamsConfigError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl TeamsConfig {
    /// Whether it makes sense.
    ///
    /// # Errors
    ///
    /// The first field that does not.
    pub fn check(&self) -> Result<(), TeamsConfigError> {
        let sizes = [
            ("max_members", self.max_members),
            ("max_tasks", self.max_tasks),
            ("max_pending_messages", self.max_pending_messages),
            ("max_message_bytes", self.max_message_bytes),
        ];
        if let Some((key, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(TeamsConfigError::NotPositive { key });
        }
        let timeout = self.disposal_timeout;
        if timeout.is_zero() || timeout > DISPOSAL_TIMEOUT_MAX {
            return Err(TeamsConfigError::DisposalTimeout { timeout });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused() {
        let with = |change: fn(&mut TeamsConfig)| {
            let mut config = TeamsConfig::default();
            change(&mut config);
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(|_| ()), Ok(()));
        for (change, named) in [
            ((|config| config.max_members = 0) as fn(&mut TeamsConfig), "max_members"),
            (|config| config.max_tasks = 0, "max_tasks"),
            (|config| config.max_pending_messages = 0, "max_pending_messages"),
            (|config| config.max_message_bytes = 0, "max_message_bytes"),
            (|config| config.disposal_timeout = Duration::ZERO, "disposal_timeout"),
            (|config| config.disposal_timeout = Duration::MAX, "disposal_timeout"),
        ] {
            let refused = with(change).unwrap_err();
            assert!(refused.contains(named), "{refused}");
        }
    }
}
