//! Falling asleep: senders are held back, the agent is asked, and gone or left alone.

use playhouse_messages::{
    event::{EventBody, InboxTarget},
    machine::Status,
    protocol::AgentMessage,
    session::InboxEdit,
};
use playhouse_plugin_api::{
    agent::{Agent, Disposal},
    creation::AgentHandle,
    slot::Pause,
    world::World,
};
use ractor::rpc::CallResult;

use super::{
    Awake, HibernateError,
    decision::{Facts, awake},
};
use crate::agents::{
    disposal::PATIENCE,
    maker::{Maker, shutting_down},
};
use playhouse_messages::chunk::Failure;

/// In how many events at the end of a log its last turn's end is looked for; plugins may add some.
const LAST_EVENTS: u64 = 16;

impl Maker {
    /// Lets an agent hibernate, in a task that goes on if the caller goes.
    pub(crate) async fn hibernate(&self, agent: &Agent) -> Result<(), HibernateError> {
        let failed = |failure| HibernateError::Failed { id: agent.id().clone(), failure };
        if self.means.tasks.is_closed() {
            return Err(failed(shutting_down()));
        }
        let (world, falling) = (self.world.clone(), agent.clone());
        let fell = self.means.tasks.spawn(async move { fall(&world, &falling).await });
        fell.await.unwrap_or_else(|fault| Err(failed(Failure::new("PANIC", fault.to_string()))))
    }
}

async fn fall(world: &World, agent: &Agent) -> Result<(), HibernateError> {
    if agent.status() == Status::Running && has_ended(agent) {
        // Its turn has ended, and may not be durable yet.
        let _ = agent.when_idle().await;
    }
    // Nobody is held back for what can be seen without.
    let idle = agent.status() == Status::Idle;
    decide(agent, Facts { undurable: 0, ..facts(world, agent, idle) })?;
    store(agent).await?;

    let busy = || refused(agent, vec![Awake::Busy]);
    // Between two lives of its actor, or somebody else is at it.
    let pause = agent.cell().actor.pause().ok_or_else(busy)?;
    // A command that changes nothing, behind all that was sent: once it is answered, everything
    // before it stands in the log.
    let nothing = InboxEdit::Splice {
        target: InboxTarget::NextStep,
        start: 0,
        delete: 0,
        insert: Vec::new(),
    };
    let last =
        pause.actor().call(|reply| AgentMessage::Edit { edit: nothing, reply }, Some(PATIENCE));
    if !matches!(last.await, Ok(CallResult::Success(Ok(_)))) {
        return Err(busy());
    }
    let lease = Lease::take(&pause, agent).await.ok_or_else(busy)?;
    decide(agent, facts(world, agent, true))?;

    agent.cell().falls_asleep();
    // Whoever was held back learns that it hibernates.
    agent.cell().actor.close();
    lease.end();
    // One that is dead already cannot be stopped.
    let _ = pause.actor().stop_and_wait(None, Some(PATIENCE)).await;
    let ended = AgentHandle::new(agent.clone()).dispose_keeping_inbox().await;
    ended.map_err(|failure| HibernateError::Failed { id: agent.id().clone(), failure })
}

/// Whether the agent is only on its way to rest: its last turn has ended, and no prompt asks for
/// another.
fn has_ended(agent: &Agent) -> bool {
    let view = agent.session().view();
    let len = view.log.len();
    let recent: Vec<_> = view.log.range(len.saturating_sub(LAST_EVENTS)..len).collect();
    let bound = recent.iter().rev().find_map(|event| match event.body {
        EventBody::TurnEnd(_) => Some(true),
        EventBody::TurnStart(_) => Some(false),
        _ => None,
    });
    bound == Some(true) && view.inbox.list(InboxTarget::NextTurn).is_empty()
}

/// Makes the log durable, and a log without events known to the store.
async fn store(agent: &Agent) -> Result<(), HibernateError> {
    let session = agent.session();
    let (len, durable) = (session.log().len(), session.marks().borrow().durable);
    if len > 0 && durable >= len {
        return Ok(());
    }
    let flushed = session.flush().await.map(drop);
    let failed = |failure| HibernateError::Failed { id: agent.id().clone(), failure };
    flushed.map_err(|error| failed(error.into()))
}

fn refused(agent: &Agent, reasons: Vec<Awake>) -> HibernateError {
    HibernateError::Refused { id: agent.id().clone(), reasons }
}

fn decide(agent: &Agent, facts: Facts) -> Result<(), HibernateError> {
    let reasons = awake(facts);
    if reasons.is_empty() { Ok(()) } else { Err(refused(agent, reasons)) }
}

/// What is known of an agent now.
fn facts(world: &World, agent: &Agent, idle: bool) -> Facts {
    let cell = agent.cell();
    let (mut children, making) = world.agents.owned(agent.scope().id());
    for child in world.agents.children(agent.id()) {
        if !children.contains(&child) {
            children.push(child);
        }
    }
    let (registrations, tasks) = cell.tied();
    let session = agent.session();
    let durable = session.marks().borrow().durable;
    Facts {
        blueprint: agent.blueprint().map(|name| String::from(&**name)),
        registered: agent.blueprint().is_some_and(|name| world.blueprints.get(name).is_some()),
        stored: session.cell().handle().is_some(),
        undurable: session.log().len().saturating_sub(durable),
        idle: idle && !cell.is_held(),
        disposing: *cell.disposal().borrow() != Disposal::Live,
        prompts: agent.inbox().list(InboxTarget::NextTurn).len(),
        children: children.iter().map(|child| child.id().clone()).collect(),
        making: making.len(),
        held: cell.held_awake(),
        registrations,
        tasks,
    }
}

/// The idle agent, for the one who decides. Given back unless it is over.
struct Lease<'a>(Option<&'a Agent>);

impl<'a> Lease<'a> {
    async fn take(pause: &Pause<'_, AgentMessage>, agent: &'a Agent) -> Option<Self> {
        // An answer is never late: the actor has it in its hands, or is dead.
        let granted = pause.actor().call(|reply| AgentMessage::Maintain { reply }, None).await;
        matches!(granted, Ok(CallResult::Success(true))).then_some(Self(Some(agent)))
    }

    fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(agent) = self.0 {
            let _ = agent.cell().actor.cast(AgentMessage::Maintained);
        }
    }
}
