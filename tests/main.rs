//! Black-box tests through the facade.

mod architecture;
mod deaths;
mod turns;
