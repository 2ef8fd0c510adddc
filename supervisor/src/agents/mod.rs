//! Agents as supervised trees: the root, one supervisor an agent, creation and disposal.
//!
//! All agent supervisors hang flat under [`root::AgentsRoot`]: a ractor supervisor's death kills all
//! that is linked below it, so the tree of delegations is no supervision tree. Who owns an agent is
//! its scope's business, who is told of it its runtime parent's.

mod blueprint;
pub(crate) mod creation;
pub mod disposal;
mod forking;
pub mod maker;
pub mod root;
mod standing;
pub mod supervisor;
