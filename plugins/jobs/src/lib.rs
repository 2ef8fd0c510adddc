//! Background work with output for Playhouse agents: start, read, wait, kill, completion notices.
//!
//! A *job* is work that goes on while its agent does something else. Who runs it, its *producer*,
//! gives a future of its end, a way to cancel it and perhaps a way to read its output; the registry
//! knows who may see it, who waits, and whether its end was told. Jobs live in memory: a restart of
//! the process loses them, and the log holds what was said of them.
//!
//! - [`service`]: the seam that producers and tools use, [`Jobs`].
//! - [`events`]: who is told that jobs end and change.
//! - [`registry`]: what jobs there are and what is told of them, a pure state machine.
//! - [`job`]: what a job is made from and how it looks.
//! - [`tools`]: `job_output`, `job_list` and `job_kill` for models.
//! - [`notice`]: how an agent is told of an end, and how often that may wake it.
//! - [`plugin`]: all of it as a plugin.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use playhouse_jobs::{JOBS_SERVICE, JobOutcome, Jobs, JobsPlugin, NewJob, Work};
//! use playhouse_plugin_api::cancel::CancelToken;
//! use playhouse_supervisor::harness::Harness;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let harness = Harness::builder().plugin(JobsPlugin::default()).start().await?;
//! let jobs = harness.world().services.require::<Jobs>(JOBS_SERVICE)?;
//! let id = jobs.start(NewJob::new("sum", "Add it up"), || {
//!     Ok(Work::new(async { Ok(JobOutcome::completed().output("42")) }))
//! })?;
//! let done = jobs.wait(&id, Duration::from_secs(5), None, &CancelToken::new()).await?;
//! assert_eq!(done.id.as_str(), "sum-1");
//! assert_eq!(jobs.read(&id, None)?.text, "42");
//! # harness.shutdown().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

mod bound;
pub mod error;
pub mod events;
pub mod job;
pub mod notice;
pub mod plugin;
pub mod registry;
pub mod service;
#[cfg(test)]
mod subagents;
pub mod tools;

pub use self::{
    error::JobError,
    events::{JobDone, JobsChanged, JobsEvents},
    job::{JobId, JobOutcome, JobOutput, JobSnapshot, JobStatus, NewJob, PublicJob, Work},
    notice::Delivery,
    plugin::{JobsConfig, JobsConfigError, JobsPlugin},
    service::{JOBS_SERVICE, Jobs, KillOutcome},
    tools::job_tools,
};
