//! What one turn costs in process: prompt to result through all actors, over a model that answers
//! at once. Each line is followed by its ratio to a round trip between two tasks over a plain
//! channel, measured in the same run: the ratio travels between machines, the time does not.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{Criterion, criterion_group, criterion_main};
use playhouse::{
    AgentHandle, AgentOptions, Harness, NewAgent,
    models::scripted::{Reply, Script, ScriptedAdapter, When},
    tool_fn,
};
use playhouse_stores::MemoryStore;
use tokio::{runtime::Runtime, sync::mpsc};

/// Turns of one agent before the next one is made: the figure is of short histories.
const TURNS_MAX: u64 = 64;

/// Round trips of one measurement of the plain channel.
const ROUND_TRIPS: u32 = 20_000;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

async fn stage(tools: bool, store: bool) -> Harness {
    let mut builder = playhouse::minimal();
    if store {
        builder = builder.store(MemoryStore::new());
    }
    let harness = builder.start().await.expect("it starts");
    let mut script = Script::new();
    if tools {
        let noop = tool_fn("noop", "Does nothing", |_: Nothing, _run| async { Ok("done") });
        harness.register_tool(Arc::new(noop)).expect("the name is free");
        script = script
            .rule(When::default().after_tool("noop"), Reply::text("Done."))
            .rule(When::default().has_tool("noop"), Reply::call("noop", "{}"));
    }
    let model = Arc::new(ScriptedAdapter::new(script.reply(Reply::text("Hello."))));
    let _ = harness.world().models.register(["scripted"], model).expect("the route is free");
    harness
}

async fn agent(harness: &Harness) -> AgentHandle {
    let options = AgentOptions::new().model("scripted", "any");
    harness.create(NewAgent::new(options)).await.expect("it is made")
}

/// The time of this many turns; agents are made and disposed outside it.
async fn turns(harness: &Harness, count: u64) -> Duration {
    let mut spent = Duration::ZERO;
    let mut left = count;
    while left > 0 {
        let agent = agent(harness).await;
        let these = left.min(TURNS_MAX);
        let start = Instant::now();
        for _ in 0..these {
            agent.prompt("Hi").await.expect("it is answered");
        }
        spent += start.elapsed();
        agent.dispose().await.expect("it ends");
        left -= these;
    }
    spent
}

/// The mean time from one task to another and back over bounded channels.
async fn round_trip() -> Duration {
    let (ask, mut asked) = mpsc::channel::<u64>(1);
    let (answer, mut answered) = mpsc::channel::<u64>(1);
    let echo = tokio::spawn(async move {
        while let Some(number) = asked.recv().await {
            if answer.send(number).await.is_err() {
                return;
            }
        }
    });
    let start = Instant::now();
    for number in 0..u64::from(ROUND_TRIPS) {
        ask.send(number).await.expect("the echo lives");
        assert_eq!(answered.recv().await, Some(number));
    }
    let mean = start.elapsed() / ROUND_TRIPS;
    drop(ask);
    echo.await.expect("the echo ends");
    mean
}

fn one_turn(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = c.benchmark_group("one turn");
    for (name, tools, store) in [
        ("no tool, no store", false, false),
        ("no tool, memory store", false, true),
        ("one tool, no store", true, false),
        ("one tool, memory store", true, true),
    ] {
        let harness = runtime.block_on(stage(tools, store));
        let mean = Cell::new(Duration::ZERO);
        group.bench_function(name, |b| {
            b.iter_custom(|count| {
                let spent = runtime.block_on(async {
                    // In a task, as the echo is: the thread that blocks is none of the runtime's.
                    let harness = harness.clone();
                    tokio::spawn(async move { turns(&harness, count).await })
                        .await
                        .expect("the turns end")
                });
                mean.set(spent.div_f64(count as f64));
                spent
            });
        });
        let plain = runtime
            .block_on(async { tokio::spawn(round_trip()).await.expect("the round trips end") });
        let ratio = mean.get().as_secs_f64() / plain.as_secs_f64();
        println!("{name}: {ratio:.0} plain round trips of {plain:?}\n");
        runtime.block_on(harness.shutdown()).expect("it shuts down");
    }
    group.finish();
}

criterion_group!(benches, one_turn);
criterion_main!(benches);
