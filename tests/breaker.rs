//! Many agents at once while everything happens to them that may: cancels, steers, disposals, deaths.
//!
//! `PLAYHOUSE_SEED` repeats what each agent is put through; the interleaving is the scheduler's.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::future::join_all;
use playhouse::{
    AgentError, AgentHandle, AgentOptions, CancelCause, EventBody, Harness, MessageId, NewAgent,
    messages::{
        event::InboxTarget, invariants, machine::Status, message::Message, session::InboxEdit,
    },
    models::scripted::{Chunking, Reply, Script, ScriptedAdapter, When},
    plugin_api::{slot::Slot, store::Store, tool::tool_fn},
    testing::{Stage, Victim},
};
use playhouse_stores::{JournalStore, JournalStoreConfig, MemoryStore};

const AGENTS: u64 = 200;
const TURNS: u64 = 4;

/// How long anything may take before a test gives up; nothing waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(60);

fn seed() -> u64 {
    let seed = std::env::var("PLAYHOUSE_SEED").map_or_else(
        |_| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
        |seed| seed.parse().unwrap(),
    );
    println!("PLAYHOUSE_SEED={seed}");
    seed
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        // SplitMix64: moments, not secrets.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % below
    }
}

fn kill<M: ractor::Message>(slot: &Slot<M>) {
    if let Some(victim) = slot.live() {
        victim.get_cell().kill();
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

fn script() -> Script {
    let reply = |text: &str| Reply::text(text).chunked(Chunking::Words);
    Script::new()
        .rule(When::default().after_tool("works"), reply("All of it is done now."))
        .rule(When::default().user_contains("fail"), Reply::error("SERVER_ERROR", "no"))
        .rule(When::default().user_contains("cut"), Reply::behaviour("partial_eof").unwrap())
        .rule(When::default().user_contains("garbage"), Reply::behaviour("malformed_json").unwrap())
        .rule(When::default().user_contains("empty"), Reply::behaviour("empty").unwrap())
        .rule(When::default().user_contains("plain"), reply("Only words and no calls."))
        .reply(
            reply("Let me see.")
                .and_call("works", serde_json::json!({}))
                .and_call("panics", serde_json::json!({}))
                .and_call("huge", serde_json::json!({}))
                .and_call("nobody", serde_json::json!({}))
                .and_call("works", "not json"),
        )
}

async fn start(store: Arc<dyn Store>) -> Harness {
    let builder = Harness::builder().shared_store(store).grace(Duration::from_millis(50));
    let harness = builder.start().await.unwrap();
    let model = Arc::new(ScriptedAdapter::new(script()));
    let _ = harness.world().models.register(["scripted"], model).unwrap();
    let works = tool_fn("works", "Works.", |_: Nothing, _run| async {
        tokio::task::yield_now().await;
        Ok("done")
    });
    let panics = tool_fn("panics", "Panics.", |_: Nothing, _run| async {
        // Without the hook, which would print a trace for each.
        std::panic::resume_unwind(Box::new("a tool that panics"));
        #[expect(unreachable_code, reason = "it gives the body its type")]
        Ok("unreachable")
    });
    let huge = tool_fn("huge", "Says much.", |_: Nothing, _run| async { Ok("y".repeat(1 << 14)) });
    harness.register_tool(Arc::new(works.parallel())).unwrap();
    harness.register_tool(Arc::new(panics)).unwrap();
    harness.register_tool(Arc::new(huge)).unwrap();
    harness
}

/// Puts one agent through its turns. Returns what was told to be accepted.
async fn live(harness: Harness, agent: AgentHandle, mut dice: Dice) -> Vec<String> {
    let mut accepted = Vec::new();
    let mut prompts: Vec<tokio::task::JoinHandle<Result<MessageId, AgentError>>> = Vec::new();
    for turn in 0..TURNS {
        let mood = ["fail", "cut", "garbage", "empty", "plain", "go", "go", "go"];
        let mood = mood[dice.roll(mood.len() as u64) as usize];
        let prompter = agent.agent().clone();
        let text = format!("{mood} {turn}");
        prompts.push(tokio::spawn(async move { prompter.followup(text).await }));
        for _ in 0..dice.roll(4) {
            for _ in 0..dice.roll(30) {
                tokio::task::yield_now().await;
            }
            let sent = match dice.roll(12) {
                0 => {
                    agent.cancel(CancelCause::User);
                    None
                }
                1 => {
                    agent.cancel_with(CancelCause::User, true);
                    None
                }
                2 | 3 => Some(agent.steer("steer").await),
                4 => Some(agent.inject("inject").await),
                5 => Some(agent.send("later", InboxTarget::NextTurn, false).await),
                6 => {
                    kill(&agent.cell().actor);
                    None
                }
                7 => {
                    kill(&agent.session().cell().appender);
                    None
                }
                8 => {
                    kill(&agent.session().cell().writer);
                    None
                }
                9 => {
                    kill(&agent.cell().supervisor);
                    None
                }
                10 if dice.roll(10) == 0 => {
                    kill(&harness.world().providers.slot("scripted"));
                    None
                }
                11 if dice.roll(8) == 0 => {
                    let _ = agent.dispose().await;
                    None
                }
                _ => None,
            };
            if let Some(Ok(id)) = sent {
                accepted.push(id.to_string());
            }
        }
        let _ = agent.when_idle().await;
    }
    let prompts = join_all(prompts).await.into_iter().map(Result::unwrap);
    let prompts: Vec<MessageId> = prompts.filter_map(Result::ok).collect();
    // A turn that failed left waiting what was behind it: now that goes.
    agent.cancel(CancelCause::User);
    for id in prompts {
        match agent.outcome(&id, 0).await {
            Ok(outcome) => assert!(outcome.turn > 0),
            Err(error) => {
                assert!(["MESSAGE_CANCELED", "DISPOSED"].contains(&error.code()), "{error}")
            }
        }
        accepted.push(id.to_string());
    }
    let _ = agent.when_idle().await;
    if harness.agent(agent.id()).is_some() {
        assert_eq!(agent.status(), Status::Idle, "{}", agent.id());
    }
    accepted
}

async fn storm(store: Arc<dyn Store>, reopened: impl AsyncFnOnce() -> Arc<dyn Store>) {
    let seed = seed();
    let harness = start(store).await;
    let mut lives = Vec::new();
    let mut agents = Vec::new();
    for index in 0..AGENTS {
        let options = AgentOptions::new().model("scripted", "any").max_steps(3);
        let new = NewAgent::new(options).id(format!("agent-{index}"));
        let agent = harness.create(new).await.unwrap();
        agents.push(agent.agent().clone());
        lives.push(tokio::spawn(live(harness.clone(), agent, Dice(seed ^ (index << 32)))));
    }
    let lived = tokio::time::timeout(PATIENCE, join_all(lives)).await;
    let lived = lived.unwrap_or_else(|_| {
        let stuck: Vec<_> = agents
            .iter()
            .filter(|agent| harness.agent(agent.id()).is_some())
            .map(|agent| {
                let disposal = *agent.cell().disposal().borrow();
                let trace = playhouse::testing::trace(&agent.session().log());
                format!("{} {:?} {disposal:?} {trace}", agent.id(), agent.status())
            })
            .collect();
        panic!("an agent hangs: {stuck:?}")
    });
    // Several at once, and once more after.
    let downs = (0..4).map(|_| {
        let harness = harness.clone();
        tokio::spawn(async move { harness.shutdown().await })
    });
    let downs = tokio::time::timeout(PATIENCE, join_all(downs)).await.expect("shutdown hangs");
    for down in downs {
        down.unwrap().unwrap();
    }
    assert!(harness.agents().is_empty());
    let store = reopened().await;
    let mut faults = Vec::new();
    for (agent, accepted) in agents.iter().zip(lived) {
        let accepted = accepted.unwrap();
        let log = agent.session().log();
        if let Err(fault) = invariants::check(&log) {
            faults.push(format!("{}: {fault}", agent.id()));
        }
        // A session that was disposed before anything was accepted has never been.
        let stored = match store.read(agent.id()).await {
            Err(error) if error.code() == "SESSION_NOT_FOUND" && log.is_empty() => continue,
            stored => stored.unwrap(),
        };
        let stored: Vec<_> =
            stored.events.iter().map(|json| String::from_utf8(json.to_vec()).unwrap()).collect();
        let log: Vec<_> = log.iter().cloned().collect();
        let told: Vec<_> = log.iter().map(|event| event.to_json()).collect();
        if stored != told {
            faults.push(format!(
                "{}: {} stored, {} in the log",
                agent.id(),
                stored.len(),
                told.len()
            ));
        }
        let (mut entered, mut shown) = (HashMap::new(), HashMap::new());
        for event in &log {
            match &event.body {
                EventBody::InboxSpliced(splice) => {
                    for message in &splice.inserted {
                        *entered.entry(message.id.to_string()).or_insert(0) += 1;
                    }
                }
                EventBody::UserMessage(message) => {
                    *shown.entry(message.id.to_string()).or_insert(0) += 1;
                }
                _ => {}
            }
        }
        for id in accepted {
            if entered.get(&id) != Some(&1) {
                faults.push(format!("{}: {id} entered {:?} times", agent.id(), entered.get(&id)));
            }
        }
        for (id, times) in entered.into_iter().chain(shown) {
            if times != 1 {
                faults.push(format!("{}: message {id} {times} times", agent.id()));
            }
        }
    }
    assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_over_memory_loses_nothing_and_ends() {
    let store = Arc::new(MemoryStore::new());
    let again = store.clone();
    storm(store, async move || Arc::new(again.reopen()) as Arc<dyn Store>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_over_a_journal_loses_nothing_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = JournalStoreConfig::default();
    config.journal.segment_bytes = 256 << 10;
    let store = JournalStore::open(dir.path(), config).await.unwrap();
    let path = dir.path().to_owned();
    storm(Arc::new(store), async move || {
        let store = JournalStore::open(&path, JournalStoreConfig::default()).await.unwrap();
        Arc::new(store) as Arc<dyn Store>
    })
    .await;
    assert!(playhouse_stores::verify(dir.path(), |_| ()).unwrap().is_whole());
}

#[tokio::test]
async fn an_edit_cannot_bring_back_a_message_that_a_turn_has_taken() {
    let script = Script::sequence([Reply::text("one"), Reply::text("two")]);
    let stage = Stage::new(script).await.unwrap();
    let agent = stage.agent();
    let message = Message::user("same", "one");
    agent.prompt(message.clone()).await.unwrap();
    agent.when_idle().await.unwrap();
    let insert = |message: &Message| InboxEdit::Splice {
        target: InboxTarget::NextTurn,
        start: 0,
        delete: 0,
        insert: vec![Arc::new(message.clone())],
    };
    let error = agent.edit_inbox(insert(&message)).await.unwrap_err();
    assert_eq!(error.code(), "ALREADY_TAKEN");
    assert!(error.to_string().contains("\"same\" was taken"), "{error}");

    // What only waited may be taken out and put back.
    let waiting = Message::user("waits", "two");
    agent.send(waiting.clone(), InboxTarget::NextTurn, false).await.unwrap();
    agent.edit_inbox(InboxEdit::Remove { id: "waits".into() }).await.unwrap();
    agent.edit_inbox(insert(&waiting)).await.unwrap();
    assert!(agent.inbox().contains(&"waits".into()));
    stage.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_harnesses_share_a_process_but_no_store_and_no_session() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let open = async |dir: usize| {
        JournalStore::open(dirs[dir].path(), JournalStoreConfig::default()).await
    };
    let options = || AgentOptions::new().model("scripted", "any");
    let first = start(Arc::new(open(0).await.unwrap())).await;
    let second = start(Arc::new(open(1).await.unwrap())).await;
    assert_eq!(open(0).await.err().map(|error| error.code()), Some("STORE_IN_USE"));
    let one = first.create(NewAgent::new(options()).id("it")).await.unwrap();
    let two = second.create(NewAgent::new(options()).id("it")).await.unwrap();
    let (gone, stays) = tokio::join!(
        async {
            let prompted = one.prompt("go").await;
            first.shutdown().await.unwrap();
            prompted
        },
        two.prompt("plain")
    );
    gone.unwrap();
    assert_eq!(stays.unwrap().text, "Only words and no calls.");
    assert!(one.prompt("plain").await.is_err());
    assert_eq!(two.prompt("plain").await.unwrap().text, "Only words and no calls.");
    second.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_agent_whose_actor_died_running_is_told_to_be_idle_once_it_is() {
    let script = Script::sequence([Reply::text("never").at_gate("closed"), Reply::text("yes")]);
    let stage = Stage::new(script).await.unwrap();
    let agent = stage.agent();
    agent.followup("go").await.unwrap();
    let mut status = agent.watch_status();
    status.wait_for(|status| *status == Status::Running).await.unwrap();
    assert!(stage.kill(agent, Victim::Agent).await);
    agent.when_idle().await.unwrap();
    assert_eq!(agent.status(), Status::Idle);
    assert_eq!(agent.prompt("there?").await.unwrap().text, "yes");
    stage.shutdown().await.unwrap();
}
