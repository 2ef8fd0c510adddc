//! Clients: each does one thing after the other, and is told the truth.

use std::{future::Future, sync::Arc, time::Duration};

use playhouse_messages::{
    config::ModelChoice,
    event::{CancelCause, EventBody, InboxTarget, NewEvent},
    id::MessageId,
    message::Message,
    session::InboxEdit,
};
use playhouse_plugin_api::{agent::AgentError, clock::Ids};
use serde_json::json;

use super::{
    hooks::HOOK_FAILED,
    life::Life,
    mischief::{is_of_store, store_failures},
    plan::{Deed, DeedKind, Edit, ROUTES},
};
use crate::{AgentHandle, Durability};

/// Longer than anything may take, in virtual time: hooks and tools that ignore a cancel are waited
/// for, and so are restarts.
pub(super) const PATIENCE: Duration = Duration::from_secs(900);

/// Does what is left of a client's part of the plan.
pub(super) async fn play(life: Arc<Life>, client: usize) {
    let witness = life.witness.clone();
    let deeds = &witness.plan.clients[client];
    loop {
        let next = witness.seen().cursors[client];
        let Some(beat) = deeds.get(next) else { return };
        tokio::time::sleep(beat.after).await;
        witness.seen().cursors[client] += 1;
        witness.count("deed");
        let name = format!("client {client}: {:?} to agent-{}", beat.what.kind, beat.what.agent);
        witness.note(name.clone());
        if tokio::time::timeout(PATIENCE, life.perform(&beat.what)).await.is_err() {
            witness.fail(format!("{name} does not end"));
        }
    }
}

impl Life {
    async fn perform(&self, deed: &Deed) {
        let at = deed.agent;
        let Some(agent) = self.agent(at) else {
            if matches!(deed.kind, DeedKind::Resume) {
                self.enter(at).await;
            }
            return;
        };
        match &deed.kind {
            DeedKind::Followup => self.send(&agent, InboxTarget::NextTurn, true).await,
            DeedKind::Steer => self.send(&agent, InboxTarget::NextStep, true).await,
            DeedKind::Inject => self.send(&agent, InboxTarget::NextStep, false).await,
            DeedKind::Prompt => self.prompt(&agent).await,
            DeedKind::SendAgain => self.send_again(&agent).await,
            DeedKind::SendAndGo => {
                let sending = agent.followup(self.message("Never mind.".to_owned()));
                let _ = tokio::time::timeout(Duration::from_millis(1), sending).await;
            }
            DeedKind::Edit(edit) => self.edit(&agent, edit).await,
            DeedKind::Cancel { cause, keep_inbox } => {
                agent.cancel_with(cause.clone(), *keep_inbox);
            }
            DeedKind::CancelTree => {
                drop(agent.cancel_tree(CancelCause::User));
            }
            DeedKind::WhenIdle => self.when_idle(&agent).await,
            DeedKind::Select { route } => {
                let choice = ModelChoice {
                    provider: ROUTES[*route].to_owned(),
                    model: "m".to_owned(),
                    reasoning_effort: None,
                };
                let choice = NewEvent::log_only(EventBody::ModelSelection(choice));
                let _ = agent.session().append(choice).await;
            }
            DeedKind::Maintain { hold } => {
                let work = |cancel: crate::CancelToken| async move {
                    cancel.race(tokio::time::sleep(*hold)).await;
                };
                let _ = agent.run_maintenance(work).await;
            }
            DeedKind::Flush => {
                let len = agent.session().log().len();
                if let Ok(true) = agent.session().flush().await
                    && agent.session().marks().borrow().durable < len
                {
                    self.witness
                        .fail(format!("a flush of {} that made nothing durable", agent.id()));
                }
            }
            DeedKind::Append => {
                let event = NewEvent::custom("simulation/note", json!({"by": "a client"}));
                let _ = agent.session().append(event.ignorable()).await;
            }
            DeedKind::Dispose { keep_inbox } => self.dispose(at, &agent, *keep_inbox).await,
            DeedKind::Resume => self.enter(at).await,
        }
    }

    fn message(&self, text: String) -> Message {
        Message::user(self.witness.ids.message(), text)
    }

    async fn send(&self, agent: &AgentHandle, target: InboxTarget, wake: bool) {
        let message = self.message(format!("{target:?}, please."));
        let sent = agent.send(message, target, wake).await;
        self.told(agent, sent);
    }

    /// What was acknowledged is promised.
    fn told(&self, agent: &AgentHandle, sent: Result<MessageId, AgentError>) {
        match sent {
            Ok(id) => self.witness.promise(agent.id(), &id),
            Err(AgentError::Gone(_)) => {}
            Err(fault) => self.witness.fail(format!("a send to {}: {fault}", agent.id())),
        }
    }

    async fn prompt(&self, agent: &AgentHandle) {
        let from = agent.session().log().len();
        let sent = agent.followup(self.message("What now?".to_owned())).await;
        let id = sent.as_ref().ok().cloned();
        self.told(agent, sent);
        if let Some(id) = id {
            // A turn that failed leaves what waits behind it: the wait has no bound of its own.
            let outcome = agent.outcome(&id, from);
            let _ = tokio::time::timeout(Duration::from_secs(5), outcome).await;
        }
    }

    async fn send_again(&self, agent: &AgentHandle) {
        let promised = {
            let seen = self.witness.seen();
            let ours = seen.promised.iter().filter(|(session, _)| session == agent.id());
            ours.map(|(_, id)| id.clone()).next_back()
        };
        let Some(id) = promised else { return };
        let message = Message::user(id, "Once more.");
        let sent = agent.send_again(message, InboxTarget::NextTurn, true).await;
        self.told(agent, sent);
    }

    async fn edit(&self, agent: &AgentHandle, edit: &Edit) {
        let target = InboxTarget::NextTurn;
        let pending = agent.inbox().list(target).first().map(|message| message.id.clone());
        let message = Arc::new(self.message("Instead.".to_owned()));
        let edit = match (edit, pending) {
            (Edit::Prepend, _) => InboxEdit::Prepend { message, target },
            (Edit::Replace, Some(id)) => InboxEdit::Replace { id, with: message },
            (Edit::Remove, Some(id)) => InboxEdit::Remove { id },
            (Edit::Clear, _) => InboxEdit::Clear,
            _ => InboxEdit::Splice { target, start: -1, delete: 1, insert: vec![message] },
        };
        if let Ok(edited) = agent.edit_inbox(edit).await {
            for message in edited.inserted {
                self.witness.promise(agent.id(), &message.id);
            }
        }
    }

    /// With strict durability and a store that never failed, idle means durable.
    async fn when_idle(&self, agent: &AgentHandle) {
        let idle = tokio::time::timeout(Duration::from_secs(5), agent.when_idle()).await;
        let strict = agent.durability() == Durability::Strict;
        if !matches!(idle, Ok(Ok(()))) || !strict || store_failures(&self.witness) > 0 {
            return;
        }
        let log = agent.session().log();
        let is_end = |body: &EventBody| matches!(body, EventBody::TurnEnd(_));
        let end = log.iter().rev().find(|event| is_end(&event.body)).map(|event| event.seq);
        let durable = agent.session().marks().borrow().durable;
        if agent.status() == crate::Status::Idle && end.is_some_and(|end| end >= durable) {
            let id = agent.id();
            self.witness.fail(format!("{id} is idle, and the end of its turn is not durable"));
        }
    }

    pub(super) async fn dispose(&self, at: usize, agent: &AgentHandle, keep_inbox: bool) {
        let before = store_failures(&self.witness);
        let disposal: futures::future::BoxFuture<'_, _> = if keep_inbox {
            Box::pin(agent.dispose_keeping_inbox())
        } else {
            Box::pin(agent.dispose())
        };
        let disposed = disposal.await;
        self.leave(at, agent);
        let again = agent.dispose().await;
        if again != disposed {
            let id = agent.id();
            self.witness.fail(format!("{id} was disposed: {disposed:?}, and then: {again:?}"));
        }
        match disposed {
            Ok(()) => {
                let mut seen = self.witness.seen();
                let last = seen.sessions.get(agent.id());
                if last.is_some_and(|last| Arc::ptr_eq(last.cell(), agent.session().cell())) {
                    seen.released.insert(agent.id().clone());
                }
            }
            Err(failure) if before < store_failures(&self.witness) => {
                self.witness.note(format!("{} was not disposed well: {failure}", agent.id()));
            }
            Err(failure) => {
                // The failure of a store may be older than the disposal that tells of it.
                if store_failures(&self.witness) == 0 || !is_of_store(&failure.code) {
                    self.witness.fail(format!("the disposal of {}: {failure}", agent.id()));
                }
            }
        }
    }

    /// Brings an agent in: anew, or over what is stored of it.
    pub(super) async fn enter(&self, at: usize) {
        let id = format!("agent-{at}");
        let resumed = self.bounded("a resume", self.harness.resume(&*id, self.new_agent(at))).await;
        let made = match resumed {
            Some(Err(error)) if error.code() == "SESSION_NOT_FOUND" => {
                let new = self.new_agent(at).id(&*id);
                self.bounded("a creation", self.harness.create(new)).await
            }
            resumed => resumed,
        };
        match made {
            Some(Ok(handle)) => self.join(at, handle),
            Some(Err(error)) => {
                let expected = [
                    "SESSION_ALREADY_OWNED",
                    "SESSION_ALREADY_EXISTS",
                    "SESSION_NOT_FOUND",
                    "STORE_FULL",
                    "STORE_IO",
                    "STORE_CLOSED",
                    "ABORTED",
                    "SHUTTING_DOWN",
                    "SCOPE_CLOSED",
                    "PANIC",
                    HOOK_FAILED,
                ];
                self.witness.note(format!("{id} does not come: {} {error}", error.code()));
                if !expected.contains(&error.code()) {
                    self.witness.fail(format!("{id} is not made: {}: {error}", error.code()));
                }
            }
            None => {}
        }
    }

    /// Awaits what always ends.
    pub(super) async fn bounded<T>(
        &self,
        what: &str,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let ended = tokio::time::timeout(PATIENCE, future).await.ok();
        if ended.is_none() {
            self.witness.fail(format!("{what} does not end"));
        }
        ended
    }
}
