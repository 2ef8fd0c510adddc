//! What an agent's session leaves in its store, and what waits for it.

mod checkpoints;
mod contract;
