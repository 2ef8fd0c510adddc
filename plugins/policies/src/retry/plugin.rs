//! Retry as a plugin.

use std::{fmt, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    machine::Recovery,
    retry::{RetryPolicy, spread},
};
use playhouse_plugin_api::{
    cancel::CancelToken,
    clock::Ids,
    hook::{HookResult, Next},
    plugin::{Plugin, PluginContext},
    points::RequestError,
};

use super::{
    RETRY_KIND, RETRY_STARTED_KIND,
    decide::{Decision, decide},
    event::{Mode, Scheduled, policy_key},
};

type Random = dyn Fn() -> f64 + Send + Sync;

/// The plugin: retries failed requests as the policy of their route says.
///
/// A limited policy decides before the listeners that were registered later; one without a limit
/// asks them first. A wait ends with the turn's cancellation, and when the plugin is unloaded;
/// neither leads to a retry.
///
/// ```
/// use playhouse_policies::Retry;
/// use playhouse_supervisor::harness::Harness;
///
/// // With delays that are not spread.
/// let builder = Harness::builder().plugin(Retry::new().random(|| 0.5));
/// # drop(builder);
/// ```
#[derive(Clone, Default)]
pub struct Retry {
    random: Option<Arc<Random>>,
}

impl Retry {
    /// Delays are spread by the ids of retries: as random as the harness's
    /// [`Ids`](playhouse_plugin_api::clock::Ids), and the same again where those are.
    pub fn new() -> Self {
        Self::default()
    }

    /// Delays are spread by this source of numbers from 0 to 1, such as a seeded generator.
    #[must_use]
    pub fn random(mut self, source: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        self.random = Some(Arc::new(source));
        self
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry").field("random", &self.random.is_some()).finish()
    }
}

impl Plugin for Retry {
    fn name(&self) -> &str {
        "retry"
    }

    fn event_kinds(&self) -> Vec<&'static str> {
        vec![RETRY_KIND, RETRY_STARTED_KIND]
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let random = self.random.clone();
        async move {
            let world = ctx.world()?;
            let ids = world.ids.clone();
            let unloaded = ctx.scope.cancel_token().clone();
            let executor = Executor { random, ids, unloaded };
            let listener = move |error, next| executor.clone().recover(error, next);
            ctx.tie(world.hooks.request_error.add(&world.scope, listener)?)?;
            Ok(())
        }
        .boxed()
    }
}

#[derive(Clone)]
struct Executor {
    random: Option<Arc<Random>>,
    ids: Arc<dyn Ids>,
    /// Fires when the plugin is unloaded.
    unloaded: CancelToken,
}

impl Executor {
    async fn recover(
        self,
        error: RequestError,
        next: Next<RequestError, Recovery>,
    ) -> HookResult<Recovery> {
        let loaded = !self.unloaded.is_cancelled();
        let Some(policy) = error.retry_policy.clone().filter(|_| loaded) else {
            return next.run(error).await;
        };
        let gone = || error.cancel.is_cancelled() || self.unloaded.is_cancelled();
        if matches!(policy, RetryPolicy::Always { .. }) && !gone() {
            match next.clone().run(error.clone()).await {
                Ok(Recovery::Fail) => {}
                Ok(verdict) => return Ok(verdict),
                Err(failure) => {
                    tracing::warn!(%failure, "a recovery failed; the request is retried anyway");
                }
            }
        }
        if gone() {
            return Ok(Recovery::Fail);
        }
        match self.schedule(&error, &policy) {
            Some(retry) => self.carry_out(&error, retry).await,
            None => next.run(error).await,
        }
    }

    fn schedule(&self, error: &RequestError, policy: &RetryPolicy) -> Option<Scheduled> {
        let RequestError { agent, at, provider, failure, .. } = error;
        let policy_key = policy_key(policy);
        let prior = Scheduled::last(&agent.session().log(), *at, provider, &policy_key);
        let (retry_id, prior) = match prior {
            Some(prior) => (prior.retry_id, prior.retry),
            None => (self.ids.fresh(), 0),
        };
        let random = match &self.random {
            Some(source) => source().clamp(0.0, 1.0),
            None => spread(&retry_id, prior),
        };
        let Decision::Retry { retry, delay_ms } = decide(policy, failure, prior, random) else {
            return None;
        };
        let (mode, max_retries) = match policy {
            RetryPolicy::Normal { max_retries, .. } => (Mode::Normal, Some(*max_retries)),
            RetryPolicy::Always { .. } => (Mode::Always, None),
        };
        Some(Scheduled {
            retry_id,
            at: *at,
            provider: provider.clone(),
            mode,
            policy_key,
            retry,
            max_retries,
            delay_ms,
            failure: failure.clone(),
        })
    }

    async fn carry_out(&self, error: &RequestError, retry: Scheduled) -> HookResult<Recovery> {
        let session = error.agent.session();
        session.append(retry.event()).await?;
        let delay = Duration::from_secs_f64(retry.delay_ms / 1_000.0);
        let wait = self.unloaded.race(error.cancel.race(tokio::time::sleep(delay)));
        if wait.await.flatten().is_none() {
            return Ok(Recovery::Fail);
        }
        session.append(retry.started().event()).await?;
        Ok(Recovery::Retry)
    }
}
