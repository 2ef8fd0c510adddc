//! How messages get from the Lead's log into their targets' inboxes.
//!
//! One carrier a target, as long as something waits for it: it takes messages in their order, and ends
//! with the Lead. What it does is idempotent, because a log takes a message id once; that a message
//! has arrived is recorded only after the target's log was seen to hold it durably. So each is
//! delivered once, whatever dies in between.

use std::{sync::Arc, time::Duration};

use playhouse_messages::{
    chunk::Failure,
    event::InboxTarget,
    id::{MessageId, SessionId},
};
use playhouse_plugin_api::agent::Agent;
use playhouse_subagents::ContinuationError;

use crate::{
    error::TeamError,
    lead::{Lead, locked},
    mailbox::{Next, Recorded, next},
    record::{Delivery, Record, TeamMessage},
};

/// How long a carrier waits after its first failure, unless something changes; twice as long after each
/// further one.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How often that doubles at most.
const DOUBLINGS_MAX: u32 = 6;

/// What became of an attempt.
enum Carried {
    Delivered,
    Stays,
    Failed(TeamError),
}

impl Lead {
    /// Has a carrier for each target for which something is queued.
    pub fn carry_pending(self: &Arc<Self>) {
        let Ok(team) = self.team() else { return };
        if team.pending().is_empty() || !self.scope.is_open() {
            return;
        }
        let mut carried = locked(&self.carried);
        for message in team.pending() {
            if carried.insert(message.target_id.clone()) {
                self.scope.spawn(self.clone().carry(message.target_id.clone()));
            }
        }
    }

    async fn carry(self: Arc<Self>, target: SessionId) {
        let mut changes = self.changes.subscribe();
        let mut failures = 0;
        loop {
            changes.borrow_and_update();
            let Some(queue) = self.queue(&target) else { return };
            let failed = match self.advance(&target, &queue).await {
                Carried::Delivered => {
                    failures = 0;
                    continue;
                }
                Carried::Stays => false,
                Carried::Failed(error) => {
                    tracing::debug!(team = %self.id(), %target, %error, "a message stays queued");
                    true
                }
            };
            // They are durable, and nobody has to wait for them.
            for message in &queue {
                self.tell_sender(&message.id, false);
            }
            let again = AGAIN_AFTER * (1 << failures);
            failures = (failures + u32::from(failed)).min(DOUBLINGS_MAX);
            tokio::select! {
                biased;
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(again), if failed => {}
            }
        }
    }

    /// What waits for a target; `None` once nothing does, and then its carrier is done.
    fn queue(&self, target: &SessionId) -> Option<Vec<TeamMessage>> {
        // Whoever queues a message starts a carrier under this lock, or finds this one at work.
        let mut carried = locked(&self.carried);
        let team = self.team().ok();
        let queue: Vec<_> =
            team.iter().flat_map(|team| team.pending_for(target)).cloned().collect();
        if queue.is_empty() {
            carried.remove(target);
            return None;
        }
        Some(queue)
    }

    /// Takes the queue one message further.
    async fn advance(self: &Arc<Self>, target: &SessionId, queue: &[TeamMessage]) -> Carried {
        let first = queue.first();
        let mut carried = Carried::Stays;
        if let Some(first) = first {
            carried = self.attempt(target, first).await;
        }
        // What waits quietly for a target that is not live holds nobody up who wakes it; the target's
        // set-up puts it before that.
        let wakes = queue.iter().find(|message| message.delivery == Delivery::Wakeup);
        match (&carried, wakes) {
            (Carried::Stays, Some(wakes)) if Some(wakes) != first => {
                self.attempt(target, wakes).await
            }
            _ => carried,
        }
    }

    async fn attempt(self: &Arc<Self>, target: &SessionId, message: &TeamMessage) -> Carried {
        match self.deliver(target, message).await {
            Ok(true) => Carried::Delivered,
            Ok(false) => Carried::Stays,
            Err(error) => Carried::Failed(error),
        }
    }

    async fn deliver(
        self: &Arc<Self>,
        target: &SessionId,
        message: &TeamMessage,
    ) -> Result<bool, TeamError> {
        let live = self.live(target);
        let is_uncertain = locked(&self.uncertain).contains(&message.id);
        let recorded = match is_uncertain {
            true => self.recorded(target, &message.id).await,
            false => Recorded::Absent,
        };
        let framed = message.framed(self.id());
        let step = next(message.delivery, live.is_some(), recorded);
        if matches!(step, Next::Inject | Next::Wake) {
            locked(&self.uncertain).insert(message.id.clone());
        }
        match (step, &live) {
            (Next::Stay, _) if recorded == Recorded::Unknown => {
                return Err(TeamError::Unreadable { target: target.clone() });
            }
            (Next::Stay, _) | (Next::Inject, None) => return Ok(false),
            (Next::Acknowledge, _) => {}
            (Next::Inject, Some(agent)) => {
                agent.send_again(framed, InboxTarget::NextStep, false).await.map_err(not_taken)?;
            }
            (Next::Wake, Some(lead)) if *lead == self.agent => {
                lead.send_again(framed, InboxTarget::NextTurn, true).await.map_err(not_taken)?;
            }
            (Next::Wake, _) => {
                let cancel = self.scope.cancel_token();
                self.continuations.deliver(&self.agent, target, framed, cancel).await?;
            }
        }
        if !self.holds(target, &message.id).await? {
            return Ok(false);
        }
        self.acknowledge(message).await?;
        Ok(true)
    }

    /// What the target's log says of a message, as far as it can be read.
    async fn recorded(&self, target: &SessionId, id: &MessageId) -> Recorded {
        if let Some(agent) = self.live(target) {
            let view = agent.session().view();
            return Recorded::of(&view.log, &view.inbox, id);
        }
        let Some(store) = &self.world.store else { return Recorded::Unknown };
        let log = match store.read(target).await {
            Ok(stored) => stored.log(),
            Err(error) => Err(error),
        };
        log.map_or(Recorded::Unknown, |log| Recorded::stored(&log, id))
    }

    /// Whether a session holds a message **durably**.
    pub async fn holds(&self, target: &SessionId, id: &MessageId) -> Result<bool, TeamError> {
        if let Some(agent) = self.live(target)
            && agent.session().flush().await?
        {
            let view = agent.session().view();
            return Ok(Recorded::of(&view.log, &view.inbox, id).came());
        }
        // Its disposal has made it durable.
        Ok(self.recorded(target, id).await.came())
    }

    async fn acknowledge(self: &Arc<Self>, message: &TeamMessage) -> Result<(), TeamError> {
        let TeamMessage { id, target_id, .. } = message;
        self.transact(|team| {
            let is_pending = team.pending().iter().any(|pending| pending.id == *id);
            let (message, target) = (id.clone(), target_id.clone());
            Ok((is_pending.then_some(Record::Delivered { message, target }), ()))
        })
        .await?;
        locked(&self.uncertain).remove(id);
        self.tell_sender(id, true);
        Ok(())
    }

    fn tell_sender(&self, id: &MessageId, arrived: bool) {
        if let Some(sender) = locked(&self.senders).remove(id) {
            // It may not wait any more.
            let _ = sender.send(arrived);
        }
    }

    /// Puts what waits quietly into a member that is starting, before what starts it. Its carrier
    /// records that it has arrived once the member is live.
    ///
    /// # Errors
    ///
    /// What the member's log says.
    pub async fn greet(&self, member: &Agent) -> Result<(), Failure> {
        let team = self.team()?;
        let queue = team.pending_for(member.id());
        for message in queue.take_while(|message| message.delivery == Delivery::Quiet) {
            locked(&self.uncertain).insert(message.id.clone());
            let framed = message.framed(self.id());
            member.send_again(framed, InboxTarget::NextStep, false).await?;
        }
        Ok(())
    }
}

fn not_taken(error: playhouse_plugin_api::agent::AgentError) -> TeamError {
    ContinuationError::from(error).into()
}
