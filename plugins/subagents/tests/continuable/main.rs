//! Continuable children over real agents and a scripted model.
#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with the right line")]

mod ends;
mod life;
mod rig;
mod set_ups;
mod tools;
mod traces;
