//! Agents that give up their actors and their memory, and stay addressable.

mod interleavings;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use playhouse::{
    Agent, AgentError, AgentOptions, CancelToken, EventBody, Failure, Harness, HarnessBuilder,
    NewAgent, Scope, SessionId, Status,
    messages::event::InboxTarget,
    models::scripted::{Reply, Script, ScriptedAdapter},
    plugin_api::{agent::Disposal, blueprint::Blueprint, store::Store},
    supervisor::hibernation::{Awake, HibernateError, HibernationPolicy},
};
use playhouse_stores::{JournalStore, JournalStoreConfig, MemoryStore};

use crate::lifecycle::rig::{soon, user_texts};

const CLERK: &str = "clerk";

fn options() -> AgentOptions {
    AgentOptions::new().model("scripted", "any")
}

/// A blueprint that counts the lives of its agents.
fn clerk() -> (Blueprint, Arc<AtomicUsize>) {
    let lives = Arc::<AtomicUsize>::default();
    let count = lives.clone();
    let blueprint = Blueprint::new(options()).set_up(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    (blueprint, lives)
}

async fn start(builder: HarnessBuilder) -> (Harness, Arc<ScriptedAdapter>) {
    let harness = builder.start().await.unwrap();
    let model = Arc::new(ScriptedAdapter::new(Script::new().reply(Reply::text("Noted."))));
    let _ = harness.world().models.register(["scripted"], model.clone()).unwrap();
    (harness, model)
}

async fn over(store: MemoryStore) -> (Harness, Arc<AtomicUsize>) {
    let (blueprint, lives) = clerk();
    let (harness, _) = start(playhouse::minimal().store(store).blueprint(CLERK, blueprint)).await;
    (harness, lives)
}

fn id() -> SessionId {
    "a".into()
}

async fn made(harness: &Harness) -> Agent {
    harness.create(NewAgent::blueprint(CLERK).id(id())).await.unwrap().agent().clone()
}

fn reasons(refused: Result<(), HibernateError>) -> Vec<&'static str> {
    match refused.unwrap_err() {
        HibernateError::Refused { reasons, .. } => reasons.iter().map(Awake::code).collect(),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn it_gives_up_its_actors_and_wakes_with_its_history_for_a_prompt() {
    let (harness, lives) = over(MemoryStore::new()).await;
    let agent = made(&harness).await;
    agent.prompt("first").await.unwrap();
    agent.inject("by the way").await.unwrap();
    let cell = agent.cell();
    let actors = [
        cell.supervisor.live().unwrap().get_cell(),
        cell.actor.live().unwrap().get_cell(),
        agent.session().cell().appender.live().unwrap().get_cell(),
        agent.session().cell().writer.live().unwrap().get_cell(),
    ];
    harness.hibernate(&id()).await.unwrap();
    for actor in actors {
        soon(actor.wait(None)).await.unwrap();
    }
    assert!(harness.agent(&id()).is_none() && harness.world().agents.all().is_empty());
    assert_eq!(*cell.disposal().borrow(), Disposal::Disposed);
    // The old handle says what it is, and the way out.
    let gone = agent.followup("hello?").await.unwrap_err();
    assert_eq!(gone.code(), "AGENT_HIBERNATED");
    assert!(gone.to_string().contains("Harness::send"), "{gone}");
    assert_eq!(agent.when_idle().await.unwrap_err().code(), "AGENT_HIBERNATED");
    let again = harness.hibernate(&id()).await.unwrap_err();
    assert_eq!(again.code(), "AGENT_NOT_FOUND");

    let outcome = soon(harness.prompt(&id(), "second")).await.unwrap();
    assert_eq!((outcome.text.as_str(), outcome.turn), ("Noted.", 2));
    let woken = harness.agent(&id()).unwrap();
    assert_eq!(user_texts(&woken), ["first", "by the way", "second"]);
    assert_eq!(woken.session().header().blueprint.as_deref(), Some(CLERK));
    assert_eq!(lives.load(Ordering::SeqCst), 2);
    let before: Vec<_> = agent.session().log().iter().map(|event| event.to_json()).collect();
    let after: Vec<_> = woken.session().log().iter().map(|event| event.to_json()).collect();
    assert_eq!(before[..], after[..before.len()]);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn all_who_want_it_wake_it_once() {
    let (harness, lives) = over(MemoryStore::new()).await;
    made(&harness).await;
    harness.hibernate(&id()).await.unwrap();
    let prompts = (0..40).map(|n| {
        let harness = harness.clone();
        tokio::spawn(async move { harness.prompt(&id(), format!("prompt {n}")).await.unwrap() })
    });
    for prompt in prompts.collect::<Vec<_>>() {
        assert!(soon(prompt).await.unwrap().is_completed());
    }
    assert_eq!(lives.load(Ordering::SeqCst), 2);
    let mut texts = user_texts(&harness.agent(&id()).unwrap());
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), 40);
    // Those who stop waiting stop nothing.
    harness.hibernate(&id()).await.unwrap();
    let id = id();
    drop(futures::FutureExt::now_or_never(harness.wake(&id)));
    let woken = soon(harness.wake(&id)).await.unwrap();
    assert_eq!((lives.load(Ordering::SeqCst), woken.status()), (3, Status::Idle));
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_keeps_it_awake_is_named() {
    let (harness, lives) = over(MemoryStore::new()).await;
    let agent = made(&harness).await;
    let by_hand = harness.create(NewAgent::new(options()).id("by-hand")).await.unwrap();
    assert_eq!(reasons(harness.hibernate(by_hand.id()).await), ["NO_BLUEPRINT"]);

    let job = agent.stay_awake("job 7");
    let child = NewAgent::blueprint(CLERK).id("child").delegated_by(&agent);
    let child = harness.create(child).await.unwrap();
    let late = agent.scope().on_close(|| ()).unwrap();
    agent.send("later", InboxTarget::NextTurn, false).await.unwrap();
    let refused = harness.hibernate(&id()).await;
    let text = refused.as_ref().unwrap_err().to_string();
    assert!(text.contains("\"child\"") && text.contains("job 7"), "{text}");
    assert_eq!(reasons(refused), ["PROMPTS_WAIT", "CHILDREN_LIVE", "HELD_AWAKE", "TIED"]);
    drop(job);
    late.remove();
    child.dispose().await.unwrap();
    // It was only asked: nothing has changed.
    agent.prompt("now").await.unwrap();
    agent.when_idle().await.unwrap();
    let asked =
        agent.run_maintenance(|_| async { reasons(harness.hibernate(&id()).await) }).await.unwrap();
    assert_eq!(asked, ["AGENT_BUSY"]);
    harness.hibernate(&id()).await.unwrap();
    assert_eq!(lives.load(Ordering::SeqCst), 2);
    harness.shutdown().await.unwrap();

    let (blueprint, _) = clerk();
    let (harness, _) = start(playhouse::minimal()).await;
    let registration = harness.blueprint(CLERK, blueprint).unwrap();
    made(&harness).await;
    assert_eq!(reasons(harness.hibernate(&id()).await), ["NO_STORE"]);
    registration.remove();
    assert_eq!(reasons(harness.hibernate(&id()).await), ["UNKNOWN_BLUEPRINT", "NO_STORE"]);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_running_turn_keeps_it_awake_and_is_not_disturbed() {
    let (blueprint, _) = clerk();
    let builder = playhouse::minimal().store(MemoryStore::new()).blueprint(CLERK, blueprint);
    let harness = builder.start().await.unwrap();
    let script = Script::sequence([Reply::text("At last.").at_gate("open")]);
    let model = Arc::new(ScriptedAdapter::new(script));
    let _ = harness.world().models.register(["scripted"], model.clone()).unwrap();
    let agent = made(&harness).await;
    let prompt = agent.prompt("wait");
    let hibernate = async {
        let mut status = agent.watch_status();
        status.wait_for(|status| *status == Status::Running).await.unwrap();
        let refused = reasons(harness.hibernate(&id()).await);
        model.gate("open").open();
        refused
    };
    let (outcome, refused) = soon(futures::future::join(prompt, hibernate)).await;
    assert_eq!((outcome.unwrap().text.as_str(), refused), ("At last.", vec!["AGENT_BUSY"]));
    harness.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_agent_hibernates_after_the_limit_and_work_puts_it_off() {
    let (blueprint, lives) = clerk();
    let policy = HibernationPolicy::after(Duration::from_secs(60)).at_once(1);
    let builder = playhouse::minimal().store(MemoryStore::new()).blueprint(CLERK, blueprint);
    let (harness, _) = start(builder.hibernation(policy)).await;
    let agent = made(&harness).await;
    harness.create(NewAgent::new(options()).id("by-hand")).await.unwrap();
    let held = made_as(&harness, "held").await;
    let job = held.stay_awake("a job");
    pass(50).await;
    agent.prompt("busy").await.unwrap();
    pass(50).await;
    assert!(harness.agent(&id()).is_some(), "it has rested for 50 s only");
    let mut gone = agent.cell().disposal();
    let asleep = gone.wait_for(|state| *state == Disposal::Disposed);
    drop(tokio::time::timeout(Duration::from_secs(11), asleep).await.unwrap().unwrap());
    let left: Vec<_> = harness.agents().iter().map(|agent| agent.id().to_string()).collect();
    assert_eq!(left, ["by-hand", "held"]);

    harness.prompt(&id(), "again").await.unwrap();
    drop(job);
    let mut changes = harness.world().agents.watch();
    let both = async {
        while harness.agents().len() > 1 {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(122), both).await.unwrap();
    assert_eq!(lives.load(Ordering::SeqCst), 3);
    harness.shutdown().await.unwrap();
}

/// Lets paused time pass.
async fn pass(secs: u64) {
    let never = std::future::pending::<()>();
    tokio::time::timeout(Duration::from_secs(secs), never).await.unwrap_err();
}

async fn made_as(harness: &Harness, id: &str) -> Agent {
    harness.create(NewAgent::blueprint(CLERK).id(id)).await.unwrap().agent().clone()
}

#[tokio::test]
async fn a_later_process_wakes_it_once_it_knows_the_blueprint() {
    let store = MemoryStore::new();
    let later = store.reopen();
    let (harness, _) = over(store).await;
    made(&harness).await.prompt("first").await.unwrap();
    let by_hand = harness.create(NewAgent::new(options()).id("by-hand")).await.unwrap();
    by_hand.prompt("hi").await.unwrap();
    harness.shutdown().await.unwrap();

    let (harness, _) = start(playhouse::minimal().store(later)).await;
    let code = |id: &str| {
        let (harness, id) = (harness.clone(), SessionId::from(id));
        async move { harness.send(&id, "?").await.unwrap_err().code().to_owned() }
    };
    assert_eq!(code("a").await, "UNKNOWN_BLUEPRINT");
    assert_eq!(code("by-hand").await, "NO_BLUEPRINT");
    assert_eq!(code("nobody").await, "SESSION_NOT_FOUND");
    let owner = harness.world().scope.child("tenant").unwrap();
    let (mut blueprint, lives) = clerk();
    blueprint = blueprint.owned_by(owner.clone());
    harness.blueprint(CLERK, blueprint).unwrap();
    let taken = harness.blueprint(CLERK, Blueprint::default()).unwrap_err();
    assert_eq!(taken.code(), "BLUEPRINT_NAME");
    let outcome = harness.prompt(&id(), "second").await.unwrap();
    assert_eq!((outcome.turn, lives.load(Ordering::SeqCst)), (2, 1));
    assert_eq!(harness.agent(&id()).unwrap().owner(), &owner);
    harness.hibernate(&id()).await.unwrap();
    owner.close();
    assert_eq!(code("a").await, "ABORTED");
    harness.shutdown().await.unwrap();
    assert_eq!(code("a").await, "SHUTTING_DOWN");
}

#[tokio::test]
async fn what_a_blueprint_says_it_says_alone() {
    let (harness, _) = over(MemoryStore::new()).await;
    let code = |new: NewAgent| {
        let harness = harness.clone();
        async move { harness.create(new).await.unwrap_err().code().to_owned() }
    };
    assert_eq!(code(NewAgent::blueprint("nobody")).await, "UNKNOWN_BLUEPRINT");
    let mut mixed = NewAgent::blueprint(CLERK);
    mixed.options = options();
    assert_eq!(code(mixed).await, "INVALID_ARGUMENT");
    let mixed = NewAgent::blueprint(CLERK).set_up(|_| async { Ok(()) });
    assert_eq!(code(mixed).await, "INVALID_ARGUMENT");
    let mixed = NewAgent::blueprint(CLERK).owned_by(Scope::root("x"));
    assert_eq!(code(mixed).await, "INVALID_ARGUMENT");
    // Nothing was made.
    assert!(harness.world().agents.all().is_empty());

    harness.blueprint("other", Blueprint::new(options())).unwrap();
    made(&harness).await.prompt("first").await.unwrap();
    harness.hibernate(&id()).await.unwrap();
    let other = harness.resume(id(), NewAgent::blueprint("other")).await.unwrap_err();
    assert_eq!(other.code(), "INVALID_ARGUMENT");
    // By hand it is another's agent, which nobody could make again.
    let by_hand = harness.resume(id(), NewAgent::new(options())).await.unwrap();
    assert_eq!(reasons(harness.hibernate(&id()).await), ["NO_BLUEPRINT"]);
    by_hand.dispose().await.unwrap();
    // A fork is made from what its maker says.
    let fork = harness.fork("a", NewAgent::blueprint("other").id("b")).await.unwrap();
    assert_eq!(fork.session().header().blueprint.as_deref(), Some("other"));
    harness.hibernate(fork.id()).await.unwrap();
    assert_eq!(harness.prompt(&"b".into(), "on").await.unwrap().turn, 2);
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_set_up_that_fails_wakes_nobody_and_costs_nothing() {
    let store = MemoryStore::new();
    let fails = CancelToken::new();
    let fail = fails.clone();
    let blueprint = Blueprint::new(options()).set_up(move |_| {
        let failed = fail.is_cancelled().then(|| Failure::new("NO_BOOKS", "the books are gone"));
        async move { failed.map_or(Ok(()), Err) }
    });
    let (harness, _) = start(playhouse::minimal().store(store).blueprint(CLERK, blueprint)).await;
    made(&harness).await.prompt("first").await.unwrap();
    harness.hibernate(&id()).await.unwrap();
    fails.cancel(playhouse::CancelCause::User);
    let error = harness.send(&id(), "second").await.unwrap_err();
    assert_eq!(error.code(), "NO_BOOKS");
    assert!(harness.world().agents.all().is_empty());
    harness.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_journal_brings_it_back_with_every_event() {
    let dir = tempfile::tempdir().unwrap();
    let store = JournalStore::open(dir.path(), JournalStoreConfig::default()).await.unwrap();
    let (blueprint, _) = clerk();
    let (harness, _) = start(playhouse::minimal().store(store).blueprint(CLERK, blueprint)).await;
    // One that was never used is addressable, too.
    made_as(&harness, "unused").await;
    harness.hibernate(&"unused".into()).await.unwrap();
    made(&harness).await;
    for turn in 1..=5 {
        let outcome = harness.prompt(&id(), format!("prompt {turn}")).await.unwrap();
        assert_eq!(outcome.turn, turn);
        harness.agent(&id()).unwrap().when_idle().await.unwrap();
        harness.hibernate(&id()).await.unwrap();
    }
    let woken = harness.wake(&id()).await.unwrap();
    assert_eq!(user_texts(&woken).len(), 5);
    let ends = woken.session().log();
    let ends = ends.iter().filter(|event| matches!(event.body, EventBody::TurnEnd(_)));
    assert_eq!(ends.count(), 5);
    assert_eq!(harness.prompt(&"unused".into(), "hi").await.unwrap().turn, 1);
    harness.shutdown().await.unwrap();
}

/// A world holds parts that hold the world: they must not keep a store's lock for ever.
#[test]
fn a_runtime_that_goes_without_a_shutdown_lets_go_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let first = runtime();
    let world = first.block_on(async {
        let store = JournalStore::open(dir.path(), JournalStoreConfig::default()).await.unwrap();
        let (blueprint, _) = clerk();
        let builder = playhouse::base().store(store).blueprint(CLERK, blueprint);
        let policy = HibernationPolicy::after(Duration::from_secs(60));
        let (harness, _) = start(builder.hibernation(policy)).await;
        made(&harness).await.prompt("hello").await.unwrap();
        Arc::downgrade(harness.world())
    });
    drop(first);
    assert!(world.upgrade().is_none(), "something holds the world");
    // The store's threads end a moment later.
    let opened = runtime().block_on(soon(async {
        loop {
            match JournalStore::open(dir.path(), JournalStoreConfig::default()).await {
                Ok(store) => break store.close().await,
                Err(error) => assert_eq!(error.code(), "STORE_IN_USE", "{error}"),
            }
            tokio::task::yield_now().await;
        }
    }));
    opened.unwrap();
}

#[tokio::test]
async fn a_message_with_an_id_of_its_own_is_delivered_once() {
    let (harness, _) = over(MemoryStore::new()).await;
    made(&harness).await;
    harness.hibernate(&id()).await.unwrap();
    let message = playhouse::Message::user("m-1", "once");
    let (target, wake) = (InboxTarget::NextTurn, true);
    let first = harness.deliver(&id(), message.clone(), target, wake).await.unwrap();
    first.agent.outcome(&"m-1".into(), first.from).await.unwrap();
    first.agent.when_idle().await.unwrap();
    harness.hibernate(&id()).await.unwrap();
    let again = harness.deliver_again(&id(), message.clone(), target, wake).await.unwrap();
    again.agent.when_idle().await.unwrap();
    assert_eq!(user_texts(&again.agent), ["once"]);
    let refused = harness.deliver(&id(), message, target, wake).await.unwrap_err();
    assert!(!matches!(
        refused,
        playhouse::supervisor::hibernation::SendError::Agent(AgentError::Gone(_))
    ));
    harness.shutdown().await.unwrap();
}
