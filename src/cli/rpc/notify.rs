//! What happens to agents, as notifications.

use std::{collections::HashMap, sync::Arc};

use playhouse_messages::{event::Seq, id::SessionId};
use playhouse_plugin_api::agent::{Agent, Disposal};
use serde::Serialize;
use serde_json::{json, value::RawValue};
use tokio::sync::{mpsc, watch};

use super::wire::{ClientGone, Outbox};
use crate::cli::{
    follow::{Seen, What},
    output::frame_json,
};

/// How far each live agent's events have been told: an answer must not overtake what it is about.
#[derive(Debug, Clone)]
pub(super) struct Told(Arc<watch::Sender<Progress>>);

/// `None` once nothing is told any more, so that nobody waits for it.
type Progress = Option<HashMap<SessionId, Seq>>;

impl Told {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Some(HashMap::new()))))
    }

    /// Tells nothing more: the client only asks.
    pub(super) fn mute(&self) {
        self.0.send_replace(None);
    }

    /// Resolves once nothing is told any more.
    async fn muted(&self) {
        // The sender is held by `self`.
        let _ = self.0.subscribe().wait_for(Option::is_none).await;
    }

    /// The agent was told of up to here, or is gone.
    fn to(&self, id: &SessionId, seq: Option<Seq>) {
        self.0.send_modify(|told| {
            let Some(told) = told else { return };
            match seq {
                Some(seq) => told.insert(id.clone(), seq),
                None => told.remove(id),
            };
        });
    }

    /// Waits until the client was told that the agent is live.
    pub(super) async fn joined(&self, agent: &Agent) {
        let mut told = self.0.subscribe();
        let mut disposal = agent.cell().disposal();
        tokio::select! {
            _ = told.wait_for(|told| told.as_ref().is_none_or(|told| told.contains_key(agent.id()))) => {}
            // It came and went.
            _ = disposal.wait_for(|state| *state == Disposal::Disposed) => {}
        }
    }

    /// Waits until all events of the agent that stand now were told.
    pub(super) async fn all(&self, agent: &Agent) {
        let end = agent.session().log().len();
        let mut told = self.0.subscribe();
        // One that is gone was told of to its end.
        let done = |told: &Progress| {
            let seq = told.as_ref().and_then(|told| told.get(agent.id()));
            seq.is_none_or(|seq| *seq >= end)
        };
        let _ = told.wait_for(done).await;
    }

    /// Waits until the client was told that the agent is gone.
    pub(super) async fn gone(&self, id: &SessionId) {
        let mut told = self.0.subscribe();
        let _ = told.wait_for(|told| told.as_ref().is_none_or(|told| !told.contains_key(id))).await;
    }
}

#[derive(Serialize)]
struct EventParams<'a> {
    session: &'a SessionId,
    event: Box<RawValue>,
}

/// Tells the client of everything, until nobody has anything to tell, or it wants to hear nothing.
pub(super) async fn pump(mut seen: mpsc::Receiver<Seen>, outbox: Outbox, told: Told) {
    let muted = told.muted();
    tokio::pin!(muted);
    loop {
        let seen = tokio::select! {
            biased;
            () = &mut muted => break,
            seen = seen.recv() => seen,
        };
        let Some(seen) = seen else { break };
        // A client that is gone is noticed elsewhere; what it was not told is in the logs.
        let _ = tell(&seen, &outbox).await;
        let id = seen.agent.id();
        match seen.what {
            What::Joined { from, .. } => told.to(id, Some(from)),
            What::Event(event) => told.to(id, Some(event.seq + 1)),
            What::Gone => told.to(id, None),
            _ => {}
        }
    }
    // Nobody is left to wait for.
    told.mute();
}

async fn tell(seen: &Seen, outbox: &Outbox) -> Result<(), ClientGone> {
    let id = seen.agent.id();
    match &seen.what {
        What::Joined { from, resumed } => {
            let params = json!({
                "agent": id,
                "parent": seen.agent.runtime_parent(),
                "depth": seen.agent.depth(),
                "resumed": resumed,
                "from": from,
            });
            outbox.notify("agent/created", &params).await
        }
        What::Event(event) => {
            // As it is stored, byte for byte.
            let event = RawValue::from_string(event.to_json());
            let event = event.unwrap_or_else(|fault| unreachable!("an event is JSON: {fault}"));
            outbox.notify("session/event", &EventParams { session: id, event }).await
        }
        What::Frame(frame) => {
            let mut params = frame_json(frame);
            params["agent"] = json!(id);
            outbox.notify("agent/stream", &params).await
        }
        What::Durable(seq) => {
            outbox.notify("session/durable", &json!({"session": id, "seq": seq})).await
        }
        What::Status(status) => {
            outbox.notify("agent/status", &json!({"agent": id, "status": status})).await
        }
        What::Fault(fault) => {
            let params = json!({
                "agent": id,
                "turn": fault.turn,
                "step": fault.step,
                "error": fault.failure,
            });
            outbox.notify("agent/error", &params).await
        }
        What::Gone => outbox.notify("agent/disposed", &json!({"agent": id})).await,
    }
}
