//! Black-box tests through the facade.

mod architecture;
mod crash;
mod deaths;
mod turns;
