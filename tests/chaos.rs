//! A fleet under load while actors of every kind are killed, the store fails and streams are cut: see
//! `docs/stress.md`.
//!
//! `PLAYHOUSE_SEED` repeats a load; the interleaving is the scheduler's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use playhouse::{
    CancelCause, CancelToken, EventBody, NewAgent, Status, TurnEndReason,
    models::scripted::{Fault, FaultKind, Reply, Script, When},
    plugin_api::store::StoreReader,
    stores::{MemoryStore, StoreConfig},
    stress::{Load, Place, Report, run},
    supervisor::{
        agents::supervisor::PART_LIMITS, plugin_host::RestartLimits, restart_policy::RestartPolicy,
    },
    testing::{Stage, Victim},
};

fn seed() -> u64 {
    let seed = std::env::var("PLAYHOUSE_SEED").map_or_else(
        |_| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
        |seed| seed.parse().unwrap(),
    );
    println!("PLAYHOUSE_SEED={seed}");
    seed
}

fn load() -> Load {
    Load {
        agents: 20,
        turns: u64::MAX,
        duration: Some(Duration::from_secs(3)),
        seed: seed(),
        chaos: 3.0,
        ..Load::default()
    }
}

async fn judged(load: &Load, place: Place) -> Report {
    let report = run(load, place, &CancelToken::new(), &mut |_| ()).await.unwrap();
    let faults: Vec<_> = report.faults.iter().map(ToString::to_string).collect();
    assert!(faults.is_empty(), "seed {}: {faults:#?}", load.seed);
    assert!(report.acknowledged > 0 && report.turns > 0, "{report:?}");
    report
}

mod scenario {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn chaos_over_memory_loses_nothing_and_runs_nothing_twice() {
        let report = judged(&load(), Place::Memory).await;
        assert!(report.killed() > 50, "{report:?}");
        assert_eq!(report.given_up, 0);
        for kind in ["agent", "session", "writer", "supervisor"] {
            assert!(report.kills.contains_key(kind), "no {kind} in {:?}", report.kills);
        }
        assert!(!report.store_faults.is_empty());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn chaos_over_a_journal_loses_nothing_and_runs_nothing_twice() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::Dir { dir: dir.path().join("store"), config: StoreConfig::default() };
        let report = judged(&load(), place).await;
        assert!(report.killed() > 50, "{report:?}");
        let whole = playhouse::stores::verify(dir.path().join("store"), |_| ()).unwrap();
        assert!(whole.is_whole());
    }

    /// With the limits that a harness has unless told otherwise, such a rate is too much for an agent: it
    /// goes, its log says why, and nothing that it had accepted is lost.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn agents_whose_actors_die_too_often_are_given_up_and_their_stored_logs_say_why() {
        let mut load = load();
        load.restarts.parts = PART_LIMITS;
        let report = judged(&Load { chaos: 8.0, ..load }, Place::Memory).await;
        assert!(report.given_up > 0, "{report:?}");
    }
}

#[tokio::test]
async fn the_restart_limit_disposes_an_agent_with_a_durable_reason_and_others_go_on() {
    let store = MemoryStore::new();
    let limits = RestartLimits { max_restarts: 3, ..PART_LIMITS };
    let stalls = Reply::text("never").with_fault(Fault::new(FaultKind::Stall));
    let script = Script::new()
        .rule(When::default().user_contains("stall"), stalls)
        .reply(Reply::text("Here I am."));
    let shared = store.clone();
    let policy = RestartPolicy::uniform(limits);
    let stage = Stage::minimal(script).harness(|h| h.store(shared).restart_policy(policy));
    let stage = stage.start().await.unwrap();
    let (victim, other) = (stage.agent(), stage.another().await.unwrap());
    victim.followup("stall").await.unwrap();
    other.followup("stall").await.unwrap();
    let waiting = victim.followup("waits").await.unwrap();
    let mut successors = 0;
    while stage.kill(victim, Victim::Session).await {
        successors += 1;
    }
    assert_eq!(successors, 3);
    let gone = victim.outcome(&waiting, 0).await.unwrap_err();
    assert_eq!(gone.code(), "DISPOSED");
    assert_eq!(victim.followup("anyone?").await.unwrap_err().code(), "DISPOSED");

    let stored = store.read(victim.id()).await.unwrap().log().unwrap();
    let mut ends = stored.iter().filter_map(|event| match &event.body {
        EventBody::TurnEnd(end) => Some(&end.reason),
        _ => None,
    });
    assert!(
        matches!(ends.next(), Some(TurnEndReason::Error(failure)) if failure.code == "RESTART_LIMIT"),
        "the open turn says why"
    );
    assert!(matches!(&stored.last().unwrap().body, EventBody::Custom { kind, data }
        if &**kind == "agent/failed" && data["code"] == "RESTART_LIMIT"));

    // The other one is still at its turn, and another life takes the session over where it ended.
    assert_eq!(other.status(), Status::Running);
    other.cancel(CancelCause::User);
    assert_eq!(other.prompt("still there?").await.unwrap().text, "Here I am.");
    let new = NewAgent::new(victim.options().clone());
    let again = stage.harness().resume(victim.id().clone(), new).await.unwrap();
    assert!(again.inbox().contains(&waiting), "what had been accepted still waits");
    assert_eq!(again.prompt("and you?").await.unwrap().text, "Here I am.");
    stage.shutdown().await.unwrap();
}
