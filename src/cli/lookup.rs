//! A demo plugin: one tool, `lookup`, with a few facts to look up.
//!
//! The built-in script's sub-agents call it, so that `playhouse run` shows tools at work without a
//! network. It is also the smallest plugin there is to copy from.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    plugin::{Plugin, PluginContext},
    tool::{ToolRun, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;

const NOTES: [(&str, &str); 3] = [
    (
        "cost",
        "the bill of a system is mostly made after it is built; count operation, not construction.",
    ),
    (
        "speed",
        "most of the time goes into a small part of the work; measure to find it before changing it.",
    ),
    (
        "risk",
        "failures cluster at the seams between parts; rehearse the way back before going forward.",
    ),
];

/// Registers the tool `lookup` for all agents.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lookup;

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// What to look up: `cost`, `speed` or `risk`.
    topic: String,
}

fn note(topic: &str) -> String {
    let asked = topic.trim().to_lowercase();
    match NOTES.iter().find(|(name, _)| *name == asked) {
        Some((_, text)) => (*text).to_owned(),
        None => format!("there are no notes on \"{topic}\", only on cost, speed and risk."),
    }
}

impl Plugin for Lookup {
    fn name(&self) -> &str {
        "lookup"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        async move {
            let about = "Looks up what the notes say about a topic";
            let tool = tool_fn("lookup", about, |args: Args, _run: ToolRun| async move {
                Ok(note(&args.topic))
            });
            let world = ctx.world()?;
            ctx.tie(world.tools.registry().register(&world.scope, Arc::new(tool.parallel()))?)?;
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_without_notes_names_those_with() {
        assert!(note(" Cost ").contains("operation"));
        assert!(note("taste").contains("cost, speed and risk"));
    }
}
