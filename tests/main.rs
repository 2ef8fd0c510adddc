//! Black-box tests through the facade.

mod architecture;
mod children;
mod crash;
mod deaths;
mod testing;
mod turns;
