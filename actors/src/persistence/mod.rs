//! The persistence writer's actor: the write handle of one session.
//!
//! It keeps a cursor into the log and at most one physical operation under way. Its death costs
//! nothing that was accepted: a successor re-sends what lies past the durable mark, which the store
//! takes as a repetition. A failed write is reported once and pauses writing until somebody flushes;
//! whoever asked for a flush while it was under way has it tried again.

mod actor;
#[cfg(test)]
mod tests;

pub use actor::{WriterActor, WriterArgs};
