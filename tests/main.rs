//! Black-box tests through the facade.

mod deaths;
mod lifecycle;
mod turns;
