//! Which model an agent uses, and the choice of another.

use playhouse_messages::config::ModelChoice;
use serde::Deserialize;
use serde_json::json;

use super::methods::{AgentParams, Answer, Server, ok};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SelectParams {
    agent: String,
    provider: String,
    model: String,
    reasoning_effort: Option<String>,
}

impl Server {
    pub(super) fn model(&self, params: AgentParams) -> Answer {
        let agent = self.agent(&params.agent)?;
        let model = agent.model();
        ok(json!({
            "current": model.current(),
            "pending": model.pending(),
            "lastUsed": model.last_used(),
        }))
    }

    pub(super) async fn select_model(&self, params: SelectParams) -> Answer {
        let SelectParams { agent, provider, model, reasoning_effort } = params;
        let agent = self.agent(&agent)?;
        let choice = ModelChoice { provider, model, reasoning_effort };
        if !choice.provider.is_empty() {
            self.desk.providers.check(&choice.provider)?;
        }
        let selected = agent.model().select(choice).await?;
        self.told.all(&agent).await;
        ok(json!({"seq": selected.seq}))
    }
}
