//! Jobs of real agents, with a scripted model.
#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with the right line")]

mod bench;
mod notices;
mod scenarios;
