//! A scripted model that checks each request against the log.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::{future::BoxFuture, stream::BoxStream};
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    config::Route,
};
use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
use playhouse_plugin_api::{
    cancel::CancelToken,
    llm::{EncodeInput, Frame, FrameInput, LlmAdapter, LlmRequest, ModelInfo},
    world::World,
};

use super::{checks, witness::Witness};

pub(super) struct Model {
    script: ScriptedAdapter,
    witness: Arc<Witness>,
    /// The world holds the adapter.
    world: Weak<World>,
}

impl Model {
    pub(super) fn new(replies: &[Reply], witness: &Arc<Witness>, world: &Arc<World>) -> Self {
        // What the plan does not say ends every loop.
        let replies = replies.iter().cloned().chain([Reply::text("That is all.")]);
        let script = ScriptedAdapter::new(Script::sequence(replies).repeating_last());
        script.stage().record(false);
        Self { script, witness: witness.clone(), world: Arc::downgrade(world) }
    }
}

impl LlmAdapter for Model {
    fn resolve<'a>(
        &'a self,
        route: &'a Route,
        cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<ModelInfo, Failure>> {
        self.script.resolve(route, cancel)
    }

    fn encode(&self, input: &EncodeInput<'_>) -> Result<Bytes, Failure> {
        self.script.encode(input)
    }

    fn frame(&self, request: &FrameInput<'_>) -> Result<Frame, Failure> {
        self.script.frame(request)
    }

    fn stream(&self, request: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>> {
        self.witness.count("request");
        let agents = self.world.upgrade().map(|world| world.agents.clone());
        let asking = agents.zip(request.session_id.as_ref()).and_then(|(all, id)| all.made(id));
        if let Some(agent) = asking
            && let Err(fault) = checks::request(&agent.session().log(), &request)
        {
            self.witness.fail(format!("a request of session {}: {fault}", agent.id()));
        }
        self.script.stream(request)
    }
}
