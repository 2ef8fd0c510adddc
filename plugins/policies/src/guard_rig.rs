//! A harness with one plugin and one agent, whose tools tests call directly.

use std::sync::Arc;

use playhouse_messages::content::joined_text;
use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
use playhouse_plugin_api::{
    cancel::CancelToken,
    clock::CountingIds,
    creation::{AgentHandle, NewAgent},
    options::AgentOptions,
    plugin::Plugin,
    tool::{Tool, ToolCallRequest, ToolError, ToolHooks, ToolOutcome},
    world::World,
};
use playhouse_supervisor::harness::Harness;
use serde_json::Value;

pub(crate) struct Rig {
    pub(crate) harness: Harness,
    pub(crate) agent: AgentHandle,
}

impl Rig {
    /// The model answers every prompt with "Yes.".
    pub(crate) async fn new(plugin: impl Plugin) -> Self {
        let builder = Harness::builder().ids(CountingIds::default()).plugin(plugin);
        let harness = builder.start().await.unwrap();
        let model = Script::new().reply(Reply::text("Yes."));
        let model = Arc::new(ScriptedAdapter::new(model));
        harness.world().models.register(["scripted"], model).unwrap();
        let options = AgentOptions::new().model("scripted", "any");
        let agent = harness.create(NewAgent::new(options)).await.unwrap();
        Self { harness, agent }
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        self.harness.world()
    }

    pub(crate) fn hooks(&self) -> &ToolHooks {
        self.world().tools.hooks()
    }

    pub(crate) fn tool(&self, tool: impl Tool) {
        self.harness.register_tool(Arc::new(tool)).unwrap();
    }

    pub(crate) fn request(&self, name: &str, arguments: Value) -> ToolCallRequest {
        ToolCallRequest {
            call_id: "c1".into(),
            root_call_id: None,
            name: name.to_owned(),
            arguments,
            agent: Some(self.agent.agent().clone()),
            scope: self.agent.scope().clone(),
            at: None,
            cancel: CancelToken::new(),
            ids: Arc::new(|| "of-the-body".into()),
            checkpoint: None,
        }
    }

    pub(crate) async fn call(&self, name: &str, arguments: Value) -> Arc<ToolOutcome> {
        self.world().tools.execute_one(self.request(name, arguments)).await
    }
}

pub(crate) fn text(outcome: &ToolOutcome) -> String {
    joined_text(outcome.content())
}

pub(crate) fn code(outcome: &ToolOutcome) -> Option<&str> {
    outcome.error().and_then(ToolError::code)
}
