//! Session stores for Playhouse: the journal with a sled index, and memory.

mod index;
pub mod journal;
mod journal_store;
mod memory;

#[cfg(test)]
mod contract;

pub use journal_store::{JournalReader, JournalStore, JournalStoreConfig, VerifyReport, verify};
pub use memory::MemoryStore;
