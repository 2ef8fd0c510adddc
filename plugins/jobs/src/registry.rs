//! What jobs there are and what is told of them: a pure state machine.
//!
//! It knows no clock, task or callback: the service carries inputs to it and does what it answers.
//! Whether an end is *reported* is a count: of the waits and reads that gave it to somebody, and
//! of the kills that asked for it. A report that did not arrive is taken back, and if none is left
//! then the end is news again.

use std::collections::HashMap;

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::scope::ScopeId;

use crate::{JobError, JobId, JobOutcome, JobSnapshot, JobStatus};

/// Ended jobs of one owner that are kept; the oldest are forgotten, their output with them.
pub const FINISHED_KEPT_MAX: usize = 256;

/// Who a job belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Who may see it.
    pub session: SessionId,
    /// The exact incarnation: its limit, and whose end is the job's.
    pub scope: ScopeId,
}

/// What a job is started with.
#[derive(Debug, Clone)]
pub struct Facts {
    /// What sort of work it is.
    pub kind: String,
    /// What it is for.
    pub label: String,
    /// Bounds what a model is shown of it at once.
    pub output_limit_bytes: Option<usize>,
    /// Who it belongs to.
    pub owner: Option<Owner>,
}

/// The jobs of a service.
#[derive(Debug)]
pub struct Registry {
    limit: usize,
    closed: bool,
    started: u64,
    counters: HashMap<String, u64>,
    jobs: HashMap<JobId, Job>,
    owners: HashMap<Option<ScopeId>, Bucket>,
}

#[derive(Debug, Default)]
struct Bucket {
    /// Starts under way.
    reserved: usize,
    /// Ended: takes no job any more, and what it still gets is unwanted.
    ended: bool,
    /// In order of their start.
    jobs: Vec<JobId>,
}

#[derive(Debug)]
struct Job {
    number: u64,
    facts: Facts,
    started_at: i64,
    end: Option<(JobOutcome, i64)>,
    /// Kills that the producer has taken, and those that ask it now.
    killed: bool,
    killing: u32,
    /// Its end is nobody's news: whoever would be told is ending.
    muted: bool,
    waiters: u32,
    reports: u32,
    /// Its end was told as news.
    told: bool,
}

/// What a kill has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kill {
    /// Nothing: it was over.
    Finished(JobSnapshot),
    /// Ask the producer, and say what came of it by [`Registry::end_kill`].
    Ask,
}

/// What a wait begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// It was over; the wait is done and has reported it.
    Over(JobSnapshot),
    /// Wait, and say what came of it by [`Registry::end_wait`].
    Waiting,
}

impl Registry {
    /// No jobs, and at most `limit` active ones for each owner.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            closed: false,
            started: 0,
            counters: HashMap::new(),
            jobs: HashMap::new(),
            owners: HashMap::new(),
        }
    }

    /// Takes a place among the owner's active jobs. It must be given back by [`Registry::release`]
    /// or used by [`Registry::commit`].
    ///
    /// # Errors
    ///
    /// `JOBS_CLOSED`, `JOB_OWNER_GONE` once the owner has ended, `JOB_LIMIT`.
    pub fn reserve(&mut self, owner: Option<&Owner>) -> Result<(), JobError> {
        if self.closed {
            return Err(JobError::Closed);
        }
        let key = owner.map(|owner| owner.scope);
        let active = self.active(key);
        let bucket = self.owners.entry(key).or_default();
        if let (true, Some(owner)) = (bucket.ended, owner) {
            return Err(JobError::OwnerGone { id: owner.session.clone() });
        }
        if active >= self.limit {
            return Err(JobError::Limit { limit: self.limit });
        }
        bucket.reserved += 1;
        Ok(())
    }

    /// Gives a place back.
    pub fn release(&mut self, owner: Option<&Owner>) {
        if let Some(bucket) = self.owners.get_mut(&owner.map(|owner| owner.scope)) {
            bucket.reserved = bucket.reserved.saturating_sub(1);
        }
    }

    /// Makes a started job of a reserved place. Cannot fail; returns whether nobody wants it any
    /// more, so that it is to be cancelled at once.
    pub fn commit(&mut self, facts: Facts, now: i64) -> (JobId, bool) {
        let counter = self.counters.entry(facts.kind.clone()).or_default();
        *counter += 1;
        let id = JobId::from(format!("{}-{counter}", facts.kind));
        self.started += 1;
        let bucket = self.owners.entry(facts.owner.as_ref().map(|owner| owner.scope)).or_default();
        bucket.reserved = bucket.reserved.saturating_sub(1);
        bucket.jobs.push(id.clone());
        let unwanted = bucket.ended || self.closed;
        let job = Job {
            number: self.started,
            facts,
            started_at: now,
            end: None,
            killed: false,
            killing: 0,
            muted: unwanted,
            waiters: 0,
            reports: 0,
            told: false,
        };
        self.jobs.insert(id.clone(), job);
        (id, unwanted)
    }

    /// A job is over. The first word counts: `None` if it was over, or is forgotten. Who waits has
    /// thereby been told of it. Also returns the older jobs that are forgotten for it.
    pub fn settle(
        &mut self,
        id: &JobId,
        outcome: JobOutcome,
        now: i64,
    ) -> Option<(JobSnapshot, Vec<JobId>)> {
        let job = self.jobs.get_mut(id).filter(|job| job.end.is_none())?;
        job.end = Some((outcome, now));
        job.reports += std::mem::take(&mut job.waiters);
        job.told = !job.reported();
        let (snapshot, key) = (job.snapshot(id), job.key());
        Some((snapshot, self.prune(key)))
    }

    /// The job, if the caller may see it.
    ///
    /// # Errors
    ///
    /// `UNKNOWN_JOB`, `FOREIGN_JOB`.
    pub fn get(&self, id: &JobId, caller: Option<&SessionId>) -> Result<JobSnapshot, JobError> {
        self.seen(id, caller).map(|job| job.snapshot(id))
    }

    /// The jobs that the caller may see, in order of their start.
    pub fn list(&self, caller: Option<&SessionId>) -> Vec<JobSnapshot> {
        let mut seen: Vec<_> = self.jobs.iter().filter(|(_, job)| job.is_for(caller)).collect();
        seen.sort_unstable_by_key(|(_, job)| job.number);
        seen.into_iter().map(|(id, job)| job.snapshot(id)).collect()
    }

    /// As [`Registry::get`], for somebody who is given its output: one that is over is reported by
    /// that. Also returns the output of its end.
    pub fn read(
        &mut self,
        id: &JobId,
        caller: Option<&SessionId>,
    ) -> Result<(JobSnapshot, Option<String>), JobError> {
        let job = self.seen_mut(id, caller)?;
        let output = job.end.as_ref().and_then(|(outcome, _)| outcome.output.clone());
        job.reports += u32::from(job.end.is_some());
        Ok((job.snapshot(id), output))
    }

    /// Begins a kill. Until it has ended, the job's end is nobody's news.
    pub fn begin_kill(&mut self, id: &JobId, caller: Option<&SessionId>) -> Result<Kill, JobError> {
        let job = self.seen_mut(id, caller)?;
        if job.end.is_some() {
            job.reports += 1;
            return Ok(Kill::Finished(job.snapshot(id)));
        }
        job.killing += 1;
        Ok(Kill::Ask)
    }

    /// Ends a kill: the producer took it, or refused and the job is as before. Returns the job, and
    /// its end if that has become news by this.
    pub fn end_kill(
        &mut self,
        id: &JobId,
        taken: bool,
    ) -> (Option<JobSnapshot>, Option<JobSnapshot>) {
        let Some(job) = self.jobs.get_mut(id) else { return (None, None) };
        job.killing = job.killing.saturating_sub(1);
        job.killed |= taken;
        let news = job.news(id);
        (Some(job.snapshot(id)), news)
    }

    /// Begins a wait.
    pub fn begin_wait(&mut self, id: &JobId, caller: Option<&SessionId>) -> Result<Wait, JobError> {
        let job = self.seen_mut(id, caller)?;
        if job.end.is_some() {
            job.reports += 1;
            return Ok(Wait::Over(job.snapshot(id)));
        }
        job.waiters += 1;
        Ok(Wait::Waiting)
    }

    /// Ends a wait that [`Wait::Waiting`] began. Returns the job, which may be over by now; then the
    /// wait has reported it, and if that did not arrive it is taken back by [`Registry::lost`].
    pub fn end_wait(&mut self, id: &JobId) -> Option<JobSnapshot> {
        let job = self.jobs.get_mut(id)?;
        if job.end.is_none() {
            job.waiters = job.waiters.saturating_sub(1);
        }
        Some(job.snapshot(id))
    }

    /// One report of a job's end did not arrive. Returns the end if that makes it news.
    pub fn lost(&mut self, id: &JobId) -> Option<JobSnapshot> {
        let job = self.jobs.get_mut(id)?;
        job.reports = job.reports.saturating_sub(1);
        job.news(id)
    }

    /// An owner ends, or with `None` the service. Returns the jobs to cancel; their ends are
    /// nobody's news, and no further job starts.
    pub fn end(&mut self, owner: Option<ScopeId>) -> Vec<JobId> {
        match owner {
            Some(scope) => self.owners.entry(Some(scope)).or_default().ended = true,
            None => self.closed = true,
        }
        let live = self.live(owner);
        for id in &live {
            if let Some(job) = self.jobs.get_mut(id) {
                job.muted = true;
            }
        }
        live
    }

    /// How many jobs of an owner, or with `None` of all, are active or about to start.
    pub fn pending(&self, owner: Option<ScopeId>) -> usize {
        match owner {
            Some(scope) => self.active(Some(scope)),
            None => self.owners.keys().map(|key| self.active(*key)).sum(),
        }
    }

    /// The active jobs of an owner, or with `None` of all, in order of their start.
    pub fn live(&self, owner: Option<ScopeId>) -> Vec<JobId> {
        let all = match owner {
            Some(_) => self.owners.get(&owner).map(|bucket| bucket.jobs.clone()),
            None => Some(self.jobs.keys().cloned().collect()),
        };
        let number = |id: JobId| {
            let job = self.jobs.get(&id).filter(|job| job.end.is_none())?;
            Some((job.number, id))
        };
        let mut live: Vec<_> = all.into_iter().flatten().filter_map(number).collect();
        live.sort_unstable();
        live.into_iter().map(|(_, id)| id).collect()
    }

    /// Forgets an owner, or with `None` everybody. Returns the jobs that are gone by it.
    pub fn forget(&mut self, owner: Option<ScopeId>) -> Vec<JobId> {
        let gone: Vec<_> = match owner {
            Some(scope) => {
                self.owners.remove(&Some(scope)).map(|bucket| bucket.jobs).unwrap_or_default()
            }
            None => self.owners.drain().flat_map(|(_, bucket)| bucket.jobs).collect(),
        };
        for id in &gone {
            self.jobs.remove(id);
        }
        gone
    }

    fn active(&self, key: Option<ScopeId>) -> usize {
        let Some(bucket) = self.owners.get(&key) else { return 0 };
        let live = |id: &&JobId| self.jobs.get(*id).is_some_and(|job| job.end.is_none());
        bucket.reserved + bucket.jobs.iter().filter(live).count()
    }

    fn prune(&mut self, key: Option<ScopeId>) -> Vec<JobId> {
        let Some(bucket) = self.owners.get_mut(&key) else { return Vec::new() };
        let over = |id: &JobId| self.jobs.get(id).is_some_and(|job| job.end.is_some());
        let mut excess =
            bucket.jobs.iter().filter(|id| over(id)).count().saturating_sub(FINISHED_KEPT_MAX);
        let mut forgotten = Vec::new();
        bucket.jobs.retain(|id| {
            let forget = excess > 0 && over(id);
            if forget {
                excess -= 1;
                forgotten.push(id.clone());
            }
            !forget
        });
        for id in &forgotten {
            self.jobs.remove(id);
        }
        forgotten
    }

    fn seen(&self, id: &JobId, caller: Option<&SessionId>) -> Result<&Job, JobError> {
        let job = self.jobs.get(id).ok_or_else(|| JobError::Unknown { id: id.clone() })?;
        if job.is_for(caller) { Ok(job) } else { Err(JobError::Foreign { id: id.clone() }) }
    }

    fn seen_mut(&mut self, id: &JobId, caller: Option<&SessionId>) -> Result<&mut Job, JobError> {
        self.seen(id, caller)?;
        self.jobs.get_mut(id).ok_or_else(|| JobError::Unknown { id: id.clone() })
    }
}

impl Job {
    fn key(&self) -> Option<ScopeId> {
        self.facts.owner.as_ref().map(|owner| owner.scope)
    }

    /// A job without an owner is everybody's.
    fn is_for(&self, caller: Option<&SessionId>) -> bool {
        self.facts.owner.as_ref().is_none_or(|owner| Some(&owner.session) == caller)
    }

    fn reported(&self) -> bool {
        self.muted || self.killed || self.killing > 0 || self.reports > 0
    }

    fn status(&self) -> JobStatus {
        match &self.end {
            Some((outcome, _)) => outcome.status,
            None if self.killed || self.muted => JobStatus::Stopping,
            None => JobStatus::Running,
        }
    }

    /// Its end, the first time that it is over and nobody knows.
    fn news(&mut self, id: &JobId) -> Option<JobSnapshot> {
        let is_news = self.end.is_some() && !self.reported() && !self.told;
        self.told |= is_news;
        is_news.then(|| self.snapshot(id))
    }

    fn snapshot(&self, id: &JobId) -> JobSnapshot {
        let Facts { kind, label, output_limit_bytes, owner } = &self.facts;
        JobSnapshot {
            id: id.clone(),
            kind: kind.clone(),
            label: label.clone(),
            output_limit_bytes: *output_limit_bytes,
            owner_session: owner.as_ref().map(|owner| owner.session.clone()),
            status: self.status(),
            detail: self.end.as_ref().and_then(|(outcome, _)| outcome.detail.clone()),
            started_at: self.started_at,
            finished_at: self.end.as_ref().map(|(_, at)| *at),
            reported: self.reported(),
        }
    }
}

#[cfg(test)]
mod tests;
