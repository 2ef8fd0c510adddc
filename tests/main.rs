//! Black-box tests through the facade.

mod crash;
mod deaths;
mod turns;
