//! Teams over real agents and a store.
#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with the right line")]

mod rig;
mod subagents;
