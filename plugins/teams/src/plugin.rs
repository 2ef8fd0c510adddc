//! Teams as a plugin.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    agent::Agent,
    plugin::{Plugin, PluginContext},
    points::{Created, Disposing, StatusChange},
};
use playhouse_subagents::{CONTINUATIONS_SERVICE, Continuations};

use crate::{
    config::{TeamsConfig, TeamsConfigError},
    record::EVENT_KINDS,
    service::{TEAMS_SERVICE, Teams},
    tools::team_tools,
    validator::TeamRules,
};

/// The plugin: the service [`Teams`], and for each member the tools on it with the section that says
/// what it is in its team.
///
/// It waits for continuable sub-agents: host [`Subagents`](playhouse_subagents::Subagents) beside it,
/// in a harness with a store.
///
/// ```
/// use playhouse_subagents::Subagents;
/// use playhouse_supervisor::harness::Harness;
/// use playhouse_teams::TeamsPlugin;
///
/// let builder = Harness::builder().plugin(Subagents::new()).plugin(TeamsPlugin::default());
/// # drop(builder);
/// ```
#[derive(Debug, Clone, Default)]
pub struct TeamsPlugin {
    config: TeamsConfig,
}

impl TeamsPlugin {
    /// Teams, if the config makes sense.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn new(config: TeamsConfig) -> Result<Self, TeamsConfigError> {
        config.check()?;
        Ok(Self { config })
    }
}

impl Plugin for TeamsPlugin {
    fn name(&self) -> &str {
        "teams"
    }

    fn requires(&self) -> Vec<&'static str> {
        vec![CONTINUATIONS_SERVICE]
    }

    fn event_kinds(&self) -> Vec<&'static str> {
        EVENT_KINDS.to_vec()
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let config = self.config.clone();
        async move {
            let world = ctx.world()?;
            let continuations = ctx.services.require::<Continuations>(CONTINUATIONS_SERVICE)?;
            let continuations = Continuations::clone(&continuations);
            let teams = Teams::new(world.clone(), continuations.clone(), config)?;
            teams.tools(|| team_tools(&teams));
            ctx.tie(world.validators.register(&world.scope, TeamRules)?)?;
            let resting = teams.clone();
            ctx.scope.on_close(move || resting.rest())?;

            let come = teams.clone();
            ctx.tie(world.hooks.created.add(&world.scope, move |created: Created| {
                let teams = come.clone();
                async move { teams.came(&created.agent).await }
            })?)?;
            let go = teams.clone();
            ctx.tie(world.hooks.disposing.add(&world.scope, move |going: Disposing| {
                let teams = go.clone();
                async move { teams.going(&going.agent).await }
            })?)?;
            let gone = teams.clone();
            let disposed = move |agent: &Agent| gone.gone(agent);
            ctx.tie(world.hooks.disposed.add(&world.scope, disposed)?)?;
            let moved = teams.clone();
            let status = move |change: &StatusChange| moved.moved(&change.agent);
            ctx.tie(world.hooks.status.add(&world.scope, status)?)?;
            let members = teams.clone();
            let contribution = Arc::new(move |child: Agent| {
                let teams = members.clone();
                async move { teams.member_comes(&child).await }.boxed()
            });
            continuations.register_set_up(&ctx.scope, contribution)?;

            // Those that were there before: Leads first, since members are found by them.
            let agents = world.agents.list();
            for agent in agents.iter().filter(|agent| agent.runtime_parent().is_none()) {
                teams.came(agent).await?;
            }
            for agent in &agents {
                teams.member_was_there(agent)?;
            }
            ctx.services.provide(&ctx.scope, TEAMS_SERVICE, Arc::new(teams))?;
            Ok(())
        }
        .boxed()
    }
}
