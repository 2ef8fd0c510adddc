//! Keeps the images of requests within a budget: the oldest are left out, durably.

use std::{collections::HashMap, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    config::Route,
    machine::{Decision, Recovery},
    message::SharedMessage,
    surface::ImageOffload as OffloadEvent,
};
use playhouse_plugin_api::{
    agent::Agent,
    plugin::{Plugin, PluginContext},
    session::{SessionError, SessionView},
};

use crate::image_budget::{ImageBudget, SurfaceImage, images, offload, surface_images};

/// Leaves the oldest images out of requests by `image/offload` events: before a step whose images
/// would go beyond the route's [`ImageBudget`], before an attempt on a route with a smaller one, and
/// when a provider says how many to leave out, which is then tried again.
///
/// The messages keep their ids and places, words stand where an image was, and a new series of
/// requests begins. What a step is about to commit counts, and can itself be left out from the next
/// request on.
#[derive(Debug, Clone, Default)]
pub struct ImageOffload {
    budget: ImageBudget,
    routes: HashMap<Route, ImageBudget>,
}

impl ImageOffload {
    /// With the default budget for every route.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this budget for routes that have none of their own.
    #[must_use]
    pub fn budget(mut self, budget: ImageBudget) -> Self {
        self.budget = budget;
        self
    }

    /// With this budget for one model of a provider.
    #[must_use]
    pub fn route(mut self, provider: &str, model: &str, budget: ImageBudget) -> Self {
        self.routes.insert(Route::new(provider, model), budget);
        self
    }

    fn of(&self, route: &Route) -> &ImageBudget {
        self.routes.get(route).unwrap_or(&self.budget)
    }

    async fn fit(
        &self,
        agent: &Agent,
        route: &Route,
        coming: &[SharedMessage],
    ) -> Result<(), Failure> {
        let budget = self.of(route);
        let plan = |view: &SessionView| {
            let there = surface_images(&view.history);
            let mut sizes: Vec<u64> = there.iter().map(|image| image.bytes).collect();
            sizes.extend(coming.iter().flat_map(|message| images(message)).map(|(bytes, _)| bytes));
            offload(there.iter().take(budget.cut(&sizes)))
        };
        append(agent, plan).await.map(drop)
    }
}

/// Leaves this many of the oldest shown images out; whether there were any.
async fn leave_out(agent: &Agent, count: u32) -> Result<bool, Failure> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let plan = |view: &SessionView| {
        let there = surface_images(&view.history);
        let shown: Vec<SurfaceImage> = there.into_iter().filter(|image| !image.offloaded).collect();
        offload(shown.iter().take(count))
    };
    append(agent, plan).await
}

/// Appends what the plan says, and plans anew if the surface has changed meanwhile.
async fn append(
    agent: &Agent,
    plan: impl Fn(&SessionView) -> Option<OffloadEvent>,
) -> Result<bool, Failure> {
    let session = agent.session();
    loop {
        let view = session.view();
        let Some(event) = plan(&view) else { return Ok(false) };
        match session.append(event.into()).await {
            Ok(_) => return Ok(true),
            Err(SessionError::Refused(_))
                if session.view().content_generation != view.content_generation => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Plugin for ImageOffload {
    fn name(&self) -> &str {
        "image-offload"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let plugin = Arc::new(self.clone());
        async move {
            for budget in plugin.routes.values().chain([&plugin.budget]) {
                budget.check().map_err(|fault| {
                    Failure::new("INVALID_CONFIG", format!("image budget: {fault}; correct it"))
                })?;
            }
            let world = ctx.world()?;
            let (scope, hooks) = (&world.scope, &world.hooks);
            let fits = plugin.clone();
            // Outside the others, to see what they decide.
            ctx.tie(hooks.pre_step.add_first(scope, move |step, next| {
                let plugin = fits.clone();
                async move {
                    let (agent, choice) = (step.agent.clone(), step.choice.clone());
                    let decision = next.run(step).await?;
                    if let Decision::Enter(entry) = &decision {
                        let route = Route::new(choice.provider, choice.model);
                        plugin.fit(&agent, &route, &entry.messages).await?;
                    }
                    Ok(decision)
                }
            })?)?;
            ctx.tie(hooks.request.add(scope, move |proposal, next| {
                let plugin = plugin.clone();
                async move {
                    let agent = proposal.agent.clone();
                    let config = next.run(proposal).await?;
                    plugin.fit(&agent, &config.route(), &[]).await?;
                    Ok(config)
                }
            })?)?;
            ctx.tie(hooks.request_error.add_first(scope, |error, next| async move {
                match error.failure.offload_images {
                    Some(count) if leave_out(&error.agent, count).await? => Ok(Recovery::Retry),
                    _ => next.run(error).await,
                }
            })?)?;
            Ok(())
        }
        .boxed()
    }
}
