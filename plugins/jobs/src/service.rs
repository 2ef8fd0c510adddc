//! The seam that producers and tools use.

mod ending;
mod waiting;

use std::{
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::FutureExt;
use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    hook::panic_failure,
    scope::{Registration, Scope, ScopeClosed, ScopeId},
    watch,
    world::World,
};

use crate::{
    JobDone, JobError, JobId, JobOutcome, JobOutput, JobSnapshot, JobsChanged, JobsEvents, NewJob,
    Work,
    job::{CancelFn, ReadFn},
    registry::{Facts, Kill, Owner, Registry},
};

/// The service under which the plugin offers its [`Jobs`].
pub const JOBS_SERVICE: &str = "jobs";

/// The background jobs of a harness. Clones are the same registry.
///
/// What an owner's job does is its owner's alone: others, code included, are refused by the session
/// that they name as `caller`. `None` is a caller without a session, who sees what nobody owns.
#[derive(Clone)]
pub struct Jobs(Arc<Inner>);

struct Inner {
    world: Arc<World>,
    /// The service's: its closing ends all jobs.
    scope: Scope,
    table: Mutex<Table>,
    /// Counts the jobs that end or are forgotten.
    ends: watch::Sender<u64>,
    events: JobsEvents,
}

struct Table {
    registry: Registry,
    live: HashMap<JobId, Arc<Running>>,
    owners: HashMap<ScopeId, Agent>,
    controllers: Vec<Controller>,
}

struct Controller {
    key: u64,
    scope: ScopeId,
    is_global: bool,
}

/// What of a job's work outlives its start.
struct Running {
    cancel: Arc<CancelFn>,
    read: Option<Mutex<Box<ReadFn>>>,
    owner: Option<Agent>,
    over: watch::Sender<bool>,
    /// Drops the work: it was asked to end, and did not.
    abandon: CancelToken,
}

/// What a kill did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KillOutcome {
    /// The producer was asked to end it.
    Requested(JobSnapshot),
    /// It was over.
    AlreadyFinished(JobSnapshot),
}

impl Jobs {
    /// An empty registry, with at most `limit` active jobs for each owner. Closing `scope` cancels
    /// all jobs; whoever waits for it by [`Scope::close_and_wait`] waits for their ends, at most
    /// the grace of the world's limits.
    ///
    /// # Errors
    ///
    /// The scope is closed.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn new(world: Arc<World>, scope: &Scope, limit: usize) -> Result<Self, ScopeClosed> {
        let table = Table {
            registry: Registry::new(limit),
            live: HashMap::new(),
            owners: HashMap::new(),
            controllers: Vec::new(),
        };
        let jobs = Self(Arc::new(Inner {
            world,
            scope: scope.clone(),
            table: Mutex::new(table),
            ends: watch::Sender::new(0),
            events: JobsEvents::default(),
        }));
        if !scope.is_open() {
            return Err(ScopeClosed { name: scope.name().to_owned() });
        }
        let (guard, closing) = (jobs.clone(), scope.cancel_token().clone());
        scope.spawn_to_end(async move {
            closing.cancelled().await;
            guard.end(None).await;
        });
        Ok(jobs)
    }

    /// Says that the agents at or below `scope` can read and kill their jobs: only then may they
    /// have any. One in a scope without a parent serves everybody, jobs without an owner too.
    ///
    /// # Errors
    ///
    /// The scope is closed.
    pub fn attach_controller(&self, scope: &Scope) -> Result<Registration, ScopeClosed> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let inner = Arc::downgrade(&self.0);
        let mut table = self.table();
        // Under the lock: a scope that closes meanwhile waits, and then finds what to remove.
        let registration = scope.on_close(move || {
            if let Some(inner) = inner.upgrade() {
                Self(inner).table().controllers.retain(|controller| controller.key != key);
            }
        })?;
        let is_global = scope.parent().is_none();
        table.controllers.push(Controller { key, scope: scope.id(), is_global });
        Ok(registration)
    }

    /// Starts a job: checks that it may be, then calls `run`, which begins the work. From then on
    /// nothing fails; the work's end is the job's.
    ///
    /// # Errors
    ///
    /// In this order, and `run` is not called: `JOBS_CLOSED`, `NO_JOB_CONTROLLER`,
    /// `INVALID_ARGUMENT`, `JOB_OWNER_GONE`, `JOB_LIMIT`. Then what `run` failed with; a panic is a
    /// failure.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn start(
        &self,
        new: NewJob,
        run: impl FnOnce() -> Result<Work, Failure>,
    ) -> Result<JobId, JobError> {
        let NewJob { kind, label, output_limit_bytes, owner } = new;
        let key = owner.as_ref().map(Owner::of);
        self.reserve(&kind, &label, output_limit_bytes, owner.as_ref(), key.as_ref())?;
        let began = catch_unwind(AssertUnwindSafe(run));
        let work = match began.unwrap_or_else(|panic| Err(panic_failure(&*panic))) {
            Ok(work) => work,
            Err(failure) => {
                self.table().registry.release(key.as_ref());
                self.0.ends.send_modify(|ends| *ends += 1);
                return Err(JobError::Start(failure));
            }
        };
        let Work { done, cancel, read } = work;
        let running = Arc::new(Running {
            cancel,
            read: read.map(Mutex::new),
            owner: owner.clone(),
            over: watch::Sender::new(false),
            abandon: CancelToken::new(),
        });
        let facts = Facts { kind, label, output_limit_bytes, owner: key };
        let (id, unwanted) = {
            let mut table = self.table();
            let (id, unwanted) = table.registry.commit(facts, self.now());
            table.live.insert(id.clone(), running.clone());
            (id, unwanted)
        };
        let (jobs, own, abandon) = (self.clone(), id.clone(), running.abandon.clone());
        self.0.scope.spawn_to_end(async move {
            let outcome = match abandon.race(AssertUnwindSafe(done).catch_unwind()).await {
                Some(Ok(Ok(outcome))) => outcome,
                Some(Ok(Err(failure))) => failed(&own, &failure),
                Some(Err(panic)) => failed(&own, &panic_failure(&*panic)),
                None => JobOutcome::failed("abandoned: it did not end when it was told to"),
            };
            jobs.settle(&own, outcome);
        });
        self.changed(owner);
        if unwanted {
            self.cancel_or_abandon(&id);
        }
        Ok(id)
    }

    /// The checks before a start, and a place among the owner's jobs.
    fn reserve(
        &self,
        kind: &str,
        label: &str,
        output_limit_bytes: Option<usize>,
        owner: Option<&Agent>,
        key: Option<&Owner>,
    ) -> Result<(), JobError> {
        let mut table = self.table();
        if !self.0.scope.is_open() {
            return Err(JobError::Closed);
        }
        let serves = |controller: &Controller| {
            controller.is_global || owner.is_some_and(|o| o.scope().is_within(controller.scope))
        };
        if !table.controllers.iter().any(serves) {
            let whom = owner.map(|owner| format!("agent \"{}\"", owner.id()));
            let whom = whom.unwrap_or_else(|| "jobs without an owner".to_owned());
            return Err(JobError::NoController { whom });
        }
        let invalid = |text: &str| Err(JobError::Invalid(text.to_owned()));
        if kind.trim().is_empty() || label.trim().is_empty() {
            return invalid("a job needs a kind and a label that are not empty");
        }
        if output_limit_bytes == Some(0) {
            return invalid("a job's output limit must be positive; leave it out for none");
        }
        if let Some(owner) = owner {
            let is_live = self.0.world.agents.get(owner.id()).as_ref() == Some(owner);
            if !is_live || !owner.scope().is_open() {
                return Err(JobError::OwnerGone { id: owner.id().clone() });
            }
        }
        table.registry.reserve(key)?;
        if let (Some(owner), Some(key)) = (owner, key)
            && table.owners.insert(key.scope, owner.clone()).is_none()
        {
            self.guard(owner);
        }
        Ok(())
    }

    /// The jobs that the caller may see, in order of their start.
    pub fn list(&self, caller: Option<&SessionId>) -> Vec<JobSnapshot> {
        self.table().registry.list(caller)
    }

    /// A job.
    ///
    /// # Errors
    ///
    /// `UNKNOWN_JOB`, `FOREIGN_JOB`.
    pub fn get(&self, id: &JobId, caller: Option<&SessionId>) -> Result<JobSnapshot, JobError> {
        self.table().registry.get(id, caller)
    }

    /// What a job has to say. Of work that gives output while it runs: what came since the last
    /// read, for there is one reader's place. Of other work: nothing while it runs, and the same
    /// output from its end on. Reading one that is over reports its end.
    ///
    /// # Errors
    ///
    /// As [`Jobs::get`].
    pub fn read(&self, id: &JobId, caller: Option<&SessionId>) -> Result<JobOutput, JobError> {
        // The state before the output: an end that is told has all its output told with it.
        let (job, output, running) = {
            let mut table = self.table();
            let (job, output) = table.registry.read(id, caller)?;
            (job, output, table.live.get(id).cloned())
        };
        let text = match running.as_ref().and_then(|running| running.read.as_ref()) {
            Some(read) => read.lock().unwrap_or_else(PoisonError::into_inner)(),
            None => output.unwrap_or_default(),
        };
        Ok(JobOutput { text, job })
    }

    /// Asks a job's producer to end it. Its end is then reported already: nobody is told of it.
    ///
    /// # Errors
    ///
    /// As [`Jobs::get`]; `JOB_CANCEL` if the producer refuses, and then the job is as before.
    pub fn kill(
        &self,
        id: &JobId,
        caller: Option<&SessionId>,
        reason: Option<&str>,
    ) -> Result<KillOutcome, JobError> {
        let running = {
            let mut table = self.table();
            match table.registry.begin_kill(id, caller)? {
                Kill::Finished(job) => return Ok(KillOutcome::AlreadyFinished(job)),
                Kill::Ask => table.live.get(id).cloned(),
            }
        };
        let asked = running.as_ref().map_or(Ok(()), |running| running.ask(reason));
        let (job, news) = self.table().registry.end_kill(id, asked.is_ok());
        let owner = running.and_then(|running| running.owner.clone());
        if let Some(job) = news {
            self.done(job, owner.clone());
        }
        match (asked, job) {
            (Err(failure), _) => Err(JobError::Cancel { id: id.clone(), failure }),
            (Ok(()), None) => Err(JobError::Unknown { id: id.clone() }),
            (Ok(()), Some(job)) => {
                self.changed(owner);
                Ok(KillOutcome::Requested(job))
            }
        }
    }

    /// Where to listen.
    pub fn events(&self) -> &JobsEvents {
        &self.0.events
    }

    /// How many jobs are active, whoever owns them.
    pub fn active(&self) -> usize {
        self.table().registry.pending(None)
    }

    /// First the record, then who waits, then the listeners.
    fn settle(&self, id: &JobId, outcome: JobOutcome) {
        let (job, running, forgotten) = {
            let mut table = self.table();
            let Some((job, forgotten)) = table.registry.settle(id, outcome, self.now()) else {
                return;
            };
            let running = table.live.get(id).cloned();
            let forgotten: Vec<_> = forgotten.iter().map(|id| table.live.remove(id)).collect();
            (job, running, forgotten)
        };
        // What producers handed over is dropped outside the lock: it may call back.
        drop(forgotten);
        let owner = running.as_ref().and_then(|running| running.owner.clone());
        if let Some(running) = running {
            running.over.send_replace(true);
        }
        self.0.ends.send_modify(|ends| *ends += 1);
        self.changed(owner.clone());
        self.done(job, owner);
    }

    fn changed(&self, owner: Option<Agent>) {
        let scope = self.scope_of(owner.as_ref());
        self.0.events.changed.tell(&scope, &JobsChanged { owner });
    }

    fn done(&self, job: JobSnapshot, owner: Option<Agent>) {
        let scope = self.scope_of(owner.as_ref());
        self.0.events.done.tell(&scope, &JobDone { job, owner });
    }

    fn scope_of(&self, owner: Option<&Agent>) -> Scope {
        owner.map_or(&self.0.world.scope, |owner| owner.scope()).clone()
    }

    fn now(&self) -> i64 {
        self.0.world.clock.now_ms()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("active", &self.active()).finish_non_exhaustive()
    }
}

impl Owner {
    fn of(agent: &Agent) -> Self {
        Self { session: agent.id().clone(), scope: agent.scope().id() }
    }
}

impl Running {
    /// Asks the producer to end the work.
    fn ask(&self, reason: Option<&str>) -> Result<(), Failure> {
        let asked = catch_unwind(AssertUnwindSafe(|| (self.cancel)(reason)));
        asked.unwrap_or_else(|panic| Err(panic_failure(&*panic)))
    }
}

fn failed(id: &JobId, failure: &Failure) -> JobOutcome {
    tracing::warn!(job = %id, %failure, "a job's work failed without an outcome");
    JobOutcome::failed(failure.to_string())
}
