//! Agents by their ids, whether they live or hibernate.

use playhouse_messages::{
    event::InboxTarget,
    id::{MessageId, SessionId},
    message::Message,
    outcome::Outcome,
};
use playhouse_plugin_api::{
    agent::{Agent, Prompt},
    blueprint::{Blueprint, BlueprintError},
    creation::{AgentMaker, CreateError},
    scope::Registration,
};

use super::Harness;
use crate::hibernation::{HibernateError, SendError, address::Delivered};

impl Harness {
    /// Registers what agents of a kind are made from, for as long as the harness runs, or until the
    /// registration is removed. An agent that is made from it
    /// ([`NewAgent::blueprint`](playhouse_plugin_api::creation::NewAgent::blueprint)) may hibernate; a
    /// later process registers it under the same name before it wakes one.
    ///
    /// # Errors
    ///
    /// If the name is taken or empty, or the harness is shut down.
    pub fn blueprint(
        &self,
        name: impl Into<String>,
        blueprint: Blueprint,
    ) -> Result<Registration, BlueprintError> {
        let world = &self.inner.world;
        world.blueprints.register(&world.scope, name, blueprint)
    }

    /// Lets an idle agent give up its actors and its memory. Its log is **durable** first, and what
    /// was injected stays there for its next turn. It stays addressable: [`Harness::send`] and
    /// [`Harness::prompt`] wake it, handles of the life that is over say `AGENT_HIBERNATED`.
    ///
    /// Input decides: what was sent before this call is accepted first, and an agent that has input
    /// to run stays awake. One whose turn has ended is awaited to its rest. Goes on if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`HibernateError::Refused`] with everything that keeps it awake; then nothing has changed.
    pub async fn hibernate(&self, id: &SessionId) -> Result<(), HibernateError> {
        let agent = self.agent(id).ok_or_else(|| HibernateError::NotLive { id: id.clone() })?;
        self.inner.maker.hibernate(&agent).await
    }

    /// The live agent of this id, made anew from its session and its blueprint if it hibernates. An
    /// agent that was disposed, or that another process left, is woken as well. All who ask at the same time get the same agent; dropping the future
    /// stops the wait, not the waking.
    ///
    /// # Errors
    ///
    /// `NO_STORE`, `SESSION_NOT_FOUND`, `NO_BLUEPRINT` if its header names none, `UNKNOWN_BLUEPRINT`
    /// if that is not registered, and those of [`Harness::resume`].
    pub async fn wake(&self, id: &SessionId) -> Result<Agent, CreateError> {
        self.inner.maker.wake(id.clone()).await
    }

    /// Asks the agent of this id for a turn, as
    /// [`Agent::followup`](playhouse_plugin_api::agent::Agent::followup) does, and wakes it if it
    /// hibernates. The message is **accepted**, once, when this returns, whoever falls asleep or
    /// wakes meanwhile. Dropping the future does not take it back.
    ///
    /// # Errors
    ///
    /// If the agent refuses it, or none lives and none could be woken: see [`Harness::wake`].
    pub async fn send(
        &self,
        id: &SessionId,
        prompt: impl Into<Prompt>,
    ) -> Result<MessageId, SendError> {
        let message = self.inner.maker.message(prompt.into());
        let sent = message.id.clone();
        self.deliver(id, message, InboxTarget::NextTurn, true).await?;
        Ok(sent)
    }

    /// As [`Harness::send`], and waits for the message's own result as
    /// [`Agent::prompt`](playhouse_plugin_api::agent::Agent::prompt) does.
    ///
    /// # Errors
    ///
    /// As [`Harness::send`], and if the turn has no end.
    pub async fn prompt(
        &self,
        id: &SessionId,
        prompt: impl Into<Prompt>,
    ) -> Result<Outcome, SendError> {
        let message = self.inner.maker.message(prompt.into());
        let sent = message.id.clone();
        let sending = self.deliver(id, message, InboxTarget::NextTurn, true);
        let Delivered { agent, from } = sending.await?;
        Ok(agent.outcome(&sent, from).await?)
    }

    /// As [`Harness::send`], into either list, running it or not; also a message that does not run
    /// wakes the agent. Returns who accepted it.
    ///
    /// # Errors
    ///
    /// As [`Harness::send`].
    pub async fn deliver(
        &self,
        id: &SessionId,
        message: Message,
        target: InboxTarget,
        wake: bool,
    ) -> Result<Delivered, SendError> {
        self.inner.maker.deliver(id, message, target, wake, false).await
    }

    /// As [`Harness::deliver`], for a message that may have been sent before: an id that the log
    /// knows is a success, and is not delivered twice.
    ///
    /// # Errors
    ///
    /// As [`Harness::send`].
    pub async fn deliver_again(
        &self,
        id: &SessionId,
        message: Message,
        target: InboxTarget,
        wake: bool,
    ) -> Result<Delivered, SendError> {
        self.inner.maker.deliver(id, message, target, wake, true).await
    }
}
