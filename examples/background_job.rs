//! A tool that starts background work: the agent goes on, its turn ends, and the end of the work
//! wakes it. Needs no network and no key.
//!
//! `cargo run --example background_job`

use std::{sync::Arc, time::Duration};

use playhouse::{
    AgentOptions, CancelToken, NewAgent, ToolRun,
    jobs::{JOBS_SERVICE, JobOutcome, Jobs, JobsPlugin, NewJob, Work},
    models::scripted::{Reply, Script, ScriptedAdapter},
    tool_fn,
};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct IndexArgs {
    /// The directory to index.
    dir: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let harness = playhouse::base().plugin(JobsPlugin::default()).start().await?;
    let jobs = harness.world().services.require::<Jobs>(JOBS_SERVICE)?;

    let starting = jobs.clone();
    let index = tool_fn("index", "Indexes a directory.", move |args: IndexArgs, run: ToolRun| {
        let jobs = starting.clone();
        async move {
            let owner = run.agent().ok_or("only an agent can own a job")?;
            let new = NewJob::new("index", format!("Index {}", args.dir)).owned_by(owner);
            let id = jobs.start(new, || {
                // Fired by job_kill, and when the agent goes.
                let cancel = CancelToken::new();
                let watched = cancel.clone();
                let work = async move {
                    let work = tokio::time::sleep(Duration::from_millis(200));
                    Ok(match watched.race(work).await {
                        Some(()) => JobOutcome::completed().output("1,204 files are indexed."),
                        None => JobOutcome::killed(),
                    })
                };
                Ok(Work::new(work).cancelled_by(cancel))
            })?;
            Ok(format!("Started job {id}."))
        }
    });
    harness.register_tool(Arc::new(index))?;

    // What a model would say.
    let script = Script::sequence([
        Reply::call("index", r#"{"dir": "src"}"#),
        Reply::text("The index is being built; I will tell you."),
        Reply::call("job_output", r#"{"job_id": "index-1"}"#),
        Reply::text("The index is there: {{result.1}}"),
    ]);
    harness.world().models.register(["scripted"], Arc::new(ScriptedAdapter::new(script)))?;
    let options = AgentOptions::new().model("scripted", "any");
    let agent = harness.create(NewAgent::new(options)).await?;

    let mut log = agent.session().events(0);
    println!("{}", agent.prompt("Index src, please.").await?.text);
    // Nobody asks again: the job's end opens the second turn.
    while !matches!(&log.next().await.body, playhouse::EventBody::TurnEnd(end) if end.turn == 2) {}
    println!(
        "{}",
        agent.session().view().history.iter().last().map(|entry| entry.message.text()).unwrap_or_default()
    );
    harness.shutdown().await?;
    Ok(())
}
