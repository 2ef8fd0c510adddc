//! How agents end: top down they are told, bottom up they are released.

use std::{collections::HashSet, sync::Arc, time::Duration};

use playhouse_messages::{
    chunk::Failure,
    event::{CancelCause, EventBody, NewEvent, TurnEnd, TurnEndReason},
    id::SessionId,
    protocol::{CommandNo, WriterMessage},
    session::Command,
};
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    creation::AgentHandle,
    points::Disposing,
    registry::UnderWay,
    session::SessionCell,
    slot::{Gone, Slot},
    store::{EventBatch, SessionWriter, StoreError},
    world::World,
};
use ractor::Message;
use serde_json::json;

/// The event by which a log says that its agent could not go on.
pub const AGENT_FAILED: &str = "agent/failed";

/// The code of a failure that says: the store does not answer, and what was accepted may be lost.
pub const STORE_TIMEOUT: &str = "STORE_TIMEOUT";

/// What is waited for on top of the grace time: longer is a fault of ours, and must not hang a caller.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How many disposals, one after the other, a listener of a disposal may wait for: what is below an
/// agent ends level by level.
const LEVELS: u32 = 32;

/// How long a store that fails is left alone before it is tried again, at first and at most: about 3 s
/// in all, within the patience.
const STORE_PAUSE_MIN: Duration = Duration::from_millis(50);
const STORE_PAUSE_MAX: Duration = Duration::from_millis(1600);

/// Ends an agent: cancels it and everything it owns, waits until all of it is quiet, releases
/// scope, write handle and registry entry. Every stage runs, whatever became of the one before.
pub async fn dispose(world: &World, agent: &Agent, keep_inbox: bool) -> Result<(), Failure> {
    let mut failures = Vec::new();
    agent.cancel_with(CancelCause::Disposed, keep_inbox);
    failures.extend(tell(world, agent, keep_inbox).await.err());
    failures.extend(dispose_owned(world, agent, keep_inbox).await.err());
    // The loop's own graces bound its end.
    let patience = world.limits.grace * 2 + PATIENCE;
    match tokio::time::timeout(patience, agent.when_idle()).await {
        // Gone: a predecessor of the supervisor had got further.
        Ok(Ok(()) | Err(_)) => {}
        Err(_) => failures.push(Failure::new("DISPOSE_TIMEOUT", "the agent did not become idle")),
    }
    release(world, agent, failures).await
}

/// Ends an agent whose actors cannot go on. The log, which they no longer extend, says why.
pub async fn abandon(world: &World, agent: &Agent, failure: Failure) -> Result<(), Failure> {
    let mut failures = Vec::new();
    agent.cell().token().cancel(CancelCause::Disposed);
    failures.extend(dispose_owned(world, agent, true).await.err());
    let cell = agent.session().cell();
    // Whoever still appends must have done so: what is published below takes the log's place.
    let patience = world.limits.grace + PATIENCE;
    retire(&agent.cell().actor, patience).await;
    retire(&cell.appender, patience).await;
    // It may be what keeps dying: the log's rest goes to the store from here.
    retire(&cell.writer, patience).await;
    cell.close_writer();
    // Only now: what a listener waits for may want to tell the agent something, and must not wait.
    failures.extend(tell(world, agent, true).await.err());
    failures.extend(note(world, cell, &failure).err());
    release(world, agent, failures).await
}

/// Lets listeners end what belongs to the agent and is not owned by it.
async fn tell(world: &World, agent: &Agent, keep_inbox: bool) -> Result<(), Failure> {
    let going = Disposing { agent: agent.clone(), keep_inbox };
    let told = world.hooks.disposing.run(agent.scope(), going);
    tokio::time::timeout((world.limits.grace + PATIENCE) * LEVELS, told).await.unwrap_or_else(
        |_| Err(Failure::new("DISPOSE_TIMEOUT", "a listener of the disposal does not end")),
    )
}

/// Says in a log why its agent could not go on, and closes the turn that is open.
fn note(world: &World, cell: &SessionCell, failure: &Failure) -> Result<(), Failure> {
    loop {
        let mut core =
            cell.load().map_err(|fault| Failure::new(fault.code(), fault.to_string()))?;
        let before = core.log().len();
        let mut mint = world.mint();
        if let Some(open) = core.state().boundary().open_turn() {
            let (turn, at) = (open.turn, core.state().boundary().at());
            if let Some(at) = at {
                core.execute(Command::EndStep { at, recover: true }, &mut mint);
            }
            let end = TurnEnd { turn, reason: TurnEndReason::Error(failure.clone()) };
            let end = NewEvent::log_only(EventBody::TurnEnd(end));
            core.execute(Command::Append(vec![end]), &mut mint);
        }
        let data = json!({"code": failure.code, "message": failure.message});
        let note = NewEvent::custom(AGENT_FAILED, data).ignorable();
        let reply = core.execute(Command::Append(vec![note]), &mut mint);
        let number = CommandNo { origin: u64::MAX, number: before };
        // A dead appender may have been at its last command; it has no other.
        if cell.publish(&core, before, number, &reply).is_ok() {
            return Ok(());
        }
    }
}

/// Disposes the agents whose owner is the agent's scope, or one below it. All are told first; those
/// that are being made are given up, and their creations undo themselves.
#[expect(clippy::mutable_key_type, reason = "agents are told apart by where they lie")]
async fn dispose_owned(world: &World, agent: &Agent, keep_inbox: bool) -> Result<(), Failure> {
    let mut done = HashSet::from([agent.clone()]);
    let mut failures = Vec::new();
    loop {
        let (mut owned, making) = world.agents.owned(agent.scope().id());
        owned.retain(|owned| !done.contains(owned));
        if owned.is_empty() && making.is_empty() {
            return combined(agent, failures);
        }
        for making in &making {
            making.give_up(CancelCause::Disposed);
        }
        for child in &owned {
            child.cancel_with(CancelCause::Disposed, keep_inbox);
        }
        let ends = owned.iter().map(|child| async move {
            let child = AgentHandle::new(child.clone());
            if keep_inbox { child.dispose_keeping_inbox().await } else { child.dispose().await }
        });
        for ended in futures::future::join_all(ends).await {
            failures.extend(ended.err());
        }
        futures::future::join_all(making.iter().map(UnderWay::over)).await;
        done.extend(owned);
    }
}

async fn release(world: &World, agent: &Agent, mut failures: Vec<Failure>) -> Result<(), Failure> {
    let patience = world.limits.grace + PATIENCE;
    if tokio::time::timeout(patience, agent.scope().close_and_wait()).await.is_err() {
        failures.push(Failure::new("DISPOSE_TIMEOUT", "a task of the agent's scope does not end"));
    }
    let session = agent.session();
    // Nobody is told any more that something was accepted, so nothing accepted is left out below.
    retire(&agent.cell().actor, patience).await;
    retire(&session.cell().appender, patience).await;
    failures.extend(in_time(patience, agent.id(), store(session.cell())).await.err());
    session.cell().close_writer();
    session.cell().feed().close();
    let announced = world.agents.remove(agent);
    agent.cell().set_disposal(Disposal::Disposed);
    if announced {
        world.hooks.disposed.tell(agent.scope(), agent);
    }
    let end = combined(agent, failures);
    // Whoever asks from now on finds nobody, and is told the same.
    agent.cell().set_end(end.clone());
    agent.cell().supervisor.close();
    end
}

/// Makes all of a log durable and gives the claim back. A store that fails is tried again for a while,
/// since what was accepted has no other place to go.
async fn store(cell: &SessionCell) -> Result<(), Failure> {
    let Some(handle) = cell.handle() else { return Ok(()) };
    let mut pause = STORE_PAUSE_MIN;
    let drained = loop {
        let Err(failure) = drain(cell, handle).await else { break Ok(()) };
        if pause > STORE_PAUSE_MAX || failure.code == StoreError::Closed.code() {
            // Closing it tries once more.
            tracing::warn!(session = %cell.id(), %failure, "the end of a log is not stored");
            break Err(failure);
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    };
    match cell.writer.call(|_, reply| WriterMessage::Close { reply }).await {
        Ok(closed) => closed,
        Err(Gone) => {
            handle.close().await.map_err(store_failure)?;
            // It flushes what was written, and writes nothing.
            let is_written = cell.marks().borrow().written >= cell.view().log.len();
            if is_written { Ok(()) } else { drained }
        }
    }
}

/// Writes and syncs what is not durable: by the writer if there is one, and from here if not.
async fn drain(cell: &SessionCell, handle: &Arc<dyn SessionWriter>) -> Result<(), Failure> {
    let (log, durable) = (cell.view().log.clone(), cell.marks().borrow().durable);
    if durable >= log.len() {
        return Ok(());
    }
    match cell.writer.call(|_, reply| WriterMessage::Flush { reply }).await {
        Ok(flushed) => flushed.map(drop),
        Err(Gone) => {
            let rest: Vec<_> = log.range(durable..log.len()).cloned().collect();
            handle.append(EventBatch::encode(&rest)).await.map_err(store_failure)?;
            cell.mark(log.len(), durable);
            handle.flush().await.map_err(store_failure)?;
            cell.mark(log.len(), log.len());
            Ok(())
        }
    }
}

/// Waits for the store to make a session durable, and not for ever: whoever ends must end. The claim
/// stays with the store, which may still do what it was asked.
pub async fn in_time(
    patience: Duration,
    id: &SessionId,
    storing: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    tokio::time::timeout(patience, storing).await.unwrap_or_else(|_| {
        let text = format!(
            "the store did not answer in {patience:?}: the end of session `{id}` may not be durable; \
             once the store works, resume the session and see how far it goes"
        );
        Err(Failure::new(STORE_TIMEOUT, text))
    })
}

/// A store's error as a failure.
pub fn store_failure(error: StoreError) -> Failure {
    Failure::new(error.code(), error.to_string())
}

/// Releases an agent that no supervisor took over.
pub async fn discard(world: &World, agent: &Agent) -> Result<(), Failure> {
    agent.session().cell().close_writer();
    release(world, agent, Vec::new()).await
}

/// Closes a slot, and waits until its actor has done what it was at.
async fn retire<M: Message>(slot: &Slot<M>, patience: Duration) {
    let last = slot.live();
    slot.close();
    if let Some(last) = last {
        // One that is dead already cannot be stopped; one that hangs is killed with its supervisor.
        let _ = last.stop_and_wait(None, Some(patience)).await;
    }
}

/// One failure as it is, several as one.
fn combined(agent: &Agent, mut failures: Vec<Failure>) -> Result<(), Failure> {
    match failures.len() {
        0 => Ok(()),
        1 => Err(failures.remove(0)),
        _ => {
            let all: Vec<_> = failures.iter().map(ToString::to_string).collect();
            let text = format!("agent \"{}\" disposal failed: [{}]", agent.id(), all.join("; "));
            Err(Failure::new("DISPOSE_FAILED", text))
        }
    }
}
