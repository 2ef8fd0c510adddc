//! What bounds the workflows of an engine.

use std::time::Duration;

use playhouse_subagents::spawn::SPAWN;

use crate::WorkflowError;

/// The most child agents at once that are chosen when the config does not say.
const AUTO_CONCURRENT_MAX: usize = 16;

/// The longest duration that a limit takes: 2^31 - 1 milliseconds.
const DURATION_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// What bounds the workflows of an engine. Each run has these limits of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Who starts children unless a request says. Default `spawn`.
    pub provider: String,
    /// How many children of one run may live at once; 0 stands for the number of cores less two, at
    /// least 1 and at most 16. Default 0.
    pub max_concurrent_agents: usize,
    /// How many children one run may start. Default 1,000.
    pub max_total_agents: u32,
    /// How many items one `parallel` or `pipeline` takes. Default 4,096.
    pub max_items_per_call: usize,
    /// How long a script may compute without awaiting anything of the host's. Default 5 s. A few loops
    /// of the interpreter's own hear no interrupt: then the run ends after twice this time, and its
    /// thread, which is counted as a worker, when the loop does.
    pub sync_timeout: Duration,
    /// How long a cancelled run may take to end by itself. Default 5 s.
    pub dispose_grace: Duration,
    /// How much memory a script may use, in bytes, and about how large its result may be. Default 64 MiB.
    /// What it passes to one `agent` may have 1 MiB.
    pub memory_bytes: usize,
    /// How deep a script's calls may nest, in bytes of stack. Default 512 KiB, at most 8 MiB.
    pub stack_bytes: usize,
    /// How long a script may be, in bytes. Default 256 KiB.
    pub script_bytes: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            provider: SPAWN.to_owned(),
            max_concurrent_agents: 0,
            max_total_agents: 1_000,
            max_items_per_call: 4_096,
            sync_timeout: Duration::from_secs(5),
            dispose_grace: Duration::from_secs(5),
            memory_bytes: 64 << 20,
            stack_bytes: 512 << 10,
            script_bytes: 256 << 10,
        }
    }
}

impl EngineConfig {
    /// How many children of a run may live at once.
    pub fn concurrency(&self) -> usize {
        match self.max_concurrent_agents {
            0 => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                cores.saturating_sub(2).clamp(1, AUTO_CONCURRENT_MAX)
            }
            set => set,
        }
    }

    /// Whether these limits can be kept.
    ///
    /// # Errors
    ///
    /// [`WorkflowError::Config`] names all that cannot.
    pub fn check(&self) -> Result<(), WorkflowError> {
        let duration = |given: Duration| !given.is_zero() && given <= DURATION_MAX;
        let rules = [
            (is_name(&self.provider), "provider must be a name without spaces around it"),
            (self.max_total_agents > 0, "max_total_agents must be positive"),
            (self.max_items_per_call > 0, "max_items_per_call must be positive"),
            (duration(self.sync_timeout), "sync_timeout must be 1 to 2147483647 ms"),
            (duration(self.dispose_grace), "dispose_grace must be 1 to 2147483647 ms"),
            (self.memory_bytes >= 1 << 20, "memory_bytes must be at least 1048576"),
            (
                (64 << 10..=8 << 20).contains(&self.stack_bytes),
                "stack_bytes must be 65536 to 8388608",
            ),
            (self.script_bytes > 0, "script_bytes must be positive"),
        ];
        let broken: Vec<_> =
            rules.into_iter().filter(|(kept, _)| !kept).map(|(_, rule)| rule).collect();
        match broken.is_empty() {
            true => Ok(()),
            false => Err(WorkflowError::Config(broken.join("; "))),
        }
    }
}

/// Whether it can be the name of a provider.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.trim() == text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_limits_that_cannot_be_kept_are_named_at_once() {
        assert!(EngineConfig::default().check().is_ok());
        assert!((1..=AUTO_CONCURRENT_MAX).contains(&EngineConfig::default().concurrency()));
        let bad = EngineConfig {
            provider: " spawn".to_owned(),
            max_total_agents: 0,
            sync_timeout: Duration::ZERO,
            max_concurrent_agents: 3,
            ..EngineConfig::default()
        };
        let text = bad.check().unwrap_err().to_string();
        for name in ["provider", "max_total_agents", "sync_timeout"] {
            assert!(text.contains(name), "{text}");
        }
        assert_eq!(bad.concurrency(), 3);
    }
}
