//! Session stores for Playhouse: the journal with a sled index, and memory.

mod index;
pub mod journal;
mod journal_store;
mod memory;

#[cfg(test)]
mod contract;

pub use journal_store::{JournalStore, JournalStoreConfig};
pub use memory::MemoryStore;
