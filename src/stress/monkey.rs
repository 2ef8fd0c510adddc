//! Kills actors of every kind, as often as it is told to.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use playhouse_plugin_api::agent::Agent;
use tokio::time::{Instant, MissedTickBehavior};

use super::fleet::Fleet;
use crate::testing::{Victim, kill_tree};

/// How often the monkey wakes.
const TICK: Duration = Duration::from_millis(5);

/// Agents that are looked at for an actor of one kind.
const TRIES: usize = 20;

/// The committer's keeper gives its store up at the ninth death within ten seconds.
const COMMITTER_REST: Duration = Duration::from_secs(2);

/// Kills until the run is over.
pub(super) async fn rampage(fleet: Arc<Fleet>, mut rng: Rng) {
    let mut ticks = tokio::time::interval(TICK);
    // What was missed is made up for by the arrears.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let began = Instant::now();
    let rate = fleet.load.chaos * fleet.load.agents as f64;
    let (mut killed, mut committer_rests) = (0.0, began);
    loop {
        tokio::select! {
            biased;
            () = fleet.over.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let due = began.elapsed().as_secs_f64() * rate;
        // Those that are being made, too.
        let prey = fleet.harness.world().agents.all();
        while killed < due && !prey.is_empty() {
            killed += 1.0;
            let kind = match rng.u32(0..100) {
                0..=2 => plugin_host(&fleet, &mut rng).await.then_some("plugin host"),
                3 | 4 if Instant::now() >= committer_rests => {
                    committer_rests = Instant::now() + COMMITTER_REST;
                    committer(&fleet).then_some("committer")
                }
                roll => part(&fleet, &prey, roll, &mut rng),
            };
            if let Some(kind) = kind {
                fleet.ledger.killed(kind);
            }
        }
    }
}

/// Not every agent has every actor at every moment.
fn part(fleet: &Fleet, prey: &[Agent], roll: u32, rng: &mut Rng) -> Option<&'static str> {
    let (victim, kind) = match roll {
        0..=25 => (Victim::Agent, "agent"),
        26..=45 => (Victim::Session, "session"),
        46..=65 => (Victim::Writer, "writer"),
        66..=75 => (Victim::Supervisor, "supervisor"),
        76..=80 => {
            let route = fleet.routes[rng.usize(0..fleet.routes.len())].clone();
            (Victim::Provider(route), "provider")
        }
        _ => (Victim::ToolExecutor, "tool executor"),
    };
    let world = fleet.harness.world();
    let mut tries = (0..TRIES).map(|_| &prey[rng.usize(0..prey.len())]);
    tries.any(|agent| victim.strike(world, agent)).then_some(kind)
}

async fn plugin_host(fleet: &Fleet, rng: &mut Rng) -> bool {
    let host = fleet.plugins[rng.usize(0..fleet.plugins.len())].host().await;
    host.inspect(kill_tree).is_some()
}

fn committer(fleet: &Fleet) -> bool {
    let keeper = fleet.keeper.iter();
    let committer = keeper.flat_map(|keeper| keeper.get_children()).next();
    committer.inspect(kill_tree).is_some()
}
