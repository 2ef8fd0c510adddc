//! A kit for tests of agents: no network, no clock, no chance.
//!
//! - [`Stage`]: a harness, a scripted model and an agent in one line, with fixed ids and a clock that
//!   steps. Its script says what the model answers, gates hold answers back, and every request is
//!   kept for inspection.
//! - [`trace`]: a log in one line, to compare with what it should be.
//! - [`Victim`]: actors to kill, to see what comes back.
//! - [`Census`]: what a harness holds, to compare before and after.
//! - [`FaultyStore`]: a store whose operations fail when told to, or by chance.
//!
//! Delays of scripted answers pass at once under tokio's paused time
//! (`#[tokio::test(start_paused = true)]`).
//!
//! ```
//! use playhouse::{models::scripted::{Reply, Script}, testing::Stage};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let stage = Stage::new(Script::sequence([Reply::text("Hello.")])).await?;
//! assert_eq!(stage.agent().prompt("Hi").await?.text, "Hello.");
//! stage.agent().when_idle().await?;
//! assert_eq!(stage.trace(), "IN+ TS1 IN- SS1.1 SYS+ U H C A SE1.1 TE1(completed)");
//! assert_eq!(stage.requests().len(), 1);
//! stage.shutdown().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

mod census;
#[cfg(any(feature = "sim", feature = "stress"))]
pub(crate) mod checks;
mod faults;
mod faulty_store;
mod stage;
mod trace;
mod victim;

#[cfg(any(feature = "sim", feature = "stress"))]
pub(crate) use self::victim::kill_tree;

pub use self::{
    census::Census,
    faults::{StoreOdds, StoreOp},
    faulty_store::FaultyStore,
    stage::{Stage, StageBuilder, StageError},
    trace::{trace, word},
    victim::Victim,
};
