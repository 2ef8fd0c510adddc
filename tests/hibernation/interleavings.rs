//! No message is lost or run twice, however sends, hibernation, waking, disposal and shutdown fall
//! together.
//!
//! `PLAYHOUSE_SEED` repeats one load. With one thread and a store in memory, the interleaving is the
//! seed's, too.

use std::collections::BTreeMap;

use fastrand::Rng;
use playhouse::{
    EventBody, Harness, MessageId, SessionId,
    messages::{event::InboxTarget, log::Log},
    plugin_api::creation::AgentHandle,
};
use playhouse_stores::MemoryStore;
use tokio::task::JoinSet;

use super::{made_as, over};
use crate::lifecycle::rig::soon;

const AGENTS: usize = 3;
const CLIENTS: usize = 6;
const STEPS: usize = 12;

type Accepted = Vec<(SessionId, MessageId)>;

fn id_of(agent: usize) -> SessionId {
    format!("agent-{agent}").into()
}

/// What is refused while others end agents; anything else is a fault.
fn may_fail(code: &str) -> bool {
    ["SHUTTING_DOWN", "ABORTED", "DISPOSED", "AGENT_HIBERNATED"].contains(&code)
}

async fn client(harness: Harness, mut rng: Rng) -> Accepted {
    let mut accepted = Vec::new();
    for _ in 0..STEPS {
        let id = id_of(rng.usize(0..AGENTS));
        match rng.u8(0..10) {
            0..4 => match harness.send(&id, "a message").await {
                Ok(message) => accepted.push((id, message)),
                Err(error) => assert!(may_fail(error.code()), "send: {error}"),
            },
            4 => {
                if let Err(error) = harness.prompt(&id, "a prompt").await {
                    let dropped = error.code() == "MESSAGE_CANCELED";
                    assert!(dropped || may_fail(error.code()), "prompt: {error}");
                }
            }
            5..8 => {
                // Refusals are the rule here.
                let _ = harness.hibernate(&id).await;
            }
            8 => match harness.wake(&id).await {
                Ok(agent) => assert_eq!(agent.id(), &id),
                Err(error) => assert!(may_fail(error.code()), "wake: {error}"),
            },
            _ => {
                if let Some(agent) = harness.agent(&id) {
                    AgentHandle::new(agent).dispose_keeping_inbox().await.unwrap();
                }
            }
        }
        for _ in 0..rng.u8(0..20) {
            tokio::task::yield_now().await;
        }
    }
    accepted
}

/// How often each message entered the inbox, and a model was told it.
fn told(log: &Log) -> BTreeMap<MessageId, (usize, usize)> {
    let mut told = BTreeMap::<_, (usize, usize)>::new();
    for event in log.iter() {
        match &event.body {
            EventBody::InboxSpliced(splice) => {
                for message in &splice.inserted {
                    told.entry(message.id.clone()).or_default().0 += 1;
                }
            }
            EventBody::UserMessage(user) => told.entry(user.id.clone()).or_default().1 += 1,
            _ => {}
        }
    }
    told
}

async fn play(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let store = MemoryStore::new();
    let later = store.reopen();
    let (harness, _) = over(store).await;
    for agent in 0..AGENTS {
        // One that was never used would leave no trace when it is disposed.
        made_as(&harness, id_of(agent).as_str()).await.prompt("the first one").await.unwrap();
    }
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(client(harness.clone(), rng.fork()));
    }
    if rng.bool() {
        let (harness, yields) = (harness.clone(), rng.usize(0..2_000));
        clients.spawn(async move {
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            harness.shutdown().await.unwrap();
            Vec::new()
        });
    }
    let accepted: Accepted = soon(clients.join_all()).await.concat();
    harness.shutdown().await.unwrap();
    assert!(harness.world().agents.all().is_empty());

    // A later life runs what waits.
    let (harness, _) = over(later.reopen()).await;
    for agent in 0..AGENTS {
        let id = id_of(agent);
        soon(harness.prompt(&id, "the last one")).await.unwrap();
        let agent = harness.agent(&id).unwrap();
        soon(agent.when_idle()).await.unwrap();
        assert!(agent.inbox().list(InboxTarget::NextTurn).is_empty());
        let told = told(&agent.session().log());
        for (message, (entered, ran)) in &told {
            assert!(*entered <= 1 && *ran <= 1, "message {message}: {entered} times in, {ran} run");
        }
        for (_, message) in accepted.iter().filter(|(to, _)| *to == id) {
            let entered = told.get(message).map_or(0, |told| told.0);
            assert_eq!(entered, 1, "message {message} was accepted and is lost");
        }
    }
    harness.shutdown().await.unwrap();
}

#[test]
fn no_message_is_lost_between_falling_asleep_and_waking() {
    let seeds = match std::env::var("PLAYHOUSE_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..24,
    };
    for seed in seeds {
        println!("PLAYHOUSE_SEED={seed}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(seed));
    }
}
