//! A typed async function as a tool, and a model that calls it.
//!
//! `cargo run --example tool`

use std::sync::Arc;

use playhouse::{
    AgentOptions, EventBody, NewAgent,
    models::scripted::{Reply, Script, ScriptedAdapter},
    plugin_api::tool::Json,
    tool_fn,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The argument type is the tool's schema; the model reads the doc comments of its fields.
#[derive(Deserialize, JsonSchema)]
struct ForecastArgs {
    /// The city to look at.
    city: String,
    /// How many days ahead, from 1 to 7.
    days: u8,
}

#[derive(Serialize)]
struct Forecast {
    city: String,
    highs: Vec<i32>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let harness = playhouse::base().start().await?;

    let forecast = tool_fn("forecast", "Daily highs", |args: ForecastArgs, _run| async move {
        if !(1..=7).contains(&args.days) {
            // The model reads this text and may try again.
            return Err("days must be from 1 to 7".into());
        }
        let highs = (0..i32::from(args.days)).map(|day| 17 + day).collect();
        Ok(Json(Forecast { city: args.city, highs }))
    })
    .parallel();
    harness.register_tool(Arc::new(forecast))?;

    let script = Script::sequence([
        Reply::call("forecast", r#"{"city": "Lisbon", "days": 9}"#),
        Reply::call("forecast", r#"{"city": "Lisbon", "days": 3}"#),
        Reply::text("Tool said: {{result.1}}"),
    ]);
    harness.world().models.register(["scripted"], Arc::new(ScriptedAdapter::new(script)))?;
    let options = AgentOptions::new().model("scripted", "any");
    let agent = harness.create(NewAgent::new(options)).await?;

    let outcome = agent.prompt("How warm will it be in Lisbon?").await?;
    for event in agent.session().log().iter() {
        match &event.body {
            EventBody::ToolCall(call) => println!("call   {} {}", call.name, call.arguments),
            EventBody::ToolResult(result) => println!("result {}", result.message.text()),
            _ => {}
        }
    }
    println!("{}", outcome.text);

    harness.shutdown().await?;
    Ok(())
}
