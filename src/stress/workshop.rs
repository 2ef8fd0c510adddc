//! The tools of the fleet, as a plugin: when its host dies, they are gone for a moment.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fastrand::Rng;
use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    plugin::{Plugin, PluginContext},
    tool::{Tool, ToolError, ToolRun, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::ledger::Ledger;

/// Calls of the first may overlap, calls of the second may not.
pub(super) const TOOLS: [&str; 2] = ["look", "act"];

/// The longest that a call takes.
const CALL_MAX: Duration = Duration::from_millis(20);

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Clone)]
pub(super) struct Workshop(Arc<Shared>);

struct Shared {
    ledger: Arc<Ledger>,
    rng: Mutex<Rng>,
}

impl Workshop {
    pub(super) fn new(ledger: Arc<Ledger>, rng: Rng) -> Self {
        Self(Arc::new(Shared { ledger, rng: Mutex::new(rng) }))
    }

    /// Notes that it was run, takes a while, and now and then fails or steers its agent.
    async fn work(self, run: ToolRun) -> Result<&'static str, ToolError> {
        let Some(agent) = run.agent().cloned() else { return Err("nobody called".into()) };
        self.0.ledger.ran(agent.id(), run.call_id());
        let (wait, mood) = {
            let mut rng = self.0.rng.lock().unwrap_or_else(PoisonError::into_inner);
            (CALL_MAX.mul_f64(rng.f64()), rng.u32(0..20))
        };
        if run.cancel().race(tokio::time::sleep(wait)).await.is_none() {
            return Err(ToolError::aborted());
        }
        match mood {
            0 => Err("it is out of order".into()),
            1 => match agent.steer("talk: a tool says so").await {
                Ok(id) => {
                    self.0.ledger.acknowledge(agent.id(), id);
                    Ok("steered")
                }
                Err(fault) => Err(ToolError::new(fault.to_string())),
            },
            _ => Ok("done"),
        }
    }
}

impl Plugin for Workshop {
    fn name(&self) -> &str {
        "workshop"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let body = |workshop: &Self| {
            let workshop = workshop.clone();
            move |_: Nothing, run: ToolRun| workshop.clone().work(run)
        };
        let [look, act] = TOOLS;
        let tools: [Arc<dyn Tool>; 2] = [
            Arc::new(tool_fn(look, "Looks.", body(self)).parallel()),
            Arc::new(tool_fn(act, "Acts.", body(self))),
        ];
        async move {
            let world = ctx.world()?;
            for tool in tools {
                ctx.tie(world.tools.registry().register(&world.scope, tool)?)?;
            }
            Ok(())
        }
        .boxed()
    }
}
