//! Session stores for Playhouse: [`JournalStore`], the default, keeps sessions in a journal with an
//! index over it; [`MemoryStore`] keeps them for as long as it lives; with the feature `sqlite`,
//! `SqliteStore` keeps them in one database.
//!
//! Both keep the contract of [`Store`](playhouse_plugin_api::store::Store), which the same tests
//! check. The journal's bytes are described in `docs/journal.md`.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that meets an error has failed"))]

mod index;
pub mod journal;
mod journal_store;
mod kind;
mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;
mod verify;

#[cfg(test)]
mod contract;

pub use journal_store::{CompactReport, JournalReader, JournalStore, JournalStoreConfig, compact};
pub use kind::{StoreConfig, StoreKind, open_reader};
pub use memory::MemoryStore;
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteConfig, SqliteReader, SqliteStore, compact_sqlite};
pub use verify::{Progress, VerifyReport, verify};
