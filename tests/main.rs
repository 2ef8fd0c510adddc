//! Black-box tests through the facade.

mod children;
mod deaths;
mod testing;
mod turns;
