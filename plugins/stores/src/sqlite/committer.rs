//! The thread that owns the one connection that writes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;

use playhouse_plugin_api::store::StoreError;
use rusqlite::{Connection, TransactionBehavior};

use super::SqliteConfig;
use super::failure::Fault;
use super::open::{begin_writing, end_writing};
use super::queue::{Job, Outcome, Queue, Waiting};
use super::reads::Reads;
use super::write::Changes;
use crate::journal::Held;

pub(crate) struct Committer {
    pub(crate) dir: PathBuf,
    pub(crate) config: SqliteConfig,
    /// None after a failure, until the next job.
    pub(crate) connection: Option<Connection>,
    pub(crate) reads: Arc<Reads>,
    pub(crate) lock: Box<dyn Held>,
}

impl Committer {
    /// Does jobs until there are no more, then lets go of the store.
    pub(crate) fn run(mut self, queue: &Queue) {
        // Also if this panics: nobody may wait for a thread that is gone.
        let _abandoned = Abandons(queue);
        let mut close: Option<Waiting> = None;
        while let Some(mut jobs) = queue.take(self.config.commit_bytes) {
            close = jobs.pop_if(|waiting| matches!(waiting.job, Job::Close)).or(close);
            let outcomes = self.commit(&jobs);
            for (waiting, outcome) in jobs.into_iter().zip(outcomes) {
                waiting.answer(outcome);
            }
        }
        self.close();
        // Whoever waits for the end may open the store at once.
        if let Some(waiting) = close {
            waiting.answer(Ok(()));
        }
    }

    /// Does jobs in one transaction; one after the other if that fails, so that the fault of one is
    /// not the fault of all.
    fn commit(&mut self, jobs: &[Waiting]) -> Vec<Outcome> {
        if !jobs.iter().any(|waiting| waiting.job.writes()) {
            // Everything before is durable: each commit was.
            return jobs.iter().map(|_| Ok(())).collect();
        }
        match self.attempt(jobs) {
            Ok(outcomes) => outcomes,
            Err(error) if jobs.len() == 1 => vec![Err(error)],
            Err(_) => jobs
                .iter()
                .map(|job| {
                    let mut alone = self.attempt(slice::from_ref(job))?;
                    alone.pop().unwrap_or(Ok(()))
                })
                .collect(),
        }
    }

    /// One transaction, or nothing of it.
    fn attempt(&mut self, jobs: &[Waiting]) -> Result<Vec<Outcome>, StoreError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => begin_writing(&self.dir, &self.config).map_err(|f| f.of_store(&self.dir))?,
        };
        // Whatever is half done is taken back when the transaction is dropped, also by a panic; then
        // the connection goes too, and the next job gets another.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut connection = connection;
            let done = transact(&mut connection, jobs);
            (connection, done)
        }));
        let (connection, done) = outcome.map_err(|_| StoreError::Io {
            what: format!("writing the store at {}", self.dir.display()),
            cause: "the code that writes it panicked; nothing was changed".to_owned(),
        })?;
        match done {
            Ok(outcomes) => {
                self.connection = Some(connection);
                for (waiting, outcome) in jobs.iter().zip(&outcomes) {
                    if let (Job::Append { claim, batch }, Ok(())) = (&waiting.job, outcome)
                        && !batch.events.is_empty()
                    {
                        claim.set_stored();
                    }
                    if let (Job::Tail { claim, .. } | Job::Materialize { claim }, Ok(())) =
                        (&waiting.job, outcome)
                    {
                        claim.set_stored();
                    }
                }
                Ok(outcomes)
            }
            Err((fault, at)) => {
                if !fault.ends_the_connection() {
                    self.connection = Some(connection);
                }
                let session = at.and_then(|at| jobs.get(at)?.job.session());
                Err(match session {
                    Some(id) => fault.of_session(&self.dir, id),
                    None => fault.of_store(&self.dir),
                })
            }
        }
    }

    fn close(self) {
        let Self { dir, config, connection, reads, lock } = self;
        // After the last read, so that nothing holds the log.
        reads.shut();
        let connection = connection.map_or_else(|| begin_writing(&dir, &config), Ok);
        // All is durable where it is: a log that stays costs the next open a moment.
        if let Err(fault) = connection.and_then(end_writing) {
            let cause = fault.words(&dir);
            tracing::warn!(dir = %dir.display(), %cause, "the log could not be emptied");
        }
        drop(lock);
    }
}

struct Abandons<'a>(&'a Queue);

impl Drop for Abandons<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// The outcomes of all jobs; or a fault and the job that it came with.
fn transact(
    connection: &mut Connection,
    jobs: &[Waiting],
) -> Result<Vec<Outcome>, (Fault, Option<usize>)> {
    let of_all = |fault: rusqlite::Error| (Fault::from(fault), None);
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(of_all)?;
    let mut changes = Changes::begin(&transaction).map_err(|fault| (fault, None))?;
    let mut outcomes = Vec::with_capacity(jobs.len());
    for (at, waiting) in jobs.iter().enumerate() {
        outcomes.push(match changes.apply(&waiting.job) {
            Ok(()) => Ok(()),
            Err(Fault::Refused(error)) => Err(error),
            Err(fault) => return Err((fault, Some(at))),
        });
    }
    if changes.any {
        changes.store.write(&transaction).map_err(|fault| (fault, None))?;
        transaction.commit().map_err(of_all)?;
    }
    Ok(outcomes)
}
