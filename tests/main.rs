//! Black-box tests through the facade.
#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with the right line")]

#[cfg(feature = "cli")]
mod acp;
mod architecture;
mod breaker;
mod breaker_chunks;
mod breaker_models;
mod budgets;
mod catalog;
#[cfg(feature = "stress")]
mod chaos;
mod children;
mod cli;
mod continuable;
mod crash;
mod crash_test;
mod deaths;
mod durability;
mod fuzz;
mod hibernation;
mod images;
mod invariants;
mod lifecycle;
#[cfg(target_os = "linux")]
mod power_loss;
mod recovery;
mod replay;
mod scenarios;
mod sessions;
#[cfg(feature = "sim")]
mod sim;
mod teams;
mod testing;
mod tools;
mod transfer;
mod trees;
mod turns;
mod windows;
mod workflows;
mod write_behind;
