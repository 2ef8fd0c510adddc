//! Nothing acknowledged is lost: recovery, checkpoints, forks and shutdown, over harnesses on real
//! stores.

mod checkpoints;
mod contract;
mod fork;
mod policy;
mod recovery;
mod rig;
mod shutdown;
mod stuck;
