//! Random trees to which random things happen.

use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use tokio::task::JoinSet;

use super::*;

/// As many trees, unless a seed names one.
const TREES: u64 = 20;

async fn polls(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// What happens to an agent of the moment.
async fn deed(grove: Arc<Grove>, victim: Agent, deed: u32) {
    match deed {
        0 => victim.cancel(CancelCause::User),
        1 => drop(victim.cancel_tree(CancelCause::User).await),
        2 => AgentHandle::new(victim).dispose().await.unwrap(),
        3 => AgentHandle::new(victim).dispose_keeping_inbox().await.unwrap(),
        4 => drop(grove.stage.kill(&victim, Victim::Agent).await),
        5 => drop(grove.stage.kill(&victim, Victim::Session).await),
        6 => drop(grove.stage.kill(&victim, Victim::Writer).await),
        7 => drop(grove.stage.kill(&victim, Victim::Supervisor).await),
        8 | 9 => {
            let owner = grove.stage.world().scope.clone();
            let request = ChildRequest::new(&victim, "hang").owned_by(owner);
            drop(spawn(grove.stage.world(), request).await);
        }
        10 | 11 => drop(spawn(grove.stage.world(), ChildRequest::new(&victim, "hang")).await),
        _ => drop(victim.followup("delegate").await),
    }
}

async fn one_tree(seed: u64) {
    let grove = Arc::new(grove().await);
    let mut rng = Rng::with_seed(seed);
    grove.root.followup("delegate").await.unwrap();
    let mut deeds = JoinSet::new();
    for _ in 0..rng.usize(10..60) {
        polls(rng.usize(0..60)).await;
        let mut agents = grove.stage.harness().agents();
        agents.retain(|agent| agent != &**grove.stage.agent());
        if agents.is_empty() {
            break;
        }
        let victim = agents.swap_remove(rng.usize(0..agents.len()));
        deeds.spawn(deed(grove.clone(), victim, rng.u32(0..15)));
    }
    let shutdown = rng.bool();
    if !shutdown {
        while let Some(done) = deeds.join_next().await {
            done.unwrap();
        }
        let cancelled = grove.root.cancel_tree(CancelCause::User).await;
        assert!(cancelled.unfinished.is_empty(), "{cancelled:?}");
        for agent in grove.stage.world().agents.descendants(grove.root.id()) {
            assert_eq!(agent.status(), Status::Idle, "{agent:?}");
        }
        let grove = Arc::into_inner(grove).unwrap();
        grove.ends_clean().await;
    } else {
        grove.stage.shutdown().await.unwrap();
        while let Some(done) = deeds.join_next().await {
            done.unwrap();
        }
        let grove = Arc::into_inner(grove).unwrap();
        grove.shuts_down_clean().await;
    }
}

#[test]
fn whatever_happens_to_a_tree_nothing_is_left_of_it_and_every_log_is_whole() {
    let seed = std::env::var("PLAYHOUSE_SEED").ok().map(|seed| seed.parse().unwrap());
    let first = seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
    });
    for seed in first..first + if seed.is_some() { 1 } else { TREES } {
        println!("PLAYHOUSE_SEED={seed}");
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(one_tree(seed));
    }
}
