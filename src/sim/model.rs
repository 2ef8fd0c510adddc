//! A scripted model that checks each request against the log.

use std::sync::{Arc, Weak};

use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
use playhouse_plugin_api::{
    llm::{LlmAdapter, LlmRequest},
    world::World,
};

use super::{checks, witness::Witness};

pub(super) struct Model {
    witness: Arc<Witness>,
    /// The world holds the adapter.
    world: Weak<World>,
}

impl Model {
    pub(super) fn adapter(
        replies: &[Reply],
        witness: &Arc<Witness>,
        world: &Arc<World>,
    ) -> impl LlmAdapter {
        // What the plan does not say ends every loop.
        let replies = replies.iter().cloned().chain([Reply::text("That is all.")]);
        let script = ScriptedAdapter::new(Script::sequence(replies).repeating_last());
        script.stage().record(false);
        let model = Self { witness: witness.clone(), world: Arc::downgrade(world) };
        script.streamed(move |script, request| {
            model.check(&request);
            script.stream(request)
        })
    }

    /// Holds a request against the log that it is made of.
    fn check(&self, request: &LlmRequest) {
        self.witness.count("request");
        let agents = self.world.upgrade().map(|world| world.agents.clone());
        let asking = agents.zip(request.session_id.as_ref()).and_then(|(all, id)| all.made(id));
        if let Some(agent) = asking
            && let Err(fault) = checks::request(&agent.session().log(), request)
        {
            self.witness.fail(format!("a request of session {}: {fault}", agent.id()));
        }
    }
}
