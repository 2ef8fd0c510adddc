//! Long-lived teams.

use std::time::Duration;

use playhouse_teams::TeamsConfig;
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, PluginConfig, reader::Reader};

/// `[teams]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TeamsEntry {
    /// How many members a team may ever have beside its Lead; positive. 8 if absent.
    max_members: Option<Spanned<i64>>,
    /// How many tasks a board may hold; positive. 256 if absent.
    max_tasks: Option<Spanned<i64>>,
    /// How many messages may wait for one member; positive. 64 if absent.
    max_pending_messages: Option<Spanned<i64>>,
    /// How many bytes a message may have, as JSON and with its frame; positive. 65,536 if absent.
    max_message_bytes: Option<Spanned<i64>>,
    /// How long the end of a Lead waits for what its team has under way, in milliseconds; positive, and
    /// below 2^31. 5,000 if absent.
    disposal_timeout_ms: Option<Spanned<i64>>,
}

impl Reader<'_> {
    /// Teams, if the plugin whose sub-agents their members are is not left out.
    pub(super) fn teams(
        &self,
        entry: &Spanned<TeamsEntry>,
        plugins: Option<&[PluginConfig]>,
    ) -> Result<TeamsConfig, ConfigError> {
        if plugins.is_some_and(|named| named.iter().all(|plugin| plugin.name != "subagents")) {
            let problem = "a member is a sub-agent: name the plugin subagents, too, or remove this";
            return Err(self.fault(entry, "teams", problem));
        }
        let TeamsEntry {
            max_members,
            max_tasks,
            max_pending_messages,
            max_message_bytes,
            disposal_timeout_ms,
        } = entry.get_ref();
        let mut config = TeamsConfig::default();
        for (at, key, field) in [
            (max_members, "teams.max_members", &mut config.max_members),
            (max_tasks, "teams.max_tasks", &mut config.max_tasks),
            (max_pending_messages, "teams.max_pending_messages", &mut config.max_pending_messages),
            (max_message_bytes, "teams.max_message_bytes", &mut config.max_message_bytes),
        ] {
            if let Some(at) = at {
                *field = usize::try_from(self.positive(at, key)?).unwrap_or(usize::MAX);
            }
        }
        if let Some(at) = disposal_timeout_ms {
            let timeout = self.positive(at, "teams.disposal_timeout_ms")?;
            config.disposal_timeout = Duration::from_millis(timeout);
        }
        config.check().map_err(|fault| self.fault(entry, "teams", fault.to_string()))?;
        Ok(config)
    }
}
