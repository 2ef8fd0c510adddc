//! The cap as a plugin.

use std::sync::Arc;

use futures::{FutureExt, StreamExt, future::BoxFuture};
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    id::SessionId,
};
use playhouse_plugin_api::{
    agent::Agent,
    llm::ModelCall,
    plugin::{Plugin, PluginContext},
    world::World,
};

use super::{Caps, Permits};

/// Caps how many model requests run at once, over all agents and for single providers.
///
/// A request waits for its permit before it is sent, and holds it until its stream ends or is dropped:
/// so never while tools run, or children of the agent. The tree that holds the fewest is served first.
/// A cancel ends the wait. Calls that were built by hand are counted with the tree of their session.
///
/// A stream listener that makes a model call of its own while its request runs must be registered
/// before this plugin is: a call from further inside waits for a permit while it holds one.
///
/// ```
/// use playhouse_budgets::FairRequests;
///
/// let fair = FairRequests::new(64).provider("deepseek", 16);
/// let permits = fair.permits();
/// assert_eq!((permits.held(), permits.waiting()), (0, 0));
/// ```
#[derive(Debug, Clone)]
pub struct FairRequests {
    caps: Caps,
    permits: Permits,
}

impl FairRequests {
    /// At most so many over all providers; positive.
    pub fn new(requests: usize) -> Self {
        Self::capped(Caps { global: Some(requests), ..Caps::default() })
    }

    /// Under these caps, all positive.
    pub fn capped(caps: Caps) -> Self {
        Self { permits: Permits::new(caps.clone()), caps }
    }

    /// And at most so many of this provider; positive.
    #[must_use]
    pub fn provider(mut self, provider: impl Into<String>, requests: usize) -> Self {
        self.caps.providers.insert(provider.into(), requests);
        Self::capped(self.caps)
    }

    /// The permits, to see how many are held.
    pub fn permits(&self) -> &Permits {
        &self.permits
    }

    fn check(&self) -> Result<(), Failure> {
        let Caps { global, providers } = &self.caps;
        if global.iter().chain(providers.values()).any(|cap| *cap == 0) {
            let text = "a cap of 0 requests lets nothing run; leave it out for no cap";
            return Err(Failure::new("INVALID_CONFIG", text));
        }
        Ok(())
    }
}

impl Plugin for FairRequests {
    fn name(&self) -> &str {
        "fair-requests"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let (checked, permits) = (self.check(), self.permits.clone());
        async move {
            checked?;
            let world = ctx.world()?;
            let weak = Arc::downgrade(&world);
            ctx.tie(world.models.on_stream().add(
                &world.scope,
                move |call: ModelCall, next| {
                    let (permits, world) = (permits.clone(), weak.upgrade());
                    async move {
                        let tree = tree(&call, world.as_deref());
                        let wait = permits.acquire(tree.as_str(), &call.config().provider);
                        let mut permit = Some(match call.cancel().clone().race(wait).await {
                            Some(permit) => permit,
                            None => {
                                return Err(Failure::new("ABORTED", "the request was cancelled"));
                            }
                        });
                        let stream = next.run(call).await?;
                        Ok(stream
                            .inspect(move |item| {
                                // Whoever reads on gets nothing more of the model.
                                if item.as_ref().map_or(true, is_finish) {
                                    drop(permit.take());
                                }
                            })
                            .boxed())
                    }
                },
            )?)?;
            Ok(())
        }
        .boxed()
    }
}

fn is_finish(chunk: &StreamChunk) -> bool {
    matches!(chunk, StreamChunk::Finish { .. })
}

/// The root of the tree that a call is counted with.
fn tree(call: &ModelCall, world: Option<&World>) -> SessionId {
    let agent = match (call, world) {
        (ModelCall::Step(step), _) => Some(step.agent().clone()),
        (ModelCall::Direct(_), Some(world)) => {
            call.session_id().and_then(|id| world.agents.get(id))
        }
        (ModelCall::Direct(_), None) => None,
    };
    let root = |agent: &Agent| agent.lineage().last().unwrap_or(agent.id()).clone();
    let session = || call.session_id().cloned().unwrap_or_else(|| SessionId::from(""));
    agent.as_ref().map_or_else(session, root)
}
