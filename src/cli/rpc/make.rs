//! How a client makes agents.

use std::path::PathBuf;

use playhouse_messages::{event::Seq, id::SessionId};
use playhouse_plugin_api::{creation::NewAgent, fork::ForkPoint};
use serde::Deserialize;
use serde_json::json;

use super::{
    budget::BudgetParams,
    methods::{Answer, Server, ok},
    wire::RpcError,
};
use crate::cli::{house, presets};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct MakeParams {
    id: Option<String>,
    session_id: Option<String>,
    agent: Option<String>,
    provider: Option<String>,
    model: Option<String>,
    reasoning_effort: Option<String>,
    max_tokens: Option<u64>,
    max_steps: Option<u32>,
    max_depth: Option<u32>,
    budget: Option<BudgetParams>,
    tree_budget: Option<BudgetParams>,
    cwd: Option<PathBuf>,
    preset: Option<String>,
    session: Option<String>,
    at: Option<Seq>,
}

impl MakeParams {
    /// Whether nothing differs from the config's entry, so that its blueprint can make the agent again.
    fn is_plain(&self) -> bool {
        self.provider.is_none()
            && self.reasoning_effort.is_none()
            && self.max_tokens.is_none()
            && self.max_steps.is_none()
            && self.max_depth.is_none()
            && self.preset.is_none()
            && self.budget.is_none()
            && self.tree_budget.is_none()
    }
}

/// What an agent is made over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Make {
    Fresh,
    Stored,
    Fork,
}

impl Server {
    pub(super) async fn make(&self, params: MakeParams, make: Make) -> Answer {
        let mut new = self.new_agent(&params, make)?;
        let harness = &self.desk.harness;
        let MakeParams { id, session_id, session, at, cwd, .. } = params;
        let made = match (make, id, session_id, session, at) {
            (Make::Fresh, id, None, None, None) => {
                new.id = id.map(SessionId::from);
                match presets::composed(harness, new).await {
                    Ok(new) => harness.create(new).await,
                    Err(refused) => Err(refused),
                }
            }
            (Make::Stored, None, Some(id), None, None) => {
                match presets::resumed(harness, &SessionId::from(id.as_str()), new).await {
                    Ok(new) => harness.resume(id, new).await,
                    Err(refused) => Err(refused),
                }
            }
            (Make::Fork, id, None, Some(session), boundary) => {
                new.id = id.map(SessionId::from);
                if cwd.is_none() {
                    // The source's.
                    new.cwd = None;
                }
                let from = ForkPoint { session: session.into(), boundary };
                match presets::derived(harness, &from, new).await {
                    Ok(new) => harness.fork(from, new).await,
                    Err(refused) => Err(refused),
                }
            }
            (Make::Fresh, ..) => {
                let text = "agent/create takes an `id`; `sessionId` is for agent/resume, \
                            `session` and `at` are for session/fork";
                return Err(RpcError::invalid_params(text));
            }
            (Make::Stored, ..) => {
                let text = "agent/resume takes exactly a `sessionId`";
                return Err(RpcError::invalid_params(text));
            }
            (Make::Fork, ..) => {
                let text = "session/fork takes a `session`, and perhaps `at` and `id`";
                return Err(RpcError::invalid_params(text));
            }
        };
        let agent = made.map_err(|error| RpcError::from(error.0))?;
        self.told.joined(&agent).await;
        let (session, events) = (agent.session(), agent.session().log().len());
        let mut answer = json!({"agent": agent.id(), "events": events});
        if make == Make::Fork {
            answer["inherited"] = session.inherited_event_count().into();
        }
        ok(answer)
    }

    fn new_agent(&self, params: &MakeParams, make: Make) -> Result<NewAgent, RpcError> {
        let entry = match &params.agent {
            None => None,
            Some(label) => {
                let found = self.desk.agents.iter().find(|agent| agent.id == *label);
                let missing = || {
                    let text = format!("the config has no agent \"{label}\"; add an [[agent]]");
                    RpcError::application("UNKNOWN_AGENT_CONFIG", text)
                };
                Some(found.ok_or_else(missing)?)
            }
        };
        let mut options = house::options(entry, self.desk.budget);
        match (&params.provider, &params.model) {
            (None, None) => {}
            (Some(provider), Some(model)) => options = options.model(provider, model),
            _ => return Err(RpcError::invalid_params("`provider` and `model` go together")),
        }
        if let Some(effort) = &params.reasoning_effort {
            options = options.reasoning_effort(effort);
        }
        if let Some(max) = params.max_tokens {
            options = options.max_tokens(max);
        }
        if let Some(max) = params.max_steps {
            options = options.max_steps(max);
        }
        if let Some(max) = params.max_depth {
            options = options.max_depth(max);
        }
        options.budget = params.budget.map(Into::into);
        if let Some(budget) = params.tree_budget {
            options = options.tree_budget(budget.into());
        }
        if let Some(model) = &options.model {
            self.desk.providers.check(&model.provider)?;
        }
        let cwd = params.cwd.as_deref().or_else(|| entry.and_then(|agent| agent.cwd.as_deref()));
        if let Some(agent) = entry.filter(|_| make == Make::Fresh && params.is_plain()) {
            let new = NewAgent::blueprint(house::blueprint_name(agent));
            return Ok(new.cwd(house::working_dir(cwd)?));
        }
        let mut new = NewAgent::new(options).cwd(house::working_dir(cwd)?);
        let declared = params.model.is_some() || entry.is_some_and(|agent| agent.model.is_some());
        new.agent_preset.clone_from(&params.preset);
        if params.preset.is_some() && !declared {
            // The preset's, if it names one.
            new.options.model = None;
        }
        Ok(if declared { house::declaring(new) } else { new })
    }
}
