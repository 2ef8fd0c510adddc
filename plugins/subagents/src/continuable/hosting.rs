//! How a harness gets its continuable children.

use std::sync::Arc;

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{plugin::PluginContext, points::Disposing};

use super::{CONTINUATIONS_SERVICE, Continuations, machine::Input, tools};
use crate::{ChildProviders, Slots};

impl Continuations {
    /// Offers the service, if the harness has a store, and its tools if models start such children, until the plugin's scope closes:
    /// then all children are disposed, and what they had not claimed stays in their logs.
    pub(crate) fn host(
        ctx: &PluginContext,
        providers: ChildProviders,
        slots: Slots,
        by_models: bool,
    ) -> Result<(), Failure> {
        let world = ctx.world()?;
        if world.store.is_none() {
            return Ok(());
        }
        let owner = world.scope.child("continuable sub-agents")?;
        let service = Self::new(world.clone(), providers, slots, owner.clone());
        let (unloaded, runtime) = (service.clone(), tokio::runtime::Handle::current());
        ctx.scope.on_close(move || {
            let world = unloaded.0.world.clone();
            let _inside = runtime.enter();
            world.scope.spawn_to_end(async move {
                if let Err(error) = unloaded.drain().await {
                    tracing::warn!(%error, "continuable sub-agents of a plugin that goes");
                }
                owner.close();
            });
        })?;
        // Nothing of an agent's tree outlives it.
        let drains = service.clone();
        ctx.tie(world.hooks.disposing.add(&world.scope, move |going: Disposing| {
            let drains = drains.clone();
            async move {
                let Disposing { agent, keep_inbox } = going;
                Ok(drains.0.drain_below(&[agent], keep_inbox).await?)
            }
        })?)?;
        let gone = service.clone();
        ctx.tie(world.hooks.disposed.add(&world.scope, move |agent| {
            gone.0.input(Input::Gone { agent: agent.id().clone() });
        })?)?;
        tools::register(ctx, &service, by_models)?;
        ctx.services.provide(&ctx.scope, CONTINUATIONS_SERVICE, Arc::new(service))?;
        Ok(())
    }
}
