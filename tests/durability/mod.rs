//! Nothing acknowledged is lost: recovery, checkpoints, forks and shutdown, over harnesses on real
//! stores.

mod contract;
mod policy;
mod rig;
