//! A member's place in its team, and what it may do from there.

use std::{fmt, sync::Arc, time::Duration};

use playhouse_messages::id::{MessageId, SessionId};
use playhouse_plugin_api::{agent::Agent, cancel::CancelToken, watch};
use playhouse_subagents::continuable::Authority;
use tokio::sync::oneshot;

use crate::{
    board::{Changed, NewTask, TaskAction},
    error::TeamError,
    lead::{Lead, locked},
    mailbox::NewMessage,
    record::{Member, Record, TaskId},
    roster::{MemberStatus, NewMember},
    team::{LEAD_NAME, Team},
};

/// A live agent's place in a team. Clones are the same place; it is worth nothing once its agent, or
/// the Lead's, is gone (`TEAM_NOT_A_MEMBER`, `TEAM_CLOSING`).
#[derive(Clone)]
pub struct Seat {
    pub(crate) lead: Arc<Lead>,
    pub(crate) agent: Agent,
    pub(crate) name: String,
}

/// Somebody in a team, for seeing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RosterRow {
    /// The session.
    pub id: SessionId,
    /// How the team calls it.
    pub name: String,
    /// What it is for; of the Lead, nothing is recorded.
    pub description: String,
    /// What it is at.
    pub status: MemberStatus,
    /// Why it failed.
    pub error: Option<String>,
}

/// A message that is recorded: whatever happens, it is delivered once, so it must not be sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Its id.
    pub message: MessageId,
    /// Whether its target has it already, or it still waits.
    pub accepted: bool,
}

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// Something was recorded, or somebody is at something else.
    Changed,
    /// Nothing happened in time.
    TimedOut,
    /// Nobody else works, so nothing would happen.
    NoActivePeer,
}

impl Seat {
    /// The team, by its Lead's session.
    pub fn id(&self) -> &SessionId {
        self.lead.id()
    }

    /// Whose place it is.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// How the team calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is the Lead's.
    pub fn is_lead(&self) -> bool {
        self.agent == self.lead.agent
    }

    fn checked(&self) -> Result<(), TeamError> {
        self.lead.admitted()?;
        match self.lead.world.agents.get(self.agent.id()).as_ref() == Some(&self.agent) {
            true => Ok(()),
            false => Err(TeamError::NotAMember { agent: self.agent.id().clone() }),
        }
    }

    fn checked_lead(&self, what: &'static str) -> Result<(), TeamError> {
        self.checked()?;
        match self.is_lead() {
            true => Ok(()),
            false => Err(TeamError::LeadRequired { what }),
        }
    }

    /// The team as it is now: members, tasks, messages that wait.
    ///
    /// # Errors
    ///
    /// `TEAM_CORRUPT`.
    pub fn team(&self) -> Result<Team, TeamError> {
        self.lead.team()
    }

    /// Who is in the team, and what each is at; the Lead first.
    ///
    /// # Errors
    ///
    /// `TEAM_CORRUPT`.
    pub fn roster(&self) -> Result<Vec<RosterRow>, TeamError> {
        let team = self.lead.team()?;
        let row =
            |id: &SessionId, name: &str, description: &str, error: Option<String>| RosterRow {
                id: id.clone(),
                name: name.to_owned(),
                description: description.to_owned(),
                status: self.lead.status(&team, id),
                error,
            };
        let lead = row(self.id(), LEAD_NAME, "", None);
        let members = team
            .members()
            .iter()
            .map(|member| row(&member.id, &member.name, &member.description, member.error.clone()));
        Ok(std::iter::once(lead).chain(members).collect())
    }

    /// Counts commits of the team, and changes of what its members are at.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.lead.changes.subscribe()
    }

    /// Starts a member. Resolves once its session holds its prompt **durably**, and it is recorded as
    /// active. `cancel`, or dropping the future, gives it up before that; it is recorded as failed
    /// then, as it is after any failure, and its name stays taken.
    ///
    /// # Errors
    ///
    /// `TEAM_LEAD_REQUIRED`, `TEAM_INVALID_ARGUMENT`, `TEAM_MEMBER_NAME_TAKEN`, `TEAM_MEMBER_LIMIT`,
    /// `TEAM_PROVISIONING_CONFLICT`, `TEAM_CLOSING`, and what the start of a sub-agent fails with.
    pub async fn spawn(&self, new: NewMember, cancel: &CancelToken) -> Result<Member, TeamError> {
        self.checked_lead("start members")?;
        self.lead.spawn(new, cancel).await
    }

    /// Sends a message. It is **durable** when this returns, and is delivered once, also by a later
    /// life of the Lead. A cancel ends the wait for its arrival, not the delivery.
    ///
    /// # Errors
    ///
    /// `TEAM_MEMBER_NOT_FOUND`, `TEAM_MEMBER_NOT_ACTIVE`, `TEAM_SELF_MESSAGE`, `TEAM_MAILBOX_FULL`,
    /// `TEAM_MESSAGE_TOO_LARGE`, `TEAM_INVALID_ARGUMENT`, `TEAM_CLOSING`.
    pub async fn send(&self, new: NewMessage, cancel: &CancelToken) -> Result<Sent, TeamError> {
        self.checked()?;
        let (lead, id) = (&self.lead, self.lead.world.ids.message());
        let (arrives, arrived) = oneshot::channel();
        // Before it can arrive.
        locked(&lead.senders).insert(id.clone(), arrives);
        let forget = Forget { lead, id: &id };
        let sender = self.agent.id();
        lead.transact(|team| {
            let message = team.new_message(id.clone(), sender, new, &lead.config)?;
            Ok((Some(Record::Queued(message)), ()))
        })
        .await?;
        let arrival = tokio::time::timeout(lead.config.disposal_timeout, arrived);
        let accepted = matches!(cancel.race(arrival).await, Some(Ok(Ok(true))));
        drop(forget);
        Ok(Sent { message: id, accepted })
    }

    /// Ends the running turn of a member, and nothing else: what waits for it stays. Says what it was
    /// at; one that does not run is left as it is.
    ///
    /// # Errors
    ///
    /// `TEAM_LEAD_REQUIRED`, `TEAM_MEMBER_NOT_FOUND`, `TEAM_MEMBER_NOT_ACTIVE`,
    /// `TEAM_SELF_MESSAGE` for the Lead itself.
    pub fn interrupt(&self, name: &str) -> Result<MemberStatus, TeamError> {
        self.checked_lead("interrupt members")?;
        let team = self.lead.team()?;
        let id = team.resolve(name)?;
        if id == *self.id() {
            return Err(TeamError::SelfMessage);
        }
        team.active(&id, "interrupted")?;
        let status = self.lead.status(&team, &id);
        let authority = Authority::Ancestor(self.agent.clone());
        self.lead.continuations.interrupt(&id, authority)?;
        Ok(status)
    }

    /// Puts a task on the board.
    ///
    /// # Errors
    ///
    /// As [`Team::new_task`].
    pub async fn create_task(&self, new: NewTask) -> Result<Changed, TeamError> {
        self.checked()?;
        let max = self.lead.config.max_tasks;
        self.lead
            .transact(|team| {
                let changed = team.new_task(new, max)?;
                Ok((Some(Record::Task(changed.task.clone())), changed))
            })
            .await
    }

    /// Does something with a task that is at this revision.
    ///
    /// # Errors
    ///
    /// As [`Team::changed_task`].
    pub async fn change_task(
        &self,
        id: TaskId,
        expected_revision: u64,
        action: TaskAction,
    ) -> Result<Changed, TeamError> {
        self.checked()?;
        let by = self.agent.id();
        self.lead
            .transact(|team| {
                let changed = team.changed_task(by, id, expected_revision, action)?;
                Ok((Some(Record::Task(changed.task.clone())), changed))
            })
            .await
    }

    /// Waits for the next change of the team, at most so long; wakes nobody. Returns at once if no
    /// other member works or is being started.
    ///
    /// # Errors
    ///
    /// `CANCELLED`, `TEAM_CLOSING`, `TEAM_CORRUPT`.
    pub async fn wait(&self, limit: Duration, cancel: &CancelToken) -> Result<Waited, TeamError> {
        self.checked()?;
        // Whatever happens from here on ends the wait.
        let mut changes = self.lead.changes.subscribe();
        let is_peer = |row: &RosterRow| row.id != *self.agent.id() && row.status.is_at_work();
        if !self.roster()?.iter().any(is_peer) {
            return Ok(Waited::NoActivePeer);
        }
        let ends = async {
            tokio::select! {
                biased;
                _ = changes.changed() => Ok(Waited::Changed),
                () = self.lead.scope.cancel_token().cancelled() => {
                    Err(TeamError::Closing { team: self.id().clone() })
                }
                () = tokio::time::sleep(limit) => Ok(Waited::TimedOut),
            }
        };
        cancel.race(ends).await.unwrap_or(Err(TeamError::Cancelled))
    }
}

/// Nobody waits for this message any more.
struct Forget<'a> {
    lead: &'a Lead,
    id: &'a MessageId,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        locked(&self.lead.senders).remove(self.id);
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({} in {})", self.name, self.id())
    }
}
