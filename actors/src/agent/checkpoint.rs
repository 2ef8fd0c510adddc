//! When an agent's log must be durable before it goes on.

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{agent::Agent, options::Durability};

/// Makes the log durable if the agent demands it.
pub(super) async fn checkpoint(agent: &Agent) -> Result<(), Failure> {
    if agent.durability() == Durability::Strict {
        agent.session().flush().await?;
    }
    Ok(())
}
