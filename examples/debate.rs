//! A debate: two children that remember it argue for some rounds, and a third one, who has heard all
//! of it, gives a verdict in a type of this program.
//!
//! `cargo run --example debate`, with a motion and a number of rounds if you like. It is offline
//! unless `DEEPSEEK_API_KEY` or `ANTHROPIC_API_KEY` is set.

use playhouse::{
    Agent, NewAgent,
    models::{
        EnvModel,
        scripted::{Reply, Script, When},
    },
    plugin_api::{tool::schema_of, world::World},
    subagents::{ChildGroup, ChildRequest, Run, spawn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Side {
    Pro,
    Con,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Verdict {
    /// Whose arguments were better.
    winner: Side,
    /// The argument that decided, in one sentence.
    because: String,
}

/// Somebody who argues: a child that lives for all rounds, and so remembers them.
struct Debater {
    side: Side,
    run: Run,
}

impl Debater {
    /// Makes one, who prepares.
    async fn seat(
        world: &Arc<World>,
        chair: &Agent,
        side: Side,
        motion: &str,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let persona = match side {
            Side::Pro => "You argue for the motion.",
            Side::Con => "You argue against the motion.",
        };
        let task = format!("Prepare to debate: {motion}. Answer each turn in one sentence.");
        let run = spawn(world, ChildRequest::new(chair, task).persona(persona)).await?;
        run.result().await?;
        Ok(Self { side, run })
    }

    /// Its argument, once it has heard the other's.
    async fn argue(&self, round: u32, heard: &str) -> Result<String, Box<dyn std::error::Error>> {
        let debater = self.run.agent().ok_or("a debater lives in this process")?;
        let outcome = debater.prompt(format!("Round {round}. You heard: {heard}")).await?;
        if !outcome.is_completed() {
            return Err(format!("a debater's turn ended: {}", outcome.reason.kind()).into());
        }
        println!("{round} {:?}: {}", self.side, outcome.text);
        Ok(outcome.text)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let motion = args.next().unwrap_or_else(|| "Every cache needs an owner".to_owned());
    let rounds = args.next().map_or(Ok(2), |rounds| rounds.parse())?;

    let harness = playhouse::base().start().await?;
    let model = EnvModel::or_script(script())?;
    let options = model.register(harness.world())?.max_tokens(8_000).max_depth(1);
    let chair = harness.create(NewAgent::new(options)).await?;

    println!("{motion}.");
    let seat = |side| Debater::seat(harness.world(), &chair, side, &motion);
    let (pro, con) = futures::try_join!(seat(Side::Pro), seat(Side::Con))?;
    let mut transcript = format!("The motion: {motion}.");
    let mut last = "nothing yet, you open the debate.".to_owned();
    for round in 1..=rounds {
        for debater in [&pro, &con] {
            last = debater.argue(round, &last).await?;
            transcript += &format!("\n{:?}: {last}", debater.side);
        }
    }
    for debater in [pro, con] {
        debater.run.dispose().await?;
    }

    let task = format!("Judge this debate.\n{transcript}");
    let judge = ChildRequest::new(&chair, task)
        .persona("You are an impartial judge. Weigh the arguments, not your own opinion.")
        .output_schema(schema_of::<Verdict>());
    let judged = ChildGroup::new(harness.world()).run(judge).await?;
    let verdict: Verdict = serde_json::from_value(judged.structured.unwrap_or_default())?;
    println!("The winner is {:?}: {}", verdict.winner, verdict.because);

    assert!(harness.children(chair.id()).is_empty());
    if model.is_scripted() {
        assert_eq!((verdict.winner, &*verdict.because), (Side::Con, "it named a counterexample."));
        assert_eq!(transcript.lines().count(), 1 + 2 * rounds as usize);
    }
    harness.shutdown().await?;
    Ok(())
}

/// What a model would say. The judge is asked about all that was said, so it comes first.
fn script() -> Script {
    let verdict = json!({"winner": "con", "because": "it named a counterexample."});
    let says = |persona: &str, pattern: &str| {
        When::default().system_contains(persona).user_matches(pattern)
    };
    Script::new()
        .rule(
            When::default().has_tool("structured_output"),
            Reply::call("structured_output", verdict),
        )
        .rule(When::default().user_contains("Prepare"), Reply::text("I am ready."))
        .rule(says("argue for", "Round 1. *"), Reply::text("What nobody owns, nobody invalidates."))
        .rule(
            says("argue against", "Round 1. *"),
            Reply::text("A cache of constants needs no invalidation."),
        )
        .rule(
            says("argue for", "Round *. You heard: *"),
            Reply::text("You say \"{{2}}\", and yet constants change."),
        )
        .rule(says("argue against", "Round *. *"), Reply::text("Then they were no constants."))
}
