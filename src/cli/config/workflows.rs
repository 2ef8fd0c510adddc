//! Settings of the plugin `workflows`.

use std::time::Duration;

use playhouse_workflows::{EngineConfig, RalphConfig, ToolConfig, Workflows};
use serde::Deserialize;

/// How many rounds a loop of the command's tool `ralph` may have unless the config says.
const RALPH_ROUNDS: u32 = 64;

/// `[[plugin]]` of name `workflows`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::cli) struct WorkflowsSettings {
    /// Who starts the children; `spawn` if absent.
    provider: Option<String>,
    /// How many children of one run may live at once; by the number of cores if absent or 0.
    max_concurrent_agents: Option<usize>,
    /// How many children one run may start; 1000 if absent.
    max_total_agents: Option<u32>,
    /// How many items one `parallel` or `pipeline` takes; 4096 if absent.
    max_items_per_call: Option<usize>,
    /// How long a script may compute without awaiting an agent; 5000 if absent.
    sync_timeout_ms: Option<u64>,
    /// How long a cancelled run may take to end by itself; 5000 if absent.
    dispose_grace_ms: Option<u64>,
    /// How much memory a script may use; 67108864 if absent.
    memory_bytes: Option<usize>,
    /// The name of the tool that runs scripts; `workflow` if absent.
    tool_name: Option<String>,
    /// How many characters of a result the model sees; 50000 if absent.
    max_result_chars: Option<usize>,
    /// How many rounds a loop of the tool `ralph` may have; 64 if absent.
    ralph_max_rounds: Option<u32>,
}

impl WorkflowsSettings {
    /// The plugin. It refuses what makes no sense when it is set up.
    pub(in crate::cli) fn plugin(self) -> Workflows {
        let mut engine = EngineConfig::default();
        let mut ralph = RalphConfig::default();
        if let Some(provider) = self.provider {
            ralph.provider.clone_from(&provider);
            engine.provider = provider;
        }
        engine.max_concurrent_agents = self.max_concurrent_agents.unwrap_or_default();
        engine.max_total_agents = self.max_total_agents.unwrap_or(engine.max_total_agents);
        engine.max_items_per_call = self.max_items_per_call.unwrap_or(engine.max_items_per_call);
        engine.sync_timeout =
            self.sync_timeout_ms.map_or(engine.sync_timeout, Duration::from_millis);
        engine.dispose_grace =
            self.dispose_grace_ms.map_or(engine.dispose_grace, Duration::from_millis);
        engine.memory_bytes = self.memory_bytes.unwrap_or(engine.memory_bytes);
        let mut tool = ToolConfig::default();
        tool.name = self.tool_name.unwrap_or(tool.name);
        tool.max_result_chars = self.max_result_chars.unwrap_or(tool.max_result_chars);
        ralph.max_rounds = self.ralph_max_rounds.unwrap_or(RALPH_ROUNDS);
        Workflows::new().engine(engine).tool(tool).ralph(ralph)
    }
}
