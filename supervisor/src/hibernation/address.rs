//! Sending by id: to the agent that lives, or that wakes for it.

use playhouse_messages::{
    chunk::Failure,
    event::{InboxTarget, Seq},
    id::SessionId,
    message::{Message, Source},
};
use playhouse_plugin_api::{
    agent::{Agent, AgentError, Disposal, Prompt},
    creation::{AgentMaker, CreateError},
};

use crate::agents::maker::Maker;

/// Why a message did not get to an agent.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The agent refuses it.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// No agent lives, and none could be woken.
    #[error(transparent)]
    Wake(#[from] CreateError),
}

impl SendError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Agent(error) => error.code(),
            Self::Wake(error) => error.code(),
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Agent(error) => error.into(),
            SendError::Wake(error) => error.into(),
        }
    }
}

/// A message that was accepted.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// Who has it.
    pub agent: Agent,
    /// From where on its log tells of it.
    pub from: Seq,
}

impl Maker {
    pub(crate) fn message(&self, prompt: Prompt) -> Message {
        let id = || self.world.ids.message();
        match prompt {
            Prompt::Text(text) => Message::user(id(), text),
            Prompt::Content(content) => Message::user_from(id(), content, Source::user()),
            Prompt::Message(message) => *message,
        }
    }

    /// Delivers a message once, whoever falls asleep or wakes meanwhile. `again`: it may have been
    /// sent before.
    pub(crate) async fn deliver(
        &self,
        id: &SessionId,
        message: Message,
        target: InboxTarget,
        wake: bool,
        mut again: bool,
    ) -> Result<Delivered, SendError> {
        loop {
            let agent = match self.world.agents.get(id) {
                Some(agent) => agent,
                None => self.wake(id.clone()).await?,
            };
            let from = if again { 0 } else { agent.session().log().len() };
            let sent = if again {
                agent.send_again(message.clone(), target, wake).await
            } else {
                agent.send(message.clone(), target, wake).await
            };
            match sent {
                Ok(_) => return Ok(Delivered { agent, from }),
                Err(AgentError::Gone(_) | AgentError::Hibernated { .. }) => {
                    // Its log may hold the message. What is over is awaited; then the next life has it.
                    again = true;
                    let mut disposal = agent.cell().disposal();
                    let over = disposal.wait_for(|state| *state == Disposal::Disposed);
                    tokio::select! {
                        _ = over => {}
                        () = self.means.ended.cancelled() => {
                            return Err(CreateError(crate::agents::maker::shutting_down()).into());
                        }
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
