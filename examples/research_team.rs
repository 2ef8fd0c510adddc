//! A research team: a lead asks the questions, a researcher works on each and reports in a type of
//! this program, and the lead combines the reports into a typed briefing. One budget for all of them.
//!
//! `cargo run --example research_team`, with a question if you like. It is offline unless
//! `DEEPSEEK_API_KEY` or `ANTHROPIC_API_KEY` is set.

use std::sync::Arc;

use playhouse::{
    Agent, NewAgent, ToolRun,
    budgets::{Budget, Budgets, Resource},
    models::{
        EnvModel,
        scripted::{Reply, Script, When},
    },
    plugin_api::{
        tool::{Json, schema_of},
        world::World,
    },
    subagents::{ChildGroup, ChildRequest, structured::Structured},
    tool_fn,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// What the lead asks for.
#[derive(Deserialize, JsonSchema)]
struct Questions {
    /// Two to four questions that can be answered apart from each other.
    questions: Vec<String>,
}

/// What a researcher reports.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
struct Report {
    /// The answer, in one sentence.
    finding: String,
    /// How sure you are, from 0 to 100.
    confidence: u8,
}

/// What the team comes to.
#[derive(Debug, Deserialize, JsonSchema)]
struct Briefing {
    /// What to do, in one sentence.
    recommendation: String,
    /// The findings that speak for it.
    because: Vec<String>,
}

/// The lead's tool: all researchers at once, each with a report that the schema holds for.
async fn research(
    world: Arc<World>,
    asked: Questions,
    run: ToolRun,
) -> Result<Vec<Report>, Box<dyn std::error::Error + Send + Sync>> {
    let lead = run.agent().ok_or("only an agent can lead")?;
    let researcher = |question: &String| {
        ChildRequest::new(lead, question)
            .label(question)
            .persona("You are a careful researcher. Say what you know, and how sure you are.")
            .output_schema(schema_of::<Report>())
    };
    // Whatever cancels the lead's turn cancels the researchers.
    let group = ChildGroup::new(&world).cancelled_by(run.cancel());
    let mut reports = Vec::new();
    for outcome in group.join_all(asked.questions.iter().map(researcher)).await {
        match outcome {
            Ok(result) => {
                reports.push(serde_json::from_value(result.structured.unwrap_or_default())?);
            }
            Err(failed) => eprintln!("a researcher failed: {failed}"),
        }
    }
    Ok(reports)
}

/// Gives the lead its tool, and the tool by which it answers.
fn equip(world: &Arc<World>, lead: &Agent) -> Result<(), Box<dyn std::error::Error>> {
    let shared = world.clone();
    let research = tool_fn("research", "Has researchers answer", move |asked: Questions, run| {
        let world = shared.clone();
        async move { Ok(Json(research(world, asked, run).await?)) }
    });
    world.tools.registry().register(lead.scope(), Arc::new(research))?;
    Structured::new(&schema_of::<Briefing>())?.install(world, lead.scope())?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let harness = playhouse::base().plugin(Budgets::new()).start().await?;
    let model = EnvModel::or_script(script())?;
    let options = model
        .register(harness.world())?
        // What a request may cost at worst is reserved before it is sent.
        .max_tokens(16_000)
        .max_depth(1)
        .tree_budget(Budget::new().tokens(200_000).live_children(4));
    let lead = harness.create(NewAgent::new(options)).await?;
    equip(harness.world(), &lead)?;

    let question = std::env::args().nth(1);
    let question = question.unwrap_or_else(|| "Which cache fits a read-heavy service?".to_owned());
    println!("{question}");
    let task = format!("{question}\nUse the tool `research` once, then give your briefing.");
    let outcome = lead.prompt(task).await?;
    if !outcome.is_completed() {
        return Err(format!("the lead's turn ended: {}", outcome.reason.kind()).into());
    }
    let briefing: Briefing = serde_json::from_value(outcome.structured.unwrap_or_default())?;
    println!("=> {}", briefing.recommendation);
    for finding in &briefing.because {
        println!("   because {finding}");
    }

    let budget = &lead.budgets()[0];
    let left = budget.left(Resource::Tokens).unwrap_or_default();
    println!("tokens left for the team: {left} of 200000");
    println!("researchers left: {}", harness.children(lead.id()).len());
    assert!(budget.tree && 0 < left && left < 200_000);
    assert!(harness.children(lead.id()).is_empty());
    if model.is_scripted() {
        assert_eq!(briefing.recommendation, "Put a write-through cache before the database.");
        assert_eq!(briefing.because, ["reads outnumber writes by 40 to 1", "a miss costs 9 ms"]);
    }
    harness.shutdown().await?;
    Ok(())
}

/// What a model would say.
fn script() -> Script {
    let when = |text: &str| When::default().user_contains(text);
    let report = |finding, confidence| {
        let report = json!({"finding": finding, "confidence": confidence});
        Reply::call("structured_output", report)
    };
    let questions = ["How often is it read?", "What does a miss cost?"];
    let briefing = json!({
        "recommendation": "Put a write-through cache before the database.",
        "because": ["reads outnumber writes by 40 to 1", "a miss costs 9 ms"],
    });
    // The lead answers once all reports have arrived.
    let mut reported = When::default().after_tool("research");
    reported.result_contains = Some("a miss costs 9 ms".to_owned());
    Script::new()
        .rule(when("How often"), report("reads outnumber writes by 40 to 1", 90))
        .rule(when("miss"), report("a miss costs 9 ms", 80))
        .rule(reported, Reply::call("structured_output", briefing))
        .rule(when("cache"), Reply::call("research", json!({"questions": questions})))
}
