//! Jobs as a plugin.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    agent::Agent,
    hook::Next,
    plugin::{Plugin, PluginContext},
    points::PreStep,
    prompt::Section,
};

use crate::{
    Delivery, JOBS_SERVICE, JobDone, Jobs,
    notice::Notices,
    tools::{GUIDANCE, JOBS_ORDER, JOBS_SECTION, job_tools},
};

/// The longest that a wait may be configured to last: 2^31 - 1 ms.
pub const WAIT_TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// How many jobs may run, how long models may wait for them, and how their ends are told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobsConfig {
    /// Active jobs of one agent; those without an owner share one number. Positive.
    pub max_per_owner: usize,
    /// How long `job_output` waits unless told; positive.
    pub wait_timeout: Duration,
    /// How long it waits at most; not less than `wait_timeout`, and at most [`WAIT_TIMEOUT_MAX`].
    pub max_wait_timeout: Duration,
    /// How an owner is told of an end.
    pub completion_delivery: Delivery,
    /// How often ends may wake an agent until a person speaks to it again.
    pub max_consecutive_wakes: u32,
}

impl Default for JobsConfig {
    fn default() -> Self {
        Self {
            max_per_owner: 10,
            wait_timeout: Duration::from_secs(30),
            max_wait_timeout: Duration::from_secs(600),
            completion_delivery: Delivery::Wakeup,
            max_consecutive_wakes: 3,
        }
    }
}

/// Why a [`JobsConfig`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobsConfigError {
    /// No job could ever run.
    #[error("jobs: `max_per_owner` must be positive; leave the plugin out for no jobs")]
    NoJobs,
    /// The waits make no sense.
    #[error(
        "jobs: `wait_timeout` ({wait:?}) must be above zero and not above `max_wait_timeout` \
         ({max:?}), which is at most {WAIT_TIMEOUT_MAX:?}"
    )]
    Waits {
        /// The configured wait.
        wait: Duration,
        /// The configured longest one.
        max: Duration,
    },
}

impl JobsConfigError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        "INVALID_CONFIG"
    }
}

/// The plugin: the service [`Jobs`], the tools on it with their guidance, and notices of ends.
///
/// It attaches itself as a controller for all agents, so that each may have jobs. It starts none:
/// that is for producers, such as a tool of yours that calls [`Jobs::start`].
#[derive(Debug, Clone, Default)]
pub struct JobsPlugin {
    config: JobsConfig,
}

impl JobsPlugin {
    /// Jobs, if the config makes sense.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn new(config: JobsConfig) -> Result<Self, JobsConfigError> {
        if config.max_per_owner == 0 {
            return Err(JobsConfigError::NoJobs);
        }
        let (wait, max) = (config.wait_timeout, config.max_wait_timeout);
        if wait.is_zero() || wait > max || max > WAIT_TIMEOUT_MAX {
            return Err(JobsConfigError::Waits { wait, max });
        }
        Ok(Self { config })
    }
}

impl Plugin for JobsPlugin {
    fn name(&self) -> &str {
        "jobs"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let config = self.config.clone();
        async move {
            let world = ctx.world()?;
            let jobs = Jobs::new(world.clone(), &ctx.scope, config.max_per_owner)?;
            ctx.services.provide(&ctx.scope, JOBS_SERVICE, Arc::new(jobs.clone()))?;
            for tool in job_tools(&jobs, &config) {
                ctx.tie(world.tools.registry().register(&world.scope, tool)?)?;
            }
            let section = Section::text(JOBS_SECTION, JOBS_ORDER, GUIDANCE);
            ctx.tie(world.prompts.section(&world.scope, section)?)?;
            ctx.tie(jobs.attach_controller(&world.scope)?)?;

            let (delivery, max_wakes) = (config.completion_delivery, config.max_consecutive_wakes);
            let notices = Arc::new(Notices::new(world.ids.clone(), delivery, max_wakes));
            let telling = notices.clone();
            let done = move |done: &JobDone| telling.tell(done);
            ctx.tie(jobs.events().done.add(&world.scope, done)?)?;
            let refilling = notices.clone();
            let pre_step = move |step: PreStep, next: Next<PreStep, _>| {
                if step.messages.iter().any(|message| message.source.kind() == "user") {
                    refilling.refill(&step.agent);
                }
                next.run(step)
            };
            ctx.tie(world.hooks.pre_step.add_first(&world.scope, pre_step)?)?;
            let gone = move |agent: &Agent| notices.forget(agent);
            ctx.tie(world.hooks.disposed.add(&world.scope, gone)?)?;
            Ok(())
        }
        .boxed()
    }
}
