//! Simulations of the whole harness: real actors, supervisors, sessions, tools and sub-agents on one
//! thread, in time that only passes when everybody waits, with nothing left to chance but a seed.
//!
//! [`run`] makes a [`Plan`] of a seed (who sends what when, what the model answers, what breaks), lets
//! a world live through it, crashes included, and holds the result against what must be true of
//! every world. The same seed gives the same logs, byte for byte; [`Summary::hash`] shows it.
//!
//! ```
//! let summary = playhouse::sim::run(7, &mut |_| {}).map_err(|failed| failed.to_string())?;
//! assert_eq!(summary.hash, playhouse::sim::check(7).unwrap().hash);
//! # Ok::<(), String>(())
//! ```

mod checks;
mod clients;
mod disk;
mod hooks;
mod life;
mod mischief;
mod model;
mod plan;
mod run;
mod tools;
mod witness;

pub use self::{
    plan::Plan,
    run::{Failed, Summary, check, run},
};
