//! A fleet of agents under load, while a seeded monkey kills actors of every kind, the store fails and
//! streams are cut; and a judge that says what was lost, done twice or left behind.
//!
//! The seed says what each agent is put through, what is killed and how the store fails. The
//! interleaving is the scheduler's: a seed is a load, not a history. For histories there is `sim`.
//!
//! ```
//! use playhouse::{CancelToken, stress::{Load, Place, run}};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let load = Load { agents: 3, turns: 2, chaos: 1.0, ..Load::default() };
//! let report = run(&load, Place::Memory, &CancelToken::new(), &mut |_| ()).await?;
//! assert!(report.faults.is_empty(), "{:?}", report.faults);
//! # Ok::<(), playhouse::Failure>(()) }).unwrap();
//! ```

mod auditor;
mod client;
mod fair;
mod fleet;
mod hibernated;
mod judge;
mod ledger;
mod model;
mod monkey;
mod place;
mod report;
mod run;
mod tree;
mod workshop;

use std::time::Duration;

use playhouse_supervisor::{plugin_host::RestartLimits, restart_policy::RestartPolicy};

pub use self::{
    fair::{FairLoad, FairReport, run_fair},
    hibernated::{HibernatedLoad, HibernatedReport, hibernated, resident_bytes},
    place::Place,
    report::{Fault, Progress, Report},
    run::run,
    tree::{Cancelled, Grown, Left, Shape, TreeLoad, TreeProgress, TreeReport, run_tree},
};

/// What a fleet is put through.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// How many agents; at least 1.
    pub agents: usize,
    /// How many turns each is asked for.
    pub turns: u64,
    /// When to stop asking for more, if the turns are not done before.
    pub duration: Option<Duration>,
    /// What decides all that is decided.
    pub seed: u64,
    /// Kills per agent and second. Above 0 the store fails and streams are cut, too.
    pub chaos: f64,
    /// Tool calls of one answer, for turns that call tools.
    pub tools: usize,
    /// Chunks of one answer.
    pub chunks: usize,
    /// Children that an agent delegates to at once, for turns that delegate; 0 for none.
    pub children: usize,
    /// How often actors may die.
    pub restarts: RestartPolicy,
}

impl Default for Load {
    fn default() -> Self {
        let often = RestartLimits {
            max_restarts: usize::MAX,
            within: Duration::from_secs(1),
            first_delay: Duration::from_millis(1),
            max_delay: Duration::from_millis(20),
        };
        Self {
            agents: 20,
            turns: 10,
            duration: None,
            seed: 0,
            chaos: 0.0,
            tools: 2,
            chunks: 20,
            children: 2,
            restarts: RestartPolicy::uniform(often),
        }
    }
}
