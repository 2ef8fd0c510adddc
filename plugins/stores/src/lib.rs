//! Session stores for Playhouse: [`JournalStore`], the default, keeps sessions in a journal with an
//! index over it; [`MemoryStore`] keeps them for as long as it lives.
//!
//! Both keep the contract of [`Store`](playhouse_plugin_api::store::Store), which the same tests
//! check. The journal's bytes are described in `docs/journal.md`.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that meets an error has failed"))]

mod compact;
mod index;
pub mod journal;
mod journal_store;
mod kind;
mod memory;
mod salvage;
mod verify;

#[cfg(test)]
mod contract;

pub use compact::compact_store;
pub use journal_store::{
    CompactReport, JournalReader, JournalStore, JournalStoreConfig, OnProgress, OpenProgress,
    OpenStep, compact,
};
pub use kind::{StoreConfig, StoreKind, open_reader};
pub use memory::MemoryStore;
pub use salvage::{Partial, SalvageReport, salvage};
pub use verify::{Progress, VerifyReport, counted, verify};
