//! Black-box tests through the facade.

mod turns;
