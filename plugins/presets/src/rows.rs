//! Rows of an embedder's own.

use std::{collections::BTreeMap, fmt, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{scope::Scope, world::World};
use serde_json::Value;

/// What a row is mounted with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RowContext {
    /// The generation's scope: what is registered there counts for the agents that are composed
    /// from it, and goes with the last of them. A service cannot be provided from it.
    pub scope: Scope,
    /// The world.
    pub world: Arc<World>,
    /// The row's `config`; null if it has none.
    pub config: Value,
}

type Factory = dyn Fn(RowContext) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync;

/// What rows of kind `plugin` may name.
///
/// ```
/// use std::sync::Arc;
/// use playhouse_plugin_api::tool::{ToolRun, tool_fn};
/// use playhouse_presets::{RowContext, RowFactories};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Args {}
///
/// let rows = RowFactories::new().with("greeter", |row: RowContext| async move {
///     let greeting = row.config["greeting"].as_str().unwrap_or("Hello").to_owned();
///     let greet = tool_fn("greet", "Greets.", move |_: Args, _: ToolRun| {
///         let greeting = greeting.clone();
///         async move { Ok(greeting) }
///     });
///     row.world.tools.registry().register(&row.scope, Arc::new(greet))?;
///     Ok(())
/// });
/// assert_eq!(rows.names().collect::<Vec<_>>(), ["greeter"]);
/// ```
#[derive(Clone, Default)]
pub struct RowFactories(BTreeMap<String, Arc<Factory>>);

impl RowFactories {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more; the last of a name counts. It runs once for each generation.
    #[must_use]
    pub fn with<F, Fut>(mut self, name: impl Into<String>, factory: F) -> Self
    where
        F: Fn(RowContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.0.insert(name.into(), Arc::new(move |row| factory(row).boxed()));
        self
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Factory>> {
        self.0.get(name)
    }
}

impl fmt::Debug for RowFactories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
