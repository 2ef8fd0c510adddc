//! A recorded session, played again over the whole house.

use std::sync::Arc;

use playhouse::{
    AgentOptions, NewAgent, Outcome, Recovery, TurnEndReason,
    messages::log::Log,
    models::{
        replay::{Recording, ReplayAdapter},
        scripted::{Reply, Script, ScriptedAdapter},
    },
    plugin_api::{
        clock::{CountingIds, StepClock},
        llm::LlmAdapter,
    },
    tool_fn,
};
use serde_json::Value;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct City {
    name: String,
}

/// Two turns with a tool, whose first request is refused once.
async fn session(model: Arc<dyn LlmAdapter>, weather: &'static str) -> (Vec<Outcome>, Log) {
    let harness = playhouse::base()
        .ids(CountingIds::default())
        .clock(StepClock::starting_at(1_000))
        .start()
        .await
        .unwrap();
    let forecast = tool_fn("forecast", "The weather", move |city: City, _run| async move {
        Ok(format!("{weather} in {}", city.name))
    });
    harness.register_tool(Arc::new(forecast)).unwrap();
    let world = harness.world();
    let _ = world.models.register(["p"], model).unwrap();
    let retry = world.hooks.request_error.add(&world.scope, |error, next| async move {
        if error.failure.code == "RATE_LIMIT" {
            return Ok(Recovery::Retry);
        }
        next.run(error).await
    });
    let _ = retry.unwrap();
    let new = NewAgent::new(AgentOptions::new().model("p", "m")).id("s");
    let agent = harness.create(new).await.unwrap();
    let mut outcomes = Vec::new();
    for question in ["Oslo and Bergen?", "Thanks."] {
        outcomes.push(agent.prompt(question).await.unwrap());
    }
    agent.when_idle().await.unwrap();
    let log = agent.session().log();
    harness.shutdown().await.unwrap();
    (outcomes, log)
}

fn recorded() -> Arc<ScriptedAdapter> {
    let script = Script::sequence([
        Reply::error("RATE_LIMIT", "slow down"),
        Reply::call("forecast", r#"{"name": "Oslo"}"#)
            .and_call("forecast", r#"{"name": "Bergen"}"#),
        Reply::text("{{result.1}}; {{result.2}}."),
        Reply::text("You are welcome."),
    ]);
    Arc::new(ScriptedAdapter::new(script))
}

/// A log's events without their times.
fn timeless(log: &Log) -> Vec<Value> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|key, _| !["time", "time0", "dt"].contains(&key.as_str()));
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let event = |event: &Arc<playhouse::Event>| {
        let mut value = serde_json::from_str(&event.to_json()).unwrap();
        strip(&mut value);
        value
    };
    log.iter().map(event).collect()
}

#[tokio::test]
async fn a_replay_has_the_log_that_was_recorded() {
    let (outcomes, log) = session(recorded(), "snow").await;
    assert_eq!(outcomes[0].text, "snow in Oslo; snow in Bergen.");
    let model = ReplayAdapter::new([Recording::of(&log).unwrap()]).strict();
    let (again, replayed) = session(Arc::new(model.clone()), "snow").await;
    model.assert_consumed();
    assert_eq!(again[1].text, outcomes[1].text);
    let (was, is) = (timeless(&log), timeless(&replayed));
    for (was, is) in was.iter().zip(&is) {
        assert_eq!(was, is);
    }
    assert_eq!(was.len(), is.len());
}

#[tokio::test]
async fn a_strict_replay_finds_the_tool_that_answers_otherwise() {
    let (_, log) = session(recorded(), "snow").await;
    let model = ReplayAdapter::new([Recording::of(&log).unwrap()]).strict();
    let (outcomes, _) = session(Arc::new(model.clone()), "rain").await;
    let TurnEndReason::Error(failure) = &outcomes[0].reason else { panic!("{outcomes:?}") };
    assert_eq!(failure.code, "REPLAY_DIFFERS");
    assert!(failure.message.contains("snow in Oslo"), "{failure}");
    assert!(failure.message.contains("rain in Oslo"), "{failure}");
    // Without a comparison the model says what it said.
    let model = ReplayAdapter::new([Recording::of(&log).unwrap()]);
    let (outcomes, _) = session(Arc::new(model), "rain").await;
    assert_eq!(outcomes[0].text, "snow in Oslo; snow in Bergen.");
}
