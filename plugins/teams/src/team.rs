//! The fold: what a team is, by the records of its Lead's log.

use std::{collections::BTreeSet, sync::Arc};

use playhouse_messages::{
    event::Seq,
    id::{MessageId, SessionId},
    log::Log,
};

use crate::record::{Member, Phase, Record, Task, TaskId, TaskStatus, TeamMessage};

/// How the team calls its Lead.
pub const LEAD_NAME: &str = "lead";

/// A team at one moment. Cheap to clone.
///
/// It is a function of its Lead's log alone. Records of another team, which a fork of a Lead inherits,
/// do not count.
#[derive(Debug, Clone, PartialEq)]
pub struct Team {
    id: SessionId,
    members: Arc<Vec<Member>>,
    /// The task of number n is at n - 1.
    tasks: Arc<Vec<Task>>,
    pending: Arc<Vec<TeamMessage>>,
    queued: Arc<BTreeSet<MessageId>>,
}

/// A record that no team can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The event.
    pub seq: Seq,
    /// Which rule it breaks, and how.
    pub cause: String,
}

impl Team {
    /// The team of this Lead before anything happened in it.
    pub fn new(lead: SessionId) -> Self {
        Self {
            id: lead,
            members: Arc::default(),
            tasks: Arc::default(),
            pending: Arc::default(),
            queued: Arc::default(),
        }
    }

    /// The team of this Lead, by its log.
    ///
    /// # Errors
    ///
    /// The first record that breaks a rule.
    pub fn of(lead: &SessionId, log: &Log) -> Result<Self, Violation> {
        let mut team = Self::new(lead.clone());
        team.read_on(log, 0)?;
        Ok(team)
    }

    /// Takes what the log has from an event on.
    pub(crate) fn read_on(&mut self, log: &Log, from: Seq) -> Result<(), Violation> {
        for event in log.range(from..log.len()) {
            let violation = |cause| Violation { seq: event.seq, cause };
            if let Some((team, record)) = Record::read(&event.body).map_err(violation)?
                && team == self.id
            {
                self.follow(&record).map_err(violation)?;
            }
        }
        Ok(())
    }

    /// The Lead's session, by which the team is named.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// All members that ever were, in the order in which they came; the Lead is none of them.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// All tasks that ever were, by their numbers; those that are deleted are there as such.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The messages that are queued and not delivered, in order.
    pub fn pending(&self) -> &[TeamMessage] {
        &self.pending
    }

    /// Those of them for one target.
    pub fn pending_for<'a>(
        &'a self,
        target: &'a SessionId,
    ) -> impl Iterator<Item = &'a TeamMessage> + 'a {
        self.pending.iter().filter(move |message| message.target_id == *target)
    }

    /// The member of this session.
    pub fn member(&self, id: &SessionId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == *id)
    }

    /// The member of this name.
    pub fn named(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// How the team calls this session.
    pub fn name_of(&self, id: &SessionId) -> Option<&str> {
        match *id == self.id {
            true => Some(LEAD_NAME),
            false => self.member(id).map(|member| member.name.as_str()),
        }
    }

    /// A task, deleted or not.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(usize::try_from(id.0.checked_sub(1)?).ok()?)
    }

    /// What must be completed before a task can be claimed.
    pub fn blockers(&self, task: &Task) -> Vec<TaskId> {
        let open = |id: &TaskId| {
            self.task(*id).is_none_or(|blocker| blocker.status != TaskStatus::Completed)
        };
        task.blocked_by.iter().copied().filter(open).collect()
    }

    /// Whether somebody could claim a task now: it is pending, and all that blocks it is completed.
    pub fn is_ready(&self, task: &Task) -> bool {
        task.status == TaskStatus::Pending && self.blockers(task).is_empty()
    }

    /// Takes the next record, or says which rule it breaks; then nothing has changed.
    pub(crate) fn follow(&mut self, record: &Record) -> Result<(), String> {
        match record {
            Record::Member(member) => {
                let at = self.check_member(member)?;
                let members = Arc::make_mut(&mut self.members);
                match at {
                    Some(at) => members[at] = member.clone(),
                    None => members.push(member.clone()),
                }
            }
            Record::Task(task) => {
                let at = self.check_task(task)?;
                let tasks = Arc::make_mut(&mut self.tasks);
                match at {
                    Some(at) => tasks[at] = task.clone(),
                    None => tasks.push(task.clone()),
                }
            }
            Record::Queued(message) => {
                self.check_queued(message)?;
                Arc::make_mut(&mut self.queued).insert(message.id.clone());
                Arc::make_mut(&mut self.pending).push(message.clone());
            }
            Record::Delivered { message, target } => {
                let at = self.pending.iter().position(|pending| pending.id == *message);
                let Some(at) = at else {
                    return Err(match self.queued.contains(message) {
                        true => format!("message {message} is delivered twice"),
                        false => format!("message {message} is delivered and was never queued"),
                    });
                };
                if self.pending[at].target_id != *target {
                    return Err(format!("message {message} is delivered to somebody else"));
                }
                Arc::make_mut(&mut self.pending).remove(at);
            }
        }
        Ok(())
    }

    /// Where the member stands, if it is there already.
    fn check_member(&self, member: &Member) -> Result<Option<usize>, String> {
        let Member { id, name, phase, .. } = member;
        if (*phase == Phase::Failed) != member.error.is_some() {
            return Err(format!("member \"{name}\" has an error if and only if it failed"));
        }
        let Some(at) = self.members.iter().position(|known| known.id == *id) else {
            return match phase {
                Phase::Provisioning if *id == self.id || name == LEAD_NAME => {
                    Err(format!("the Lead is no member (\"{name}\")"))
                }
                Phase::Provisioning if self.named(name).is_some() => {
                    Err(format!("the name \"{name}\" is used twice"))
                }
                Phase::Provisioning => Ok(None),
                _ => Err(format!("member \"{name}\" does not begin as provisioning")),
            };
        };
        let known = &self.members[at];
        if known.phase != Phase::Provisioning || *phase == Phase::Provisioning {
            return Err(format!("what became of member \"{name}\" is settled twice"));
        }
        let fixed = |member: &Member| {
            let Member { name, description, provider, context, .. } = member.clone();
            (name, description, provider, context)
        };
        match fixed(known) == fixed(member) {
            true => Ok(Some(at)),
            false => Err(format!("member \"{}\" becomes another", known.name)),
        }
    }

    fn check_task(&self, task: &Task) -> Result<Option<usize>, String> {
        let Task { id, revision, .. } = task;
        let (at, before) = match self.task(*id) {
            Some(known) => (self.tasks.iter().position(|task| task.id == *id), known.revision),
            None if id.0 == self.tasks.len() as u64 + 1 => (None, 0),
            None => return Err(format!("{id} does not follow task {}", self.tasks.len())),
        };
        if *revision != before + 1 {
            return Err(format!("{id} goes from revision {before} to {revision}"));
        }
        if self.task(*id).is_some_and(|known| known.status == TaskStatus::Deleted) {
            return Err(format!("{id} is changed after it was deleted"));
        }
        match (task.status, &task.owner_id) {
            (TaskStatus::InProgress, None) => return Err(format!("nobody works on {id}")),
            (_, Some(owner)) if self.name_of(owner).is_none() => {
                return Err(format!("{id} is owned by \"{owner}\", who is in no team"));
            }
            (status, _) if at.is_none() && status != TaskStatus::Pending => {
                return Err(format!("{id} does not begin as pending"));
            }
            _ => {}
        }
        if task.status == TaskStatus::Deleted {
            return match self.dependents(*id).first() {
                Some(dependent) => Err(format!("{id} is deleted, and {dependent} waits for it")),
                None => Ok(at),
            };
        }
        for blocker in &task.blocked_by {
            let stands = self.task(*blocker).is_some_and(|b| b.status != TaskStatus::Deleted);
            if !stands && blocker != id {
                return Err(format!("{id} waits for {blocker}, which is not there"));
            }
        }
        match self.cycle(*id, &task.blocked_by) {
            Some(_) => Err(format!("{id} waits for itself")),
            None => Ok(at),
        }
    }

    fn check_queued(&self, message: &TeamMessage) -> Result<(), String> {
        let TeamMessage { id, sender_id, target_id, .. } = message;
        if self.queued.contains(id) {
            return Err(format!("message {id} is queued twice"));
        }
        if sender_id == target_id {
            return Err(format!("message {id} is for its own sender"));
        }
        match [sender_id, target_id].into_iter().find(|party| self.name_of(party).is_none()) {
            Some(stranger) => Err(format!("message {id}: \"{stranger}\" is in no team")),
            None => Ok(()),
        }
    }

    /// Tasks that are not deleted and wait for this one.
    pub fn dependents(&self, id: TaskId) -> Vec<TaskId> {
        let waits = |task: &&Task| {
            task.id != id && task.status != TaskStatus::Deleted && task.blocked_by.contains(&id)
        };
        self.tasks.iter().filter(waits).map(|task| task.id).collect()
    }

    /// The way from a task back to itself, if it waited for these.
    pub(crate) fn cycle(&self, id: TaskId, blocked_by: &[TaskId]) -> Option<Vec<TaskId>> {
        let mut seen = BTreeSet::new();
        let mut ways: Vec<Vec<TaskId>> = blocked_by.iter().map(|next| vec![id, *next]).collect();
        while let Some(way) = ways.pop() {
            let at = *way.last()?;
            if at == id {
                return Some(way);
            }
            if !seen.insert(at) {
                continue;
            }
            let next = self.task(at).filter(|task| task.status != TaskStatus::Deleted);
            for next in next.into_iter().flat_map(|task| &task.blocked_by) {
                ways.push(way.iter().chain([next]).copied().collect());
            }
        }
        None
    }
}
