//! Waits, and reports that do not arrive.

use std::time::Duration;

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::cancel::CancelToken;

use super::Jobs;
use crate::{JobError, JobId, JobSnapshot, registry::Wait};

impl Jobs {
    /// Waits until a job is over, for at most `timeout`, and returns it as it is then. Whoever is
    /// given an end by this is told of it no more; a wait that is cancelled or dropped tells nothing.
    ///
    /// # Errors
    ///
    /// As [`Jobs::get`]; `INVALID_ARGUMENT` if `timeout` is zero; `ABORTED` once `cancel` fires;
    /// `UNKNOWN_JOB` if the job is forgotten meanwhile, because its owner ended.
    pub async fn wait(
        &self,
        id: &JobId,
        timeout: Duration,
        caller: Option<&SessionId>,
        cancel: &CancelToken,
    ) -> Result<JobSnapshot, JobError> {
        if timeout.is_zero() {
            return Err(JobError::Invalid("a wait needs a timeout above zero".to_owned()));
        }
        let running = {
            let mut table = self.table();
            match table.registry.begin_wait(id, caller)? {
                Wait::Over(job) => return Ok(job),
                Wait::Waiting => table.live.get(id).cloned(),
            }
        };
        let mut waiting = Waiting { jobs: self, id, given: false };
        let over = async {
            if let Some(running) = running {
                // The sender is held here.
                let _ = running.over.subscribe().wait_for(|over| *over).await;
            }
        };
        let aborted = tokio::select! {
            biased;
            () = over => false,
            () = cancel.cancelled() => true,
            () = tokio::time::sleep(timeout) => false,
        };
        let job = self.table().registry.end_wait(id);
        let job = job.ok_or_else(|| JobError::Unknown { id: id.clone() })?;
        waiting.given = true;
        if aborted && !job.status.is_terminal() {
            return Err(JobError::Aborted { id: id.clone() });
        }
        Ok(job)
    }

    /// Takes a report back that did not arrive: a read's or a wait's. If nobody else knows of the
    /// end, it is told as news.
    pub fn report_lost(&self, id: &JobId) {
        let (news, owner) = {
            let mut table = self.table();
            let owner = table.live.get(id).and_then(|running| running.owner.clone());
            (table.registry.lost(id), owner)
        };
        if let Some(job) = news {
            self.done(job, owner);
        }
    }
}

/// A wait under way. One that is dropped has told nobody.
struct Waiting<'a> {
    jobs: &'a Jobs,
    id: &'a JobId,
    given: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.given {
            return;
        }
        let job = self.jobs.table().registry.end_wait(self.id);
        if job.is_some_and(|job| job.status.is_terminal()) {
            self.jobs.report_lost(self.id);
        }
    }
}
