//! Teams, as code drives them.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::{agent::Agent, scope::Registration, tool::Tool, world::World};
use playhouse_subagents::{Continuations, descriptor::Descriptor};

use crate::{
    config::{TeamsConfig, TeamsConfigError},
    error::TeamError,
    lead::{Lead, locked},
    policy,
    record::Phase,
    seat::Seat,
    team::{LEAD_NAME, Team},
};

/// The service under which the plugin offers its [`Teams`].
pub const TEAMS_SERVICE: &str = "teams";

/// The teams of a harness. Clones are the same service.
///
/// Every live agent that no other delegated to is the Lead of a team, named by its session. A team has
/// no state before its first record.
#[derive(Clone)]
pub struct Teams(Arc<Inner>);

struct Inner {
    world: Arc<World>,
    continuations: Continuations,
    config: TeamsConfig,
    leads: Mutex<HashMap<SessionId, Arc<Lead>>>,
    tools: OnceLock<Vec<Arc<dyn Tool>>>,
}

impl Teams {
    pub(crate) fn new(
        world: Arc<World>,
        continuations: Continuations,
        config: TeamsConfig,
    ) -> Result<Self, TeamsConfigError> {
        config.check()?;
        let (leads, tools) = (Mutex::default(), OnceLock::new());
        Ok(Self(Arc::new(Inner { world, continuations, config, leads, tools })))
    }

    /// What its tools are; asked for once.
    pub(crate) fn tools(&self, make: impl FnOnce() -> Vec<Arc<dyn Tool>>) {
        let _ = self.0.tools.set(make());
    }

    /// What bounds each team.
    pub fn config(&self) -> &TeamsConfig {
        &self.0.config
    }

    /// The Lead's own seat: by it code does all that a Lead may.
    ///
    /// # Errors
    ///
    /// `TEAM_NOT_A_MEMBER` unless this is a live Lead, `TEAM_CLOSING`.
    pub fn team(&self, lead: &Agent) -> Result<Seat, TeamError> {
        let seat = self.seat(lead)?;
        match seat.is_lead() {
            true => Ok(seat),
            false => Err(TeamError::NotAMember { agent: lead.id().clone() }),
        }
    }

    /// An agent's place in its team: that of a Lead, or of a member that was not given up.
    ///
    /// # Errors
    ///
    /// `TEAM_NOT_A_MEMBER`, `TEAM_CLOSING`, `TEAM_CORRUPT`.
    pub fn seat(&self, agent: &Agent) -> Result<Seat, TeamError> {
        if self.0.world.agents.get(agent.id()).as_ref() != Some(agent) {
            return Err(TeamError::NotAMember { agent: agent.id().clone() });
        }
        self.place(agent)
    }

    /// As [`Teams::seat`], also of an agent that is not live yet.
    fn place(&self, agent: &Agent) -> Result<Seat, TeamError> {
        let stranger = || TeamError::NotAMember { agent: agent.id().clone() };
        let lead = match agent.runtime_parent() {
            None => self.lead(agent.id()).filter(|lead| lead.agent == *agent),
            Some(parent) => self.lead(parent),
        };
        let lead = lead.ok_or_else(stranger)?;
        lead.admitted()?;
        let team = lead.team()?;
        let name = match team.member(agent.id()) {
            None if lead.agent == *agent => LEAD_NAME.to_owned(),
            Some(member) if member.phase != Phase::Failed => member.name.clone(),
            _ => return Err(stranger()),
        };
        Ok(Seat { lead, agent: agent.clone(), name })
    }

    /// The teams whose Leads are live, ordered by id: each by its Lead's seat, for seeing.
    pub fn all(&self) -> Vec<Seat> {
        let leads: Vec<_> = locked(&self.0.leads).values().map(|lead| lead.agent.clone()).collect();
        let mut seats: Vec<_> = leads.iter().filter_map(|lead| self.team(lead).ok()).collect();
        seats.sort_by(|one, other| one.id().cmp(other.id()));
        seats
    }

    fn lead(&self, id: &SessionId) -> Option<Arc<Lead>> {
        locked(&self.0.leads).get(id).cloned()
    }

    /// An agent has come. If it is a root, it leads a team from now on.
    pub(crate) async fn came(&self, agent: &Agent) -> Result<(), Failure> {
        if let Some(parent) = agent.runtime_parent() {
            if let Some(lead) = self.lead(parent) {
                lead.changed();
            }
            return Ok(());
        }
        if !is_root(agent) {
            return Ok(());
        }
        let Inner { world, continuations, config, leads, .. } = &*self.0;
        let scope = agent.scope().child("team")?;
        let (world, continuations) = (world.clone(), continuations.clone());
        let lead = Lead::new(agent.clone(), scope, world, continuations, config.clone());
        if let Err(error) = lead.team() {
            // Its log loads; what is asked of its team says what is wrong.
            tracing::error!(team = %agent.id(), %error, "a team that cannot be used");
        }
        let seat = Seat { lead: lead.clone(), agent: agent.clone(), name: LEAD_NAME.to_owned() };
        let mut registered = self.furnish(&seat)?;
        // Also if somebody else refuses the agent after this.
        let (teams, gone) = (self.clone(), agent.clone());
        registered.push(agent.scope().on_close(move || teams.gone(&gone))?);
        *locked(&lead.registered) = registered;
        locked(leads).insert(agent.id().clone(), lead.clone());
        lead.recover().await;
        lead.changed();
        Ok(())
    }

    /// A continuable child is made or resumed. If it is a member, it gets the tools, and what waits for
    /// it.
    pub(crate) async fn member_comes(&self, child: &Agent) -> Result<Vec<Registration>, Failure> {
        let Ok(seat) = self.place(child) else { return Ok(Vec::new()) };
        let registered = self.furnish(&seat)?;
        seat.lead.greet(child).await?;
        Ok(registered)
    }

    /// A member that was there before the plugin.
    pub(crate) fn member_was_there(&self, member: &Agent) -> Result<(), Failure> {
        if let Ok(seat) = self.seat(member)
            && !seat.is_lead()
        {
            let registered = self.furnish(&seat)?;
            locked(&seat.lead.registered).extend(registered);
        }
        Ok(())
    }

    /// Gives a member what is in its own scope.
    fn furnish(&self, seat: &Seat) -> Result<Vec<Registration>, Failure> {
        let (world, scope) = (&self.0.world, seat.agent.scope());
        let section = policy::section(seat);
        let mut registered = vec![world.prompts.section(scope, section)?];
        for tool in self.0.tools.get().into_iter().flatten() {
            registered.push(world.tools.registry().register(scope, tool.clone())?);
        }
        Ok(registered)
    }

    /// What somebody is at has changed.
    pub(crate) fn moved(&self, agent: &Agent) {
        if let Some(lead) = self.lead(agent.runtime_parent().unwrap_or(agent.id())) {
            lead.changed();
        }
    }

    /// A Lead goes: ends what its team has under way, and its members.
    pub(crate) async fn going(&self, agent: &Agent) -> Result<(), Failure> {
        match self.lead(agent.id()).filter(|lead| lead.agent == *agent) {
            Some(lead) => self.close(&lead).await,
            None => Ok(()),
        }
    }

    async fn close(&self, lead: &Arc<Lead>) -> Result<(), Failure> {
        let within = self.0.config.disposal_timeout;
        let mut left = Vec::new();
        // Fires the token of every spawn, and drops the carriers; what they had not done stays queued.
        lead.scope.close();
        if !in_time(within, lead.scope.close_and_wait()).await {
            left.push("spawns or messages under way".to_owned());
        }
        locked(&lead.senders).clear();
        let members: Vec<_> = lead.team().map(|team| resident(lead, &team)).unwrap_or_default();
        if !members.is_empty() {
            let drained = lead.continuations.drain_children(&lead.agent, &members);
            match tokio::time::timeout(within, drained).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => left.push(error.to_string()),
                Err(_) => left.push(format!("{} members", members.len())),
            }
        }
        match left.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(
                "TEAM_DISPOSAL_INCOMPLETE",
                format!("team \"{}\" left behind: {}", lead.id(), left.join("; ")),
            )),
        }
    }

    /// An agent is gone.
    pub(crate) fn gone(&self, agent: &Agent) {
        let mut leads = locked(&self.0.leads);
        if leads.get(agent.id()).is_some_and(|lead| lead.agent == *agent) {
            leads.remove(agent.id());
        }
        drop(leads);
        if agent.runtime_parent().is_some() {
            self.moved(agent);
        }
    }

    /// The plugin goes: its teams rest where they are, and their members stay, without the tools.
    pub(crate) fn rest(&self) {
        let leads: Vec<_> = locked(&self.0.leads).drain().map(|(_, lead)| lead).collect();
        for lead in leads {
            lead.scope.close();
            locked(&lead.senders).clear();
            locked(&lead.registered).drain(..).for_each(|one| one.remove());
        }
    }
}

/// The members of a team that are resident, or on their way.
fn resident(lead: &Lead, team: &Team) -> Vec<SessionId> {
    let ids = team.members().iter().map(|member| &member.id);
    ids.filter(|id| lead.continuations.activation(id).is_some()).cloned().collect()
}

async fn in_time(limit: Duration, done: impl Future<Output = ()>) -> bool {
    tokio::time::timeout(limit, done).await.is_ok()
}

/// Whether no other agent delegated to this one, as far as anybody can tell.
fn is_root(agent: &Agent) -> bool {
    let session = agent.session();
    let descriptor = Descriptor::of(&session.log(), session.inherited_event_count());
    session.header().delegated_by().is_none() && matches!(descriptor, Ok(None))
}

impl fmt::Debug for Teams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(locked(&self.0.leads).keys()).finish()
    }
}
