//! What a session's calls cost, and how full its window is.

use playhouse_context::{MeterError, TokenMeter};
use playhouse_messages::id::SessionId;
use serde_json::json;

use super::{methods::Server, wire::RpcError};

impl From<MeterError> for RpcError {
    fn from(error: MeterError) -> Self {
        Self::application(error.code(), error.to_string())
    }
}

impl Server {
    /// Meters a live session, or a stored one.
    pub(super) async fn usage(&self, id: SessionId) -> Result<String, RpcError> {
        let log = match (self.desk.harness.agent(&id), self.desk.harness.world().store.clone()) {
            (Some(agent), _) => agent.session().log(),
            (None, Some(store)) => store.read(&id).await?.log()?,
            (None, None) => return Err(RpcError::application("NO_STORE", "there is no store")),
        };
        let mut meter = TokenMeter::new();
        meter.catch_up(&log)?;
        let mut usage = json!(meter.session_usage());
        usage["session"] = json!(id);
        Ok(usage.to_string())
    }
}
