//! What a client may ask for.

use std::sync::Arc;

use playhouse_messages::{
    content::ContentBlock,
    event::{CancelCause, InboxTarget, Seq},
    id::{MessageId, SessionId},
    message::{Message, SharedMessage, Source},
    session::InboxEdit,
};
use playhouse_plugin_api::{agent::Agent, creation::AgentHandle};
use playhouse_sessions::SessionQuery;
use playhouse_supervisor::hibernation::address::Delivered;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    client_tools::{ClientTools, Description},
    connection::Desk,
    images::{self, InlineImage},
    make::Make,
    notify::Told,
    wire::{RpcError, to_json},
};

/// Events that one `session/log` gives unless told otherwise, and at most.
const LOG_PAGE: u64 = 1000;

/// What requests are served from.
pub(super) struct Server {
    pub(super) desk: Desk,
    pub(super) told: Told,
    pub(super) tools: Arc<ClientTools>,
    pub(super) query: SessionQuery,
}

/// JSON text, or why there is none.
pub(super) type Answer = Result<String, RpcError>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentParams {
    pub(super) agent: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SendParams {
    agent: String,
    text: Option<String>,
    content: Option<Vec<Value>>,
    message: Option<Message>,
    message_id: Option<String>,
    target: Option<InboxTarget>,
    wake: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CancelParams {
    agent: String,
    cause: Option<CancelCause>,
    #[serde(default)]
    keep_inbox: bool,
    #[serde(default)]
    tree: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DisposeParams {
    agent: String,
    #[serde(default)]
    keep_inbox: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SpliceParams {
    agent: String,
    target: InboxTarget,
    start: i64,
    #[serde(default)]
    delete_count: i64,
    #[serde(default)]
    insert: Vec<Inserted>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Inserted {
    text: Option<String>,
    content: Option<Vec<Value>>,
    message: Option<Message>,
    message_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigParams {
    max_parallel_tool_calls: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogParams {
    session: String,
    #[serde(default)]
    from: Seq,
    limit: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionParams {
    session: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolParams {
    name: String,
    agent: Option<String>,
}

fn read<T: DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params).map_err(|fault| RpcError::invalid_params(fault.to_string()))
}

pub(super) fn ok(value: Value) -> Answer {
    Ok(value.to_string())
}

impl Server {
    /// Serves one request. Polled once in the order of arrival, so whatever goes to an agent's
    /// mailbox before the first wait gets there in that order.
    pub(super) async fn serve(self: Arc<Self>, method: String, params: Value) -> Answer {
        match method.as_str() {
            "agent/create" => self.make(read(params)?, Make::Fresh).await,
            "agent/resume" => self.make(read(params)?, Make::Stored).await,
            "agent/prompt" => self.prompt(read(params)?).await,
            "agent/send" => self.send(read(params)?, None).await,
            "agent/followup" => self.send(read(params)?, Some((InboxTarget::NextTurn, true))).await,
            "agent/steer" => self.send(read(params)?, Some((InboxTarget::NextStep, true))).await,
            "agent/inject" => self.send(read(params)?, Some((InboxTarget::NextStep, false))).await,
            "agent/cancel" => self.cancel(read(params)?).await,
            "agent/whenIdle" => self.when_idle(read(params)?).await,
            "agent/dispose" => self.dispose(read(params)?).await,
            "agent/list" => self.list(),
            "budget/get" => self.budget(&read(params)?),
            "model/get" => self.model(read(params)?),
            "model/select" => self.select_model(read(params)?).await,
            "inbox/list" => self.inbox(read(params)?),
            "inbox/splice" => self.splice(read(params)?).await,
            "attachment/put" => self.put_attachment(read(params)?).await,
            "config/set" => self.configure(read(params)?),
            "session/log" => self.log(read(params)?).await,
            "session/fork" => self.make(read(params)?, Make::Fork).await,
            "session/hibernate" => self.hibernate(read(params)?).await,
            "session/flush" => self.flush(read(params)?).await,
            "session/list" => self.list_sessions(read(params)?).await,
            "session/search" => self.search(read(params)?).await,
            "session/stats" => self.stats(read::<SessionParams>(params)?.session.into()).await,
            "session/title" => self.title(read::<SessionParams>(params)?.session.into()).await,
            "session/rename" => self.rename(read(params)?).await,
            "session/refreshTitle" => {
                self.refresh_title(&read::<SessionParams>(params)?.session).await
            }
            "session/usage" => self.usage(read::<SessionParams>(params)?.session.into()).await,
            "tool/register" => self.register(read(params)?),
            "tool/unregister" => self.unregister(read(params)?),
            _ => Err(RpcError::no_method(&method)),
        }
    }

    pub(super) fn agent(&self, id: &str) -> Result<Agent, RpcError> {
        self.desk.harness.agent(&SessionId::from(id)).ok_or_else(|| self.nobody(id))
    }

    /// The agent of this id, woken if it hibernates.
    async fn reach(&self, id: &str) -> Result<SessionId, RpcError> {
        let (harness, key) = (&self.desk.harness, SessionId::from(id));
        if harness.agent(&key).is_none()
            && let Err(error) = harness.wake(&key).await
        {
            let nobody = ["SESSION_NOT_FOUND", "NO_BLUEPRINT", "NO_STORE"].contains(&error.code());
            return Err(if nobody { self.nobody(id) } else { error.0.into() });
        }
        Ok(key)
    }

    fn nobody(&self, id: &str) -> RpcError {
        let text = format!(
            "no agent \"{id}\" is live; make one with agent/create, or agent/resume its session"
        );
        RpcError::application("AGENT_NOT_FOUND", text)
    }

    fn message_id(&self) -> MessageId {
        self.desk.harness.world().ids.message()
    }

    /// The message that is meant, and whether its id is the client's, so that sending it again is no
    /// mistake.
    async fn message(&self, from: Inserted) -> Result<(Message, bool), RpcError> {
        let Inserted { text, content, message, message_id } = from;
        let (content, message) = match (text, content, message) {
            (Some(text), None, None) => (vec![ContentBlock::text(text)], None),
            (None, Some(content), None) => {
                let store = &*self.desk.harness.world().attachments;
                (images::blocks(store, content).await?, None)
            }
            (None, None, Some(message)) if message_id.is_none() => (Vec::new(), Some(message)),
            _ => {
                let text = "a message is exactly one of `text`, `content` and `message`; \
                            `messageId` goes with the first two";
                return Err(RpcError::invalid_params(text));
            }
        };
        if let Some(message) = message {
            return Ok((message, true));
        }
        let named = message_id.is_some();
        let id = message_id.map_or_else(|| self.message_id(), MessageId::from);
        Ok((Message::user_from(id, content, Source::user()), named))
    }

    async fn send(&self, params: SendParams, verb: Option<(InboxTarget, bool)>) -> Answer {
        let agent = self.reach(&params.agent).await?;
        let (target, wake) = match (verb, params.target, params.wake) {
            (Some(verb), None, None) => verb,
            (None, Some(target), Some(wake)) => (target, wake),
            (Some(_), ..) => {
                let text = "`target` and `wake` are for agent/send; this method implies them";
                return Err(RpcError::invalid_params(text));
            }
            (None, ..) => {
                let text = "agent/send needs `target` (next-turn or next-step) and `wake`";
                return Err(RpcError::invalid_params(text));
            }
        };
        let SendParams { text, content, message, message_id, .. } = params;
        let (message, named) =
            self.message(Inserted { text, content, message, message_id }).await?;
        let (harness, id) = (&self.desk.harness, message.id.clone());
        if named {
            harness.deliver_again(&agent, message, target, wake).await?;
        } else {
            harness.deliver(&agent, message, target, wake).await?;
        }
        ok(json!({"messageId": id}))
    }

    async fn prompt(&self, params: SendParams) -> Answer {
        if params.target.is_some() || params.wake.is_some() {
            let text = "agent/prompt always asks for a turn: leave `target` and `wake` out";
            return Err(RpcError::invalid_params(text));
        }
        let agent = self.reach(&params.agent).await?;
        let SendParams { text, content, message, message_id, .. } = params;
        let (message, named) =
            self.message(Inserted { text, content, message, message_id }).await?;
        let (harness, id, target) = (&self.desk.harness, message.id.clone(), InboxTarget::NextTurn);
        // One with an id may have been sent, and have run, long ago.
        let delivered = if named {
            harness.deliver_again(&agent, message, target, true).await?
        } else {
            harness.deliver(&agent, message, target, true).await?
        };
        let Delivered { agent, from } = delivered;
        let outcome = agent.outcome(&id, from).await?;
        self.told.all(&agent).await;
        ok(json!({
            "messageId": id,
            "turn": outcome.turn,
            "reason": outcome.reason,
            "text": outcome.text,
            "usage": outcome.usage,
            "structured": outcome.structured,
        }))
    }

    async fn cancel(&self, params: CancelParams) -> Answer {
        let agent = self.agent(&params.agent)?;
        let cause = params.cause.unwrap_or(CancelCause::User);
        match (params.tree, params.keep_inbox) {
            (true, true) => {
                let text = "`tree` drops pending input everywhere: it excludes `keepInbox`";
                Err(RpcError::invalid_params(text))
            }
            (true, false) => {
                let cancelled = self.desk.harness.cancel_tree(&agent, cause).await;
                ok(json!({"reached": cancelled.reached, "unfinished": cancelled.unfinished}))
            }
            (false, keep_inbox) => {
                agent.cancel_with(cause, keep_inbox);
                ok(json!({"reached": 1, "unfinished": []}))
            }
        }
    }

    async fn when_idle(&self, params: AgentParams) -> Answer {
        let agent = self.agent(&params.agent)?;
        agent.when_idle().await?;
        self.told.all(&agent).await;
        ok(json!({}))
    }

    async fn dispose(&self, params: DisposeParams) -> Answer {
        let handle = AgentHandle::new(self.agent(&params.agent)?);
        let disposed = if params.keep_inbox {
            handle.dispose_keeping_inbox().await
        } else {
            handle.dispose().await
        };
        self.told.gone(handle.id()).await;
        disposed?;
        ok(json!({}))
    }

    fn list(&self) -> Answer {
        let agents = self.desk.harness.agents();
        let agents: Vec<_> = agents
            .iter()
            .map(|agent| {
                json!({
                    "agent": agent.id(),
                    "parent": agent.runtime_parent(),
                    "depth": agent.depth(),
                    "status": agent.status(),
                    "events": agent.session().log().len(),
                })
            })
            .collect();
        ok(json!({"agents": agents}))
    }

    fn inbox(&self, params: AgentParams) -> Answer {
        let inbox = self.agent(&params.agent)?.inbox();
        ok(json!({
            "nextTurn": inbox.list(InboxTarget::NextTurn),
            "nextStep": inbox.list(InboxTarget::NextStep),
        }))
    }

    async fn splice(&self, params: SpliceParams) -> Answer {
        let agent = self.agent(&params.agent)?;
        let SpliceParams { target, start, delete_count: delete, insert, .. } = params;
        let mut messages = Vec::with_capacity(insert.len());
        for message in insert {
            messages.push(SharedMessage::new(self.message(message).await?.0));
        }
        let edit = InboxEdit::Splice { target, start, delete, insert: messages };
        let edited = agent.edit_inbox(edit).await?;
        ok(json!({"removed": edited.removed, "inserted": edited.inserted}))
    }

    async fn put_attachment(&self, image: InlineImage) -> Answer {
        let attachment = image.put(&*self.desk.harness.world().attachments).await?;
        ok(json!({"attachment": attachment}))
    }

    fn configure(&self, params: ConfigParams) -> Answer {
        let calls = params.max_parallel_tool_calls;
        if !self.desk.harness.world().limits.set_max_parallel_tool_calls(calls) {
            return Err(RpcError::invalid_params("`maxParallelToolCalls` must be positive"));
        }
        ok(json!({"maxParallelToolCalls": calls}))
    }

    async fn log(&self, params: LogParams) -> Answer {
        let limit = params.limit.unwrap_or(LOG_PAGE).min(LOG_PAGE);
        let id = SessionId::from(params.session);
        let until = params.from.saturating_add(limit);
        let (events, end) = match self.desk.harness.agent(&id) {
            Some(agent) => {
                let log = agent.session().log();
                let events = log.range(params.from..until).map(|event| event.to_json());
                (events.collect::<Vec<_>>(), log.len())
            }
            None => {
                let Some(store) = self.desk.harness.world().store.clone() else {
                    return Err(RpcError::application("NO_STORE", "there is no store"));
                };
                let stored = store.read(&id).await?;
                let end = stored.events.len() as u64;
                let events = stored.events.iter();
                let events = events
                    .skip(usize::try_from(params.from).unwrap_or(usize::MAX))
                    .take(usize::try_from(limit).unwrap_or(usize::MAX))
                    .map(|event| String::from_utf8_lossy(event).into_owned());
                (events.collect(), end)
            }
        };
        let next = params.from.saturating_add(events.len() as u64);
        let next = if next < end { next.to_string() } else { "null".to_owned() };
        let events = events.join(",");
        let session = to_json(&id);
        Ok(format!(r#"{{"session":{session},"events":[{events}],"next":{next},"end":{end}}}"#))
    }

    async fn flush(&self, params: SessionParams) -> Answer {
        let agent = self.agent(&params.session)?;
        let stored = agent.session().flush().await?;
        let durable = agent.session().marks().borrow().durable;
        ok(json!({"stored": stored, "durable": durable}))
    }

    async fn hibernate(&self, params: SessionParams) -> Answer {
        let id = self.agent(&params.session)?.id().clone();
        self.desk.harness.hibernate(&id).await?;
        self.told.gone(&id).await;
        ok(json!({}))
    }

    fn register(&self, tool: Description) -> Answer {
        let scope = match &tool.agent {
            Some(agent) => self.agent(agent)?.scope().clone(),
            None => self.desk.harness.world().scope.clone(),
        };
        self.tools.register(tool, self.desk.harness.world().tools.registry(), &scope)?;
        ok(json!({}))
    }

    fn unregister(&self, params: ToolParams) -> Answer {
        let name = params.name.clone();
        if !self.tools.unregister(params.name, params.agent) {
            let text = format!("the client registered no tool \"{name}\"; tool/register does");
            return Err(RpcError::application("UNKNOWN_TOOL", text));
        }
        ok(json!({}))
    }
}
