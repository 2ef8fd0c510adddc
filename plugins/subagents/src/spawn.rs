//! The provider of fresh agents in this process.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_plugin_api::world::World;

use crate::{
    Basis, Capabilities, ChildError, ChildProvider, ChildProviders, ChildRequest, Run, Slots,
    plugin::SUBAGENTS_SERVICE, start::start,
};

/// The provider's name.
pub const SPAWN: &str = "spawn";

/// Starts a fresh agent with its parent's options and without its history.
///
/// The child sees what is registered in the scopes above its parent, not in its parent's own; but
/// its parent's tool restrictions hold for it too.
#[derive(Debug, Clone)]
pub struct Spawn {
    world: Arc<World>,
    slots: Slots,
}

impl Spawn {
    /// A provider that makes agents in this world, as long as slots are free.
    pub fn new(world: Arc<World>, slots: Slots) -> Self {
        Self { world, slots }
    }
}

impl ChildProvider for Spawn {
    fn name(&self) -> &str {
        SPAWN
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn is_continuable(&self) -> bool {
        true
    }

    fn start(&self, request: ChildRequest) -> BoxFuture<'static, Result<Run, ChildError>> {
        let Self { world, slots } = self.clone();
        start(world, slots, SPAWN, Basis::Fresh, request).boxed()
    }
}

/// Starts a child from code, by the [`Spawn`] provider of the world's harness; see the crate's
/// example. It takes one of the plugin's slots; without the plugin nothing limits their number.
///
/// # Errors
///
/// As [`ChildProviders::start`]; nothing is left of the child then.
pub async fn spawn(world: &Arc<World>, request: ChildRequest) -> Result<Run, ChildError> {
    match world.services.get::<ChildProviders>(SUBAGENTS_SERVICE) {
        Some(providers) => providers.start(SPAWN, request).await,
        None => Spawn::new(world.clone(), Slots::new(usize::MAX)).start(request).await,
    }
}
