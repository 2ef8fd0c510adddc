//! A Lead at work: its log is the team, and every change of it is one transaction.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use playhouse_messages::{
    event::Seq,
    id::{MessageId, SessionId},
    machine::Status,
};
use playhouse_plugin_api::{
    agent::Agent,
    scope::{Registration, Scope},
    watch,
    world::World,
};
use playhouse_subagents::{Continuations, continuable::ActivationState};
use tokio::sync::oneshot;

use crate::{
    config::TeamsConfig,
    error::TeamError,
    record::{Phase, Record},
    roster::MemberStatus,
    team::{Team, Violation},
};

/// One life of a Lead.
pub(crate) struct Lead {
    pub agent: Agent,
    pub world: Arc<World>,
    pub continuations: Continuations,
    pub config: TeamsConfig,
    /// Holds spawns and carriers. Once it is closed, nothing is taken any more.
    pub scope: Scope,
    /// Counts commits, and changes of what somebody is at.
    pub changes: watch::Sender<u64>,
    /// What was registered in the Lead's own scope, and in members that were there before.
    pub registered: Mutex<Vec<Registration>>,
    /// Messages of which the target's log may know.
    pub uncertain: Mutex<BTreeSet<MessageId>>,
    /// Whose messages are being carried.
    pub carried: Mutex<HashSet<SessionId>>,
    /// Who waits to hear whether a message has arrived.
    pub senders: Mutex<HashMap<MessageId, oneshot::Sender<bool>>>,
    one: tokio::sync::Mutex<()>,
    known: Mutex<Known>,
}

/// The fold, and how far it has read.
struct Known {
    team: Result<Team, Violation>,
    next: Seq,
}

impl Lead {
    pub fn new(
        agent: Agent,
        scope: Scope,
        world: Arc<World>,
        continuations: Continuations,
        config: TeamsConfig,
    ) -> Arc<Self> {
        let team = Ok(Team::new(agent.id().clone()));
        let lead = Self {
            agent,
            world,
            continuations,
            config,
            scope,
            changes: watch::Sender::new(0),
            registered: Mutex::default(),
            uncertain: Mutex::default(),
            carried: Mutex::default(),
            senders: Mutex::default(),
            one: tokio::sync::Mutex::default(),
            known: Mutex::new(Known { team, next: 0 }),
        };
        // An earlier life may have brought these to their targets.
        let pending = lead.team().map(|team| team.pending().to_vec()).unwrap_or_default();
        locked(&lead.uncertain).extend(pending.into_iter().map(|message| message.id));
        Arc::new(lead)
    }

    pub fn id(&self) -> &SessionId {
        self.agent.id()
    }

    pub fn admitted(&self) -> Result<(), TeamError> {
        match self.scope.is_open() {
            true => Ok(()),
            false => Err(TeamError::Closing { team: self.id().clone() }),
        }
    }

    /// The team as the log says now.
    pub fn team(&self) -> Result<Team, TeamError> {
        let log = self.agent.session().log();
        let mut known = locked(&self.known);
        let Known { team, next } = &mut *known;
        let from = std::mem::replace(next, log.len().max(*next));
        if let Ok(folded) = team
            && let Err(violation) = folded.read_on(&log, from)
        {
            *team = Err(violation);
        }
        team.clone().map_err(|Violation { seq, cause }| {
            let team = self.id().clone();
            TeamError::Corrupt { team, seq, cause }
        })
    }

    /// One change of the team, and what is to be answered; no other comes in between. The record is
    /// **durable** when this returns. A caller that goes meanwhile takes nothing back.
    pub async fn transact<T>(
        self: &Arc<Self>,
        decide: impl FnOnce(&Team) -> Result<(Option<Record>, T), TeamError>,
    ) -> Result<T, TeamError> {
        let _one = self.one.lock().await;
        let mut team = self.team()?;
        let (record, answer) = decide(&team)?;
        let Some(record) = record else { return Ok(answer) };
        team.follow(&record).map_err(|cause| TeamError::Refused { cause })?;
        let _told = Told(self);
        let session = self.agent.session();
        session.append(record.event(self.id())).await?;
        session.flush().await?;
        Ok(answer)
    }

    /// Something is otherwise than before: tells who waits, and has what is queued carried.
    pub fn changed(self: &Arc<Self>) {
        self.changes.send_modify(|changes| *changes += 1);
        self.carry_pending();
    }

    /// The agent of a member, or the Lead's own, if it is live.
    pub fn live(&self, id: &SessionId) -> Option<Agent> {
        if id == self.id() {
            return Some(self.agent.clone());
        }
        let agent = self.world.agents.get(id)?;
        (agent.runtime_parent() == Some(self.id())).then_some(agent)
    }

    /// What the Lead or a member of the team is at.
    pub fn status(&self, team: &Team, id: &SessionId) -> MemberStatus {
        match team.member(id).map(|member| member.phase) {
            Some(Phase::Provisioning) => return MemberStatus::Provisioning,
            Some(Phase::Failed) => return MemberStatus::Failed,
            Some(Phase::Active) | None => {}
        }
        let making = || {
            let activation = self.continuations.activation(id);
            activation.is_some_and(|child| child.state == ActivationState::Making)
        };
        match self.live(id).map(|agent| agent.status()) {
            Some(Status::Idle) => MemberStatus::Idle,
            Some(_) => MemberStatus::Running,
            None if making() => MemberStatus::Running,
            None => MemberStatus::Inactive,
        }
    }
}

/// Tells of a change however its transaction ends: the record may stand.
struct Told<'a>(&'a Arc<Lead>);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.changed();
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lead({})", self.id())
    }
}
