//! Presets as a plugin.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    plugin::{Plugin, PluginContext},
    points::Created,
};

use crate::{Presets, Root, RowContext, RowFactories, SELECTED_KIND};

/// The service under which the plugin offers its [`Presets`].
pub const PRESETS_SERVICE: &str = "presets";

/// The event kinds that a harness must know to load sessions that changed their preset.
pub const EVENT_KINDS: [&str; 1] = [SELECTED_KIND];

/// The plugin: the service [`Presets`] over some roots. It composes no agent by itself.
#[derive(Debug, Clone, Default)]
pub struct PresetsPlugin {
    roots: Vec<Root>,
    rows: RowFactories,
}

impl PresetsPlugin {
    /// The presets below these roots, of which the earlier count more.
    pub fn new(roots: impl IntoIterator<Item = Root>) -> Self {
        Self { roots: roots.into_iter().collect(), rows: RowFactories::new() }
    }

    /// Makes rows of kind `plugin` and this name: see [`RowFactories`].
    #[must_use]
    pub fn row<F, Fut>(mut self, name: impl Into<String>, factory: F) -> Self
    where
        F: Fn(RowContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.rows = self.rows.with(name, factory);
        self
    }
}

impl Plugin for PresetsPlugin {
    fn name(&self) -> &str {
        "presets"
    }

    fn event_kinds(&self) -> Vec<&'static str> {
        EVENT_KINDS.to_vec()
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let Self { roots, rows } = self.clone();
        async move {
            let world = ctx.world()?;
            let presets = Presets::new(world.clone(), roots, rows);
            ctx.services.provide(&ctx.scope, PRESETS_SERVICE, Arc::new(presets.clone()))?;
            let tracking = presets.clone();
            let created = move |created: Created| {
                let joined = tracking.created(&created.agent);
                async move { joined }
            };
            ctx.tie(world.hooks.created.add(&world.scope, created)?)?;
            ctx.scope.on_close(move || presets.close())?;
            Ok(())
        }
        .boxed()
    }
}
