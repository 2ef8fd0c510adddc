//! A plugin: a section of the system prompt, a tool, and a hook that forbids one of its uses.
//!
//! `cargo run --example plugin`

use std::sync::Arc;

use futures::future::BoxFuture;
use playhouse::{
    AgentOptions, Failure, NewAgent, Plugin, PluginContext,
    models::scripted::{Reply, Script, ScriptedAdapter},
    plugin_api::{prompt::Section, tool::PreVerdict},
    tool_fn,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// A notebook that agents write to, except to its page of rules.
struct Notebook;

#[derive(Deserialize, JsonSchema)]
struct NoteArgs {
    /// The page to write to.
    page: String,
    /// What to write.
    text: String,
}

impl Plugin for Notebook {
    fn name(&self) -> &str {
        "notebook"
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        Box::pin(async move {
            let world = ctx.world()?;
            // What all agents shall see is registered in the world's scope, and tied to the plugin's:
            // it goes when the plugin does.
            let guidance = "Write down what should outlive the conversation.";
            let section = Section::text("notebook", 110.0, guidance);
            ctx.tie(world.prompts.section(&world.scope, section)?)?;

            let note = tool_fn("note", "Writes to a page", |args: NoteArgs, _run| async move {
                Ok(format!("wrote {} bytes to {}", args.text.len(), args.page))
            });
            ctx.tie(world.tools.registry().register(&world.scope, Arc::new(note))?)?;

            // Around the decision of every tool call. Not calling `next` decides alone.
            let pre = &world.tools.hooks().pre;
            ctx.tie(pre.add(&world.scope, |call, next| async move {
                if call.name() == "note" && call.arguments()["page"] == "rules" {
                    let reason = "the page of rules is read-only".to_owned();
                    return Ok(PreVerdict::Deny { reason });
                }
                next.run(call).await
            })?)?;
            Ok(())
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let harness = playhouse::minimal().plugin(Notebook).start().await?;

    let script = Script::sequence([
        Reply::call("note", r#"{"page": "rules", "text": "anything goes"}"#)
            .and_call("note", r#"{"page": "ideas", "text": "cache the index"}"#),
        Reply::text("1: {{result.1}}\n2: {{result.2}}"),
    ]);
    let model = Arc::new(ScriptedAdapter::new(script));
    harness.world().models.register(["scripted"], model.clone())?;
    let options = AgentOptions::new().model("scripted", "any");
    let agent = harness.create(NewAgent::new(options)).await?;

    println!("{}", agent.prompt("Remember to cache the index.").await?.text);
    // What the model was sent.
    let request = &model.captured()[0];
    println!("system prompt: {}", request.messages[0].text());
    println!("tools: {}", request.tools[0].name);

    harness.shutdown().await?;
    Ok(())
}
