//! When an agent's log must be durable before it goes on.

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{agent::Agent, options::Durability};

/// Makes the log durable if the agent demands it.
pub(super) async fn checkpoint(agent: &Agent) -> Result<(), Failure> {
    if is_strict(agent) {
        agent.session().flush().await?;
    }
    Ok(())
}

/// Whether checkpoints are awaited, and shown text is written first.
pub(super) fn is_strict(agent: &Agent) -> bool {
    agent.options().durability == Durability::Strict
}
