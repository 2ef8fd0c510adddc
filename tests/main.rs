//! Black-box tests through the facade.
#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with the right line")]

mod architecture;
mod breaker;
mod children;
mod cli;
mod crash;
mod deaths;
mod lifecycle;
#[cfg(feature = "sim")]
mod sim;
mod testing;
mod turns;
