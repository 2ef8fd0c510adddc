//! Fallback models as a plugin.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    config::Route,
    event::{EventBody, NewEvent},
    machine::Recovery,
};
use playhouse_plugin_api::{
    hook::HookResult,
    llm::LlmRegistry,
    plugin::{Plugin, PluginContext},
    points::RequestError,
    scope::{Registration, Scope, ScopeClosed, ScopeId},
};

use super::{
    FALLBACK_KIND,
    event::{FellBack, StepSoFar},
    policy::{Choice, FallbackPolicy},
};

/// The plugin: a step whose route has failed goes on with the next route of a list.
///
/// Clones share what [`Fallback::set`] sets, so keep one to say otherwise for single agents.
///
/// When the list is used up, the turn ends with what the step's first route failed with; a route
/// that is not registered then is passed over.
///
/// ```
/// use playhouse_messages::config::ModelChoice;
/// use playhouse_policies::{Fallback, FallbackPolicy};
/// use playhouse_supervisor::harness::Harness;
///
/// let spare = ModelChoice {
///     provider: "local".into(),
///     model: "any".into(),
///     reasoning_effort: None,
/// };
/// let fallback = Fallback::new(FallbackPolicy::new([spare])?);
/// # drop(
/// Harness::builder().plugin(fallback.clone())
/// # );
/// # Ok::<(), playhouse_policies::FallbackError>(())
/// ```
#[derive(Clone, Default)]
pub struct Fallback {
    everywhere: Option<Arc<FallbackPolicy>>,
    scoped: Arc<Mutex<Vec<Scoped>>>,
}

struct Scoped {
    key: u64,
    scope: ScopeId,
    policy: Option<Arc<FallbackPolicy>>,
}

impl Fallback {
    /// This policy for all agents of the harness. The default is none.
    pub fn new(policy: FallbackPolicy) -> Self {
        Self { everywhere: Some(Arc::new(policy)), ..Self::default() }
    }

    /// Another policy, or none, for the agents at or below `scope`. The nearest one counts, the
    /// newest of one scope.
    pub fn set(
        &self,
        scope: &Scope,
        policy: impl Into<Option<FallbackPolicy>>,
    ) -> Result<Registration, ScopeClosed> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let policy = policy.into().map(Arc::new);
        let list = self.scoped.clone();
        // Held until the entry is there: a scope that closes meanwhile waits to remove it.
        let mut scoped = self.scoped.lock().unwrap_or_else(PoisonError::into_inner);
        let registration = scope.on_close(move || {
            list.lock().unwrap_or_else(PoisonError::into_inner).retain(|entry| entry.key != key);
        })?;
        scoped.push(Scoped { key, scope: scope.id(), policy });
        Ok(registration)
    }

    fn policy(&self, scope: &Scope) -> Option<Arc<FallbackPolicy>> {
        let scoped = self.scoped.lock().unwrap_or_else(PoisonError::into_inner);
        let nearest = scope
            .chain()
            .find_map(|scope| scoped.iter().rev().find(|entry| entry.scope == scope.id()));
        match nearest {
            Some(entry) => entry.policy.clone(),
            None => self.everywhere.clone(),
        }
    }

    /// What becomes of a failure that nobody else recovers from.
    async fn fall_back(&self, error: RequestError, models: &LlmRegistry) -> HookResult<Recovery> {
        let RequestError { agent, at, provider, model, failure, .. } = error;
        let Some(policy) = self.policy(agent.scope()) else { return Ok(Recovery::Fail) };
        let (session, from) = (agent.session(), Route { provider, model });
        let StepSoFar { failed, first_failure } = StepSoFar::of(&session.log(), at, from.clone());
        let is_registered = |provider: &str| models.adapter(provider).is_some();
        let Some(Choice { to, skipped }) = policy.choose(&failure, &failed, is_registered) else {
            return Ok(Recovery::Fail);
        };
        let event = FellBack { at, from, failure, skipped, to: to.clone() }.event();
        let Some(choice) = to else {
            session.append(event).await?;
            return first_failure.map_or(Ok(Recovery::Fail), Err);
        };
        // What somebody chose during the step holds from the next one on, as it would have.
        let choices = [Some(choice.clone()), agent.model().pending()].into_iter().flatten();
        let choices = choices.map(|choice| NewEvent::log_only(EventBody::ModelSelection(choice)));
        session.append_all(std::iter::once(event).chain(choices).collect()).await?;
        Ok(Recovery::RetryWith(choice))
    }
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback").field("everywhere", &self.everywhere).finish_non_exhaustive()
    }
}

impl Plugin for Fallback {
    fn name(&self) -> &str {
        "fallback"
    }

    fn event_kinds(&self) -> Vec<&'static str> {
        vec![FALLBACK_KIND]
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let fallback = self.clone();
        async move {
            let world = ctx.world()?;
            let (models, unloaded) = (world.models.clone(), ctx.scope.cancel_token().clone());
            // Outside the others: they are asked first, and retry is one of them.
            let listener =
                world.hooks.request_error.add_first(&world.scope, move |error, next| {
                    let (fallback, models, unloaded) =
                        (fallback.clone(), models.clone(), unloaded.clone());
                    async move {
                        let verdict = next.run(error.clone()).await?;
                        let gone = error.cancel.is_cancelled() || unloaded.is_cancelled();
                        if verdict != Recovery::Fail || gone {
                            return Ok(verdict);
                        }
                        fallback.fall_back(error, &models).await
                    }
                })?;
            ctx.tie(listener)?;
            Ok(())
        }
        .boxed()
    }
}
