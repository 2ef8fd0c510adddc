//! What is done to a world behind everybody's back.

use playhouse_plugin_api::store::StoreError;

use super::{
    life::Life,
    plan::{Mischief, Prey, ROUTES},
    witness::Witness,
};
use crate::testing::{StoreOp, Victim, kill_tree};

/// Does it, at once.
pub(super) fn work(life: &Life, mischief: &Mischief) {
    let witness = &life.witness;
    match mischief {
        Mischief::Kill { victim, agent } => {
            // Also those that are being made.
            let alive = life.harness.world().agents.all();
            if alive.is_empty() {
                return;
            }
            let agent = &alive[agent % alive.len()];
            let (victim, name) = match victim {
                Prey::Agent => (Victim::Agent, "agent killed"),
                Prey::Session => (Victim::Session, "session killed"),
                Prey::Writer => (Victim::Writer, "writer killed"),
                Prey::Supervisor => (Victim::Supervisor, "supervisor killed"),
                Prey::Provider => (Victim::Provider(ROUTES[0].to_owned()), "provider killed"),
                Prey::ToolExecutor => (Victim::ToolExecutor, "tool executor killed"),
            };
            if victim.strike(life.harness.world(), agent) {
                witness.count(name);
                witness.note(format!("{name}: {}", agent.id()));
            }
        }
        Mischief::KillRoot => {
            let agents = life.harness.agents();
            let supervisor = agents.iter().find_map(|agent| agent.cell().supervisor.live());
            if let Some(root) = supervisor.and_then(|it| it.get_cell().try_get_supervisor()) {
                kill_tree(&root);
                witness.count("root killed");
                witness.note("root killed");
            }
        }
        Mischief::FailStore { op, times, full } => {
            let error = if *full {
                StoreError::Full { path: "/simulated".to_owned() }
            } else {
                StoreError::Io { what: format!("{op:?}"), cause: "simulated".to_owned() }
            };
            life.faulty.fail(*op, *times, error);
            witness.note(format!("the next {times} {op:?} fail"));
        }
        Mischief::HealStore => {
            life.faulty.heal();
            witness.note("the store works again");
        }
        Mischief::SetParallel(calls) => {
            life.harness.world().limits.set_max_parallel_tool_calls(*calls);
        }
    }
}

/// How often the store of this life failed so far.
pub(super) fn store_failures(witness: &Witness) -> u64 {
    let Some((faulty, disk)) = witness.seen().store.clone() else { return 0 };
    let ops = [
        StoreOp::Create,
        StoreOp::OpenWrite,
        StoreOp::Append,
        StoreOp::Tail,
        StoreOp::Flush,
        StoreOp::Close,
    ];
    let struck: usize = ops.iter().map(|op| faulty.struck(*op)).sum();
    struck as u64 + disk.late_failures()
}

/// Whether a failure with this code may come of a store that failed.
pub(super) fn is_of_store(code: &str) -> bool {
    ["STORE_FULL", "STORE_IO", "STORE_CLOSED", "DISPOSE_FAILED", "SHUTDOWN_FAILED"].contains(&code)
}
