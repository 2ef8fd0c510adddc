//! Whether a store keeps its promises when its process dies: a workload that tells what was promised,
//! and a check of what is there after.
//!
//! A writer ([`work`]) writes to a store as fast as it goes, and prints a [`Promise`] a line, each
//! once the store has made it. Whoever kills it reads the lines into [`Promises`], and looks with
//! [`check`] whether the store holds them. All content is a function of its place, so that it can be
//! compared byte by byte without being kept.

mod check;
mod content;
mod promise;
mod workload;

pub use check::{Broken, Found, Survived, check};
pub use promise::{Promise, Promises};
pub use workload::{config, work};
