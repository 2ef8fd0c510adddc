//! The provider of forks: agents in this process that know what their parent knows.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_plugin_api::{agent::Agent, world::World};

use crate::{
    Basis, Capabilities, ChildError, ChildProvider, ChildProviders, ChildRequest, Run, Slots,
    plugin::SUBAGENTS_SERVICE, start::start,
};

/// The provider's name.
pub const FORK: &str = "fork";

/// Starts an agent over a copy of its parent's history up to the end of the last turn; in a first
/// turn there is nothing to copy. What the parent does now, and what waits in its inbox, is not the
/// child's.
///
/// Otherwise as [`Spawn`](crate::Spawn). The child's first request begins with the bytes of its
/// parent's last one, which a provider may have cached, unless it has a persona, a tool filter or a
/// structured result, or its parent something in its own scope: those change what stands before the
/// history.
#[derive(Debug, Clone)]
pub struct Fork {
    world: Arc<World>,
    slots: Slots,
}

impl Fork {
    /// A provider that makes agents in this world, as long as slots are free.
    pub fn new(world: Arc<World>, slots: Slots) -> Self {
        Self { world, slots }
    }
}

impl ChildProvider for Fork {
    fn name(&self) -> &str {
        FORK
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn inherits_parent_context(&self) -> bool {
        true
    }

    fn is_continuable(&self) -> bool {
        true
    }

    fn basis(&self, parent: &Agent) -> Basis {
        Basis::completed_turns_of(parent)
    }

    fn start(&self, request: ChildRequest) -> BoxFuture<'static, Result<Run, ChildError>> {
        let Self { world, slots } = self.clone();
        let basis = self.basis(&request.parent);
        start(world, slots, FORK, basis, request).boxed()
    }
}

/// Starts a forked child from code, as [`spawn`](crate::spawn()) does a fresh one.
///
/// # Errors
///
/// As [`ChildProviders::start`]; nothing is left of the child then.
pub async fn fork(world: &Arc<World>, request: ChildRequest) -> Result<Run, ChildError> {
    match world.services.get::<ChildProviders>(SUBAGENTS_SERVICE) {
        Some(providers) => providers.start(FORK, request).await,
        None => Fork::new(world.clone(), Slots::new(usize::MAX)).start(request).await,
    }
}
