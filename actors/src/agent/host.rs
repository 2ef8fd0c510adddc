//! What a batch of tool calls may ask of the agent it runs for.

use std::sync::Arc;

use futures::future::BoxFuture;
use playhouse_messages::{
    chunk::Failure,
    event::{InboxTarget, NewEvent, Seq},
    id::MessageId,
    message::{Message, SharedMessage},
};
use playhouse_plugin_api::{agent::Agent, scope::Scope, tool::BatchHost, world::World};

use super::checkpoint::checkpoint;

pub(super) struct AgentHost {
    pub(super) agent: Agent,
    pub(super) world: Arc<World>,
}

impl BatchHost for AgentHost {
    fn scope(&self) -> &Scope {
        self.agent.scope()
    }

    fn agent(&self) -> Option<Agent> {
        Some(self.agent.clone())
    }

    fn append(&self, event: NewEvent) -> BoxFuture<'static, Result<Seq, Failure>> {
        let session = self.agent.session().clone();
        Box::pin(async move { Ok(session.append(event).await?.seq) })
    }

    fn accept_context(&self, message: SharedMessage) -> BoxFuture<'static, Result<(), Failure>> {
        let agent = self.agent.clone();
        Box::pin(async move {
            agent.send(Message::clone(&message), InboxTarget::NextStep, false).await?;
            Ok(())
        })
    }

    fn checkpoint(&self) -> BoxFuture<'static, Result<(), Failure>> {
        let agent = self.agent.clone();
        Box::pin(async move { checkpoint(&agent).await })
    }

    fn new_message_id(&self) -> MessageId {
        self.world.ids.message()
    }
}
