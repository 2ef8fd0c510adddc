//! Black-box tests through the facade.

mod deaths;
mod turns;
