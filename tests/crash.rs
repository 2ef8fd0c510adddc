//! `kill -9` of a process whose agent streams and calls tools: the next process keeps everything
//! that had been shown, closes the turn by the table, and works on.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use playhouse::{
    AgentHandle, AgentOptions, EventBody, Harness, NewAgent, TurnEndReason,
    messages::{chunk::StreamChunk, event::StepAt, frame::Frame, invariants},
    models::scripted::{Chunking, Reply, Script, ScriptedAdapter, When},
    plugin_api::{store::StoreReader, tool::tool_fn},
};
use playhouse_stores::{JournalStore, JournalStoreConfig};

const SESSION: &str = "streaming";
const DIR: &str = "PLAYHOUSE_CRASH_DIR";
const KILLS: usize = 20;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Work {}

/// A harness on the store in `dir`, and the one agent of the test, made or resumed.
async fn start(dir: &Path, script: Script) -> (Harness, AgentHandle) {
    let mut config = JournalStoreConfig::default();
    config.journal.segment_bytes = 64 << 10;
    let store = JournalStore::open(dir, config).await.unwrap();
    let known = store.stat(&SESSION.into()).await.unwrap().is_some();
    let harness = Harness::builder().store(store).start().await.unwrap();
    let _ = harness
        .world()
        .models
        .register(["scripted"], Arc::new(ScriptedAdapter::new(script)))
        .unwrap();
    let work = tool_fn("work", "Works.", |_: Work, _run| async { Ok("done") });
    harness.register_tool(Arc::new(work.parallel())).unwrap();
    let new = NewAgent::new(AgentOptions::new().model("scripted", "any").max_steps(0));
    let agent = match known {
        true => harness.resume(SESSION, new).await.unwrap(),
        false => harness.create(new.id(SESSION)).await.unwrap(),
    };
    (harness, agent)
}

/// The child: prompts without end, and tells each text when it is shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as the child of the test below"]
async fn streams_until_it_is_killed() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let reply = |text: &str| Reply::text(text).chunked(Chunking::Words).paced(1, 1);
    let script = Script::new()
        .rule(
            When::default().after_tool("work"),
            reply("All of it is done, and this is the report."),
        )
        .reply(
            reply("First I say what I am about to do.")
                .and_call("work", serde_json::json!({}))
                .and_call("work", serde_json::json!({})),
        );
    let (_harness, agent) = start(Path::new(&dir), script).await;
    let mut events = agent.session().events(agent.session().log().len());
    tokio::spawn(async move {
        loop {
            let line = format!("event {}\n", events.next().await.body.kind());
            if std::io::stdout().write_all(line.as_bytes()).is_err() {
                return;
            }
        }
    });
    let mut frames = agent.session().frames();
    tokio::spawn(async move {
        let mut at = StepAt { turn: 0, step: 0 };
        while let Some(frame) = frames.next().await {
            match frame {
                Frame::Start { at: step, .. } => at = step,
                Frame::Chunks { chunks, .. } => {
                    for timed in chunks {
                        let StreamChunk::TextDelta { text, .. } = timed.chunk else { continue };
                        let text = serde_json::to_string(&text).unwrap();
                        let line = format!("shown {} {} {text}\n", at.turn, at.step);
                        // One write; a parent that is gone wants no more.
                        if std::io::stdout().write_all(line.as_bytes()).is_err() {
                            return;
                        }
                    }
                }
                Frame::End { .. } => {}
            }
        }
    });
    loop {
        agent.prompt("go on").await.unwrap();
    }
}

/// Lets the child run until it has told of `lines` texts and events, and kills it. Returns what it had shown.
fn run_and_kill(dir: &Path, lines: usize) -> BTreeMap<(u32, u32), String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "crash::streams_until_it_is_killed"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut shown: BTreeMap<(u32, u32), String> = BTreeMap::new();
    let mut note = |line: &str| {
        let Some((_, rest)) = line.split_once("shown ") else { return false };
        let mut parts = rest.splitn(3, ' ');
        let (Some(turn), Some(step), Some(text)) = (parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        // The last line may be cut by the kill.
        let Ok(text) = serde_json::from_str::<String>(text) else { return false };
        let at = (turn.parse().unwrap(), step.parse().unwrap());
        shown.entry(at).or_default().push_str(&text);
        true
    };
    let mut seen = 0;
    while seen < lines {
        let line = output.next().expect("the child lives until it is killed").unwrap();
        seen += usize::from(note(&line) || line.starts_with("event "));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // What it had shown before the kill arrived counts too.
    for line in output {
        note(&line.unwrap());
    }
    shown
}

#[tokio::test]
async fn what_was_shown_survives_kill_9_and_the_agent_works_on() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = match std::env::var("PLAYHOUSE_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => now.as_nanos() as u64,
    };
    println!("PLAYHOUSE_SEED={seed}");
    let mut dice = seed | 1;
    let mut roll = |below: u64| {
        // xorshift: moments, not secrets.
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice % below) as usize
    };
    let dir = tempfile::tempdir().unwrap();
    let (mut interrupted, mut with_prefix, mut unknown) = (0, 0, 0);
    for kill in 1..=KILLS {
        let shown = run_and_kill(dir.path(), 1 + roll(120));
        // A prompt that was accepted and not yet claimed runs first, so one reply is not enough.
        let script = Script::new().reply(Reply::text("still here"));
        let (harness, agent) = start(dir.path(), script).await;
        let log = agent.session().log();
        invariants::check(&log).unwrap_or_else(|fault| panic!("seed {seed}, kill {kill}: {fault}"));
        let mut texts: BTreeMap<(u32, u32), String> = BTreeMap::new();
        (interrupted, with_prefix, unknown) = (0, 0, 0);
        for event in log.iter() {
            match &event.body {
                EventBody::AssistantMessage(data) => {
                    texts.insert((data.turn, data.step), data.message.text());
                    with_prefix += usize::from(data.interrupted);
                }
                EventBody::ToolResult(data) => unknown += usize::from(data.error.is_some()),
                EventBody::TurnEnd(end) => {
                    interrupted += usize::from(end.reason == TurnEndReason::Interrupted);
                }
                _ => {}
            }
        }
        for (at, shown) in &shown {
            let kept = texts.get(at).map(String::as_str).unwrap_or_default();
            assert!(
                kept.starts_with(shown.as_str()),
                "seed {seed}, kill {kill}: step {at:?} had shown {shown:?}, kept is {kept:?}"
            );
        }
        let outcome = agent.prompt("are you there?").await.unwrap();
        assert_eq!(
            (outcome.text.as_str(), outcome.reason),
            ("still here", TurnEndReason::Completed),
            "seed {seed}, kill {kill}"
        );
        harness.shutdown().await.unwrap();
        let report = playhouse_stores::verify(dir.path(), |_| ()).unwrap();
        assert!(report.is_whole(), "seed {seed}, kill {kill}: {report}");
    }
    println!(
        "kill -9: {KILLS} kills, faults found 0; {interrupted} interrupted turns, {with_prefix} kept \
         prefixes, {unknown} calls closed by repair"
    );
}
