//! What a plugin is.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use playhouse_messages::chunk::Failure;

use crate::{
    scope::{Registration, Scope, ScopeClosed},
    service::Services,
    world::World,
};

/// The service under which a harness offers its [`World`] to its plugins.
pub const WORLD_SERVICE: &str = "playhouse.world";

/// A feature that is set up in a scope, and is gone when the scope closes.
///
/// A plugin registers everything through the scope of its [`PluginContext`]: then nothing of it is
/// left when it is reloaded, when a service that it needs goes, or when its host dies. A plugin
/// never undoes its registrations by hand.
///
/// ```
/// use std::sync::Arc;
/// use futures::{FutureExt, future::BoxFuture};
/// use playhouse_messages::chunk::Failure;
/// use playhouse_plugin_api::{
///     plugin::{Plugin, PluginContext},
///     prompt::{PromptRegistry, Section},
/// };
///
/// /// Greets in the system prompt, by a name that another plugin provides.
/// struct Greeting;
///
/// impl Plugin for Greeting {
///     fn name(&self) -> &str {
///         "greeting"
///     }
///
///     fn requires(&self) -> Vec<&'static str> {
///         vec!["prompt", "user-name"]
///     }
///
///     fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
///         async move {
///             let prompt = ctx.services.require::<PromptRegistry>("prompt")?;
///             let name = ctx.services.require::<String>("user-name")?;
///             let text = format!("You talk to {name}.");
///             prompt.section(&ctx.scope, Section::text("greeting", 100.0, text))?;
///             Ok(())
///         }
///         .boxed()
///     }
/// }
///
/// # use playhouse_plugin_api::{scope::Scope, service::Services};
/// let (scope, services, prompt) = (Scope::root("root"), Services::new(), PromptRegistry::new());
/// services.provide(&scope, "prompt", Arc::new(prompt.clone()))?;
/// services.provide(&scope, "user-name", Arc::new("Ada".to_owned()))?;
/// let before = *prompt.watch().borrow();
/// let ctx = PluginContext::new(scope.child("greeting")?, services);
/// futures::executor::block_on(Greeting.setup(ctx)).expect("it was set up");
/// assert_eq!(*prompt.watch().borrow(), before + 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Plugin: Send + Sync + 'static {
    /// Unique in a harness.
    fn name(&self) -> &str;

    /// The services that it waits for. It is set up when all are there, and unwound as soon as one
    /// goes or is replaced. Asked once, when the plugin is hosted.
    fn requires(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The event kinds that it writes and that a reader must understand. A harness that is built with
    /// the plugin loads logs that hold them.
    fn event_kinds(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Registers what the plugin offers. Runs in a task, once for each time that the plugin is set
    /// up; the future is dropped when the scope closes before it ends. After a failure or a panic the
    /// scope is closed, so that half a plugin never stays.
    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>>;
}

/// What a plugin gets to register with. Clones share the scope.
#[derive(Clone)]
#[non_exhaustive]
pub struct PluginContext {
    /// The plugin's own scope, new for each setup.
    pub scope: Scope,
    /// What other plugins and the harness offer.
    pub services: Services,
}

impl PluginContext {
    /// A context for one setup.
    pub fn new(scope: Scope, services: Services) -> Self {
        Self { scope, services }
    }

    /// Undoes a registration when the plugin's scope closes: for what all agents shall see. They
    /// stand beside plugins, not below them, so that is registered in the world's scope.
    ///
    /// # Errors
    ///
    /// The scope is closed; the registration is undone at once.
    pub fn tie(&self, registration: Registration) -> Result<(), ScopeClosed> {
        let undo = registration.clone();
        let tied = self.scope.on_close(move || undo.remove());
        if tied.is_err() {
            registration.remove();
        }
        tied.map(drop)
    }

    /// The world that the plugin lives in.
    ///
    /// # Errors
    ///
    /// `NO_WORLD` outside a harness.
    pub fn world(&self) -> Result<Arc<World>, Failure> {
        self.services
            .get::<World>(WORLD_SERVICE)
            .ok_or_else(|| Failure::new("NO_WORLD", "the plugin is not hosted by a harness"))
    }
}

impl fmt::Debug for PluginContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginContext").field("scope", &self.scope).finish_non_exhaustive()
    }
}
