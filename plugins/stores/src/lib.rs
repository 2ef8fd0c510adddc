//! Session stores for Playhouse: [`JournalStore`], the default, keeps sessions in a journal with an
//! index over it; [`JsonlStore`] keeps a readable file a session; [`MemoryStore`] keeps them for as long as
//! it lives; with the feature `sqlite`, `SqliteStore` keeps them in one database.
//!
//! All keep the contract of [`Store`](playhouse_plugin_api::store::Store), which the same tests
//! check. The bytes are described in `docs/journal.md` and `docs/jsonl.md`.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that meets an error has failed"))]

#[cfg(any(test, feature = "faults"))]
mod fault;
mod index;
pub mod journal;
mod journal_store;
mod jsonl;
mod kind;
mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;
mod verify;

#[cfg(any(test, feature = "testing"))]
pub mod contract;

#[cfg(any(test, feature = "faults"))]
pub use fault::{FaultMoment, FaultOp, FaultPoint};
pub use journal_store::{CompactReport, JournalReader, JournalStore, JournalStoreConfig, compact};
pub use jsonl::{JSONL_FORMAT_VERSION, JsonlConfig, JsonlReader, JsonlStore};
pub use kind::{StoreConfig, StoreKind, open_reader};
pub use memory::MemoryStore;
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteConfig, SqliteReader, SqliteStore, compact_sqlite};
pub use verify::{Progress, VerifyReport, verify};
