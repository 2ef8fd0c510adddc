//! Who works with one agent: prompts it turn after turn, meddles meanwhile, and asks it a last time.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use playhouse_messages::{
    event::{CancelCause, EventBody, InboxTarget, TurnEndReason},
    id::MessageId,
    machine::Status,
    message::Message,
};
use playhouse_plugin_api::agent::{Agent, AgentError};
use tokio::time::Instant;

use super::{
    fleet::{Fleet, PATIENCE},
    judge,
    model::MOODS,
    report::Fault,
};

/// How often a client looks whether the prompt that it waits for still may be answered.
const LOOK: Duration = Duration::from_millis(500);

/// Asks for turns until they are done or the run is over.
pub(super) async fn play(fleet: Arc<Fleet>, agent: Agent, mut rng: Rng) {
    let mut sent = Vec::new();
    for turn in 0..fleet.load.turns {
        if fleet.over.is_cancelled() {
            return;
        }
        let mood = MOODS[rng.usize(0..MOODS.len())];
        let mood = if mood == "delegate" && fleet.load.children == 0 { "talk" } else { mood };
        let (began, from) = (Instant::now(), agent.session().log().len());
        let Some(id) = prompt(&fleet, &agent, format!("{mood} {turn}")).await else { return };
        sent.push(id.clone());
        let deeds = rng.usize(0..4);
        let (answered, ()) = tokio::join!(
            answered(&fleet, &agent, &id, from),
            meddle(&fleet, &agent, &mut rng, deeds, &sent)
        );
        match answered {
            Answered::Ended => fleet.ledger.entries().turn_times.push(began.elapsed()),
            Answered::Left => {}
            Answered::Gone => return,
        }
    }
}

/// Asks for a turn, which also wakes what was kept.
async fn prompt(fleet: &Fleet, agent: &Agent, text: String) -> Option<MessageId> {
    let id = tell(fleet, agent, agent.followup(text)).await;
    fleet.ledger.park(agent.id(), false);
    id
}

/// Sends, and notes what is acknowledged. `None` if the agent is gone, or a send does not end.
async fn tell(
    fleet: &Fleet,
    agent: &Agent,
    sending: impl Future<Output = Result<MessageId, AgentError>>,
) -> Option<MessageId> {
    match fleet.bounded(agent.id(), "a send", sending).await? {
        Ok(id) => {
            fleet.ledger.acknowledge(agent.id(), id.clone());
            Some(id)
        }
        Err(AgentError::Gone(_)) => None,
        Err(fault) => {
            fleet.ledger.fault(Fault::of(agent.id(), format!("a send is refused: {fault}")));
            None
        }
    }
}

enum Answered {
    /// Its turn has ended, or a cancel took it first.
    Ended,
    /// It waits behind a turn that failed, for somebody to wake the agent.
    Left,
    /// The agent is disposed, or hangs.
    Gone,
}

async fn answered(fleet: &Fleet, agent: &Agent, id: &MessageId, from: u64) -> Answered {
    let give_up = Instant::now() + PATIENCE;
    let outcome = agent.outcome(id, from);
    tokio::pin!(outcome);
    loop {
        match tokio::time::timeout(LOOK, &mut outcome).await {
            Ok(Ok(_) | Err(AgentError::Dropped { .. })) => return Answered::Ended,
            Ok(Err(AgentError::Gone(_))) => return Answered::Gone,
            Ok(Err(fault)) => {
                fleet
                    .ledger
                    .fault(Fault::of(agent.id(), format!("an outcome is refused: {fault}")));
                return Answered::Gone;
            }
            Err(_) if agent.status() == Status::Idle => return Answered::Left,
            Err(_) if Instant::now() > give_up => {
                let text = format!("input {id} is not answered while the agent runs");
                fleet.ledger.fault(Fault::of(agent.id(), text));
                return Answered::Gone;
            }
            Err(_) => {}
        }
    }
}

/// Does what other clients might do to a running turn.
async fn meddle(fleet: &Fleet, agent: &Agent, rng: &mut Rng, deeds: usize, sent: &[MessageId]) {
    for _ in 0..deeds {
        tokio::time::sleep(Duration::from_millis(rng.u64(0..40))).await;
        match rng.u32(0..10) {
            0 => agent.cancel(CancelCause::User),
            1 => {
                fleet.ledger.park(agent.id(), true);
                agent.cancel_with(CancelCause::User, true);
            }
            2..=4 => drop(tell(fleet, agent, agent.steer("talk: steered")).await),
            5 | 6 => drop(tell(fleet, agent, agent.inject("talk: by the way")).await),
            7 | 8 => drop(prompt(fleet, agent, "talk: and then".to_owned()).await),
            _ => {
                let again = Message::user(sent[rng.usize(0..sent.len())].clone(), "Once more.");
                let sending = agent.send_again(again, InboxTarget::NextTurn, true);
                drop(tell(fleet, agent, sending).await);
            }
        }
    }
}

/// With nothing that fails any more: the agent comes to rest, leaves nothing waiting that it should
/// have run, and answers.
pub(super) async fn settle(fleet: Arc<Fleet>, agent: Agent) {
    let id = agent.id().clone();
    let fault = |what: String| fleet.ledger.fault(Fault::of(&id, what));
    match fleet.bounded(&id, "the wait for idle", agent.when_idle()).await {
        None => return,
        Some(Err(_)) => {
            if !judge::given_up(&agent.session().log()) {
                fault("it is gone, and its log does not say why".to_owned());
            }
            return;
        }
        Some(Ok(())) => {}
    }
    let waiting = agent.inbox().list(InboxTarget::NextTurn).len();
    let ended = agent.session().log().iter().rev().find_map(|event| match &event.body {
        EventBody::TurnEnd(end) => Some(end.reason.clone()),
        _ => None,
    });
    let woken = waiting > 0 && !fleet.ledger.parked(&id);
    if woken && matches!(ended, Some(TurnEndReason::Completed | TurnEndReason::Interrupted)) {
        fault(format!("it is idle after {ended:?}, and {waiting} prompts wait"));
    }
    // What waits behind a turn that failed would be run first.
    agent.cancel(CancelCause::User);
    let from = agent.session().log().len();
    let Some(last) = tell(&fleet, &agent, agent.followup("talk: still there?")).await else {
        return;
    };
    match fleet.bounded(&id, "the last prompt", agent.outcome(&last, from)).await {
        Some(Ok(outcome)) if outcome.is_completed() && !outcome.text.is_empty() => {}
        Some(other) => fault(format!("the last prompt came to {other:?}")),
        None => {}
    }
    fleet.bounded(&id, "the wait for idle", agent.when_idle()).await;
    match fleet.bounded(&id, "the last flush", agent.session().flush()).await {
        Some(Ok(true)) | None => {}
        Some(other) => fault(format!("the last flush came to {other:?}")),
    }
}
