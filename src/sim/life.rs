//! One life of a harness: from its start to its end, in order or not.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use playhouse_messages::{chunk::Failure, event::CancelCause, id::SessionId};
use playhouse_plugin_api::{store::StoredSession, world::World};
use playhouse_subagents::{Slots, Subagents};
use tokio::task::JoinSet;

use super::{
    checks, clients,
    disk::Disk,
    hooks, mischief,
    model::Model,
    plan::{Ending, ROUTES},
    tools,
    witness::{Witness, WitnessClock, WitnessIds},
};
use crate::{AgentHandle, AgentOptions, Harness, NewAgent, testing::FaultyStore};

/// How many children may live at once.
const CHILDREN_MAX: usize = 3;

/// A harness and what plays around it.
pub(super) struct Life {
    pub(super) witness: Arc<Witness>,
    pub(super) harness: Harness,
    pub(super) faulty: FaultyStore,
    pub(super) disk: Disk,
    agents: Mutex<Vec<Option<AgentHandle>>>,
    slots: Slots,
}

impl Life {
    async fn begin(witness: &Arc<Witness>, disk: &Disk) -> Result<Self, Failure> {
        let faulty = FaultyStore::new(disk.clone());
        witness.seen().store = Some((faulty.clone(), disk.clone()));
        let plugin = Subagents::new().max_children(CHILDREN_MAX).max_depth(2);
        let slots = plugin.slots().clone();
        let builder = crate::minimal()
            .plugin(plugin)
            .store(faulty.clone())
            .clock(WitnessClock(witness.clone()))
            .ids(WitnessIds(witness.ids.clone()))
            .grace(witness.plan.grace);
        let harness =
            builder.start().await.map_err(|error| Failure::new(error.code(), error.to_string()))?;
        let world = harness.world();
        hooks::meddle(witness, world)?;
        for tool in tools::tools(witness, world) {
            harness.register_tool(tool)?;
        }
        for (route, replies) in ROUTES.into_iter().zip(&witness.plan.replies) {
            let model = Arc::new(Model::adapter(replies, witness, world));
            // The registration lasts as long as the harness.
            let registered = world.models.register([route], model);
            let _ = registered.map_err(|error| Failure::new(error.code(), error.to_string()))?;
        }
        let agents = Mutex::new(vec![None; witness.plan.agents.len()]);
        let (witness, disk) = (witness.clone(), disk.clone());
        Ok(Self { witness, harness, faulty, disk, agents, slots })
    }

    pub(super) fn agent(&self, at: usize) -> Option<AgentHandle> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)[at].clone()
    }

    pub(super) fn join(&self, at: usize, handle: AgentHandle) {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(handle);
    }

    pub(super) fn leave(&self, at: usize, handle: &AgentHandle) {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if agents[at].as_ref().is_some_and(|held| held.agent() == handle.agent()) {
            agents[at] = None;
        }
    }

    pub(super) fn new_agent(&self, at: usize) -> NewAgent {
        let plan = &self.witness.plan.agents[at];
        let options = AgentOptions::new()
            .model(ROUTES[at % ROUTES.len()], "m")
            .max_steps(plan.max_steps)
            .durability(plan.durability);
        NewAgent::new(options)
    }

    fn world(&self) -> &Arc<World> {
        self.harness.world()
    }
}

/// Lives one life, and returns what the store holds after it.
pub(super) async fn live(witness: &Arc<Witness>, disk: &Disk, ending: &Ending) {
    witness.begin();
    witness.note(format!("a life begins: {ending:?}"));
    let life = match Life::begin(witness, disk).await {
        Ok(life) => Arc::new(life),
        Err(failure) => return witness.fail(format!("the harness does not start: {failure}")),
    };
    let mut players = JoinSet::new();
    for at in 0..witness.plan.agents.len() {
        let life = life.clone();
        players.spawn(async move { life.enter(at).await });
    }
    while players.join_next().await.is_some() {}
    for client in 0..witness.plan.clients.len() {
        players.spawn(clients::play(life.clone(), client));
    }
    players.spawn(meddle(life.clone()));
    let everybody = async {
        while let Some(ended) = players.join_next().await {
            if let Err(fault) = ended {
                witness.fail(format!("a client fell over: {fault}"));
            }
        }
    };
    match ending {
        Ending::Crash { after, power } => {
            let _ = tokio::time::timeout(*after, everybody).await;
            tokio::time::sleep(*after / 4).await;
            witness.count(if *power { "power cut" } else { "crash" });
            witness.note("the harness crashes");
            crashed(&life, *power);
        }
        Ending::Shutdown { after } => {
            let _ = tokio::time::timeout(*after, everybody).await;
            shut_down(&life).await;
        }
        Ending::Rest => {
            everybody.await;
            rest(&life).await;
            shut_down(&life).await;
        }
    }
    let failures = mischief::store_failures(witness);
    *witness.seen().tally.entry("store failure").or_default() += failures;
    if matches!(ending, Ending::Crash { .. }) {
        return;
    }
    drop(players);
    quiet(life).await;
}

async fn meddle(life: Arc<Life>) {
    let witness = life.witness.clone();
    loop {
        let next = witness.seen().next_mischief;
        let Some(beat) = witness.plan.mischief.get(next) else { return };
        tokio::time::sleep(beat.after).await;
        witness.seen().next_mischief += 1;
        mischief::work(&life, &beat.what);
    }
}

/// The store is well again, every stored session is taken up, all work is cancelled, and all come to
/// rest.
async fn rest(life: &Life) {
    life.faulty.heal();
    for at in 0..life.witness.plan.agents.len() {
        if life.agent(at).is_none() {
            life.enter(at).await;
        }
    }
    // Children that a crash left behind, and root agents whose creation a hook refused.
    for session in life.disk.sessions() {
        let id = session.header.id.clone();
        if life.world().agents.made(&id).is_none() {
            let resumed =
                life.bounded("a resume", life.harness.resume(id.clone(), life.new_agent(0)));
            if let Some(Err(error)) = resumed.await {
                life.witness.note(format!("{id} does not come: {error}"));
            }
        }
    }
    for agent in life.harness.agents() {
        agent.cancel(CancelCause::User);
        // A message that is on its way may wake it again, but not for ever.
        if let Some(Err(_)) = life.bounded("the wait for idle", agent.when_idle()).await {
            life.witness.note(format!("{} is gone", agent.id()));
        }
    }
}

async fn shut_down(life: &Life) {
    let witness = &life.witness;
    life.faulty.heal();
    let alive: Vec<_> = life.harness.agents().iter().map(|agent| agent.id().clone()).collect();
    witness.note("the harness shuts down");
    let Some(ended) = life.bounded("the shutdown", life.harness.shutdown()).await else { return };
    match ended {
        Ok(()) => {
            let mut seen = witness.seen();
            seen.released.extend(alive);
        }
        // A disposal that was under way may have met a store that failed.
        Err(failure)
            if mischief::store_failures(witness) > 0 && mischief::is_of_store(&failure.code) =>
        {
            witness.note(format!("the shutdown: {failure}"));
        }
        Err(failure) => witness.fail(format!("the shutdown: {failure}")),
    }
    let left = life.world().agents.all();
    if !left.is_empty() {
        witness.fail(format!("agents are left after the shutdown: {left:?}"));
    }
    if life.slots.taken() > 0 {
        witness.fail(format!("{} slots of children are left taken", life.slots.taken()));
    }
    settled(life);
}

/// What must be true once a harness has shut down.
fn settled(life: &Life) {
    let witness = &life.witness;
    let stored = life.disk.sessions();
    let find = |id: &SessionId| stored.iter().find(|stored| stored.header.id == *id);
    let (sessions, released, rooted) = {
        let seen = witness.seen();
        let rooted = seen.tally.contains_key("root killed");
        (seen.sessions.clone(), seen.released.clone(), rooted)
    };
    let troubled = mischief::store_failures(witness) > 0;
    for (id, session) in &sessions {
        let whole = if rooted { !troubled } else { !troubled || released.contains(id) };
        let expected = if whole { session.log().len() } else { 0 };
        let expected = usize::try_from(expected).unwrap_or(usize::MAX);
        if let Err(fault) = checks::kept(session, find(id), expected) {
            witness.fail(format!("session {id}: {fault}"));
        }
        // The root's death leaves turns open; the next life repairs them.
        if !rooted && !checks::balanced(&session.log()) {
            witness.fail(format!("session {id} has a turn without an end"));
        }
    }
    for stored in &stored {
        if let Err(fault) = checks::stored(stored) {
            witness.fail(format!("stored session {}: {fault}", stored.header.id));
        }
    }
    promises(life, |id| find(id).cloned(), troubled);
}

/// What must be true of what a crash leaves.
fn crashed(life: &Life, power: bool) {
    let witness = &life.witness;
    let stored = life.disk.sessions();
    let find = |id: &SessionId| stored.iter().find(|stored| stored.header.id == *id);
    let sessions = witness.seen().sessions.clone();
    for (id, session) in &sessions {
        let marks = *session.marks().borrow();
        let written = usize::try_from(marks.written).unwrap_or(usize::MAX);
        if let Err(fault) = checks::kept(session, find(id), written) {
            witness.fail(format!("session {id}: {fault}"));
        }
        if (life.disk.durable(id) as u64) < marks.durable {
            witness.fail(format!("session {id}: {} events are said to be durable", marks.durable));
        }
    }
    let survives = |id: &SessionId| {
        let mut stored = find(id)?.clone();
        let kept = if power { life.disk.durable(id) } else { stored.events.len() };
        stored.events.truncate(kept);
        Some(stored)
    };
    promises(life, survives, true);
}

/// Every message whose acceptance was told stands in the log. In a store that failed, or crashed,
/// one may be missing that stands in no log that could be written; nobody counts on it any more.
fn promises(life: &Life, stored: impl Fn(&SessionId) -> Option<StoredSession>, may_lack: bool) {
    let witness = &life.witness;
    let (sessions, promised) = {
        let seen = witness.seen();
        (seen.sessions.clone(), seen.promised.clone())
    };
    let ids: std::collections::BTreeSet<_> = promised.iter().map(|(id, _)| id.clone()).collect();
    for id in ids {
        let live = sessions.get(&id).map(|session| checks::entered(&session.log()));
        let kept = stored(&id).and_then(|stored| stored.log().ok());
        let kept = kept.map(|log| checks::entered(&log)).unwrap_or_default();
        for (_, message) in promised.iter().filter(|(session, _)| *session == id) {
            let in_log = live.as_ref().is_none_or(|live| live.contains(message));
            if !in_log {
                witness
                    .fail(format!("message {message} was accepted and is not in the log of {id}"));
            }
            if !kept.contains(message) {
                if !may_lack {
                    witness.fail(format!("message {message} was accepted and {id} lacks it"));
                }
                witness.seen().promised.remove(&(id.clone(), message.clone()));
            }
        }
    }
}

/// Nothing of the harness runs any more.
async fn quiet(life: Arc<Life>) {
    let witness = life.witness.clone();
    drop(life);
    // Delayed restarts of what is gone find nobody.
    tokio::time::sleep(Duration::from_secs(120)).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    if tasks > 0 {
        witness.fail(format!("{tasks} tasks are left after the shutdown"));
    }
}
