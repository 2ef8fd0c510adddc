//! Session stores for Playhouse: [`JournalStore`], the default, keeps sessions in a journal with an
//! index over it; [`MemoryStore`] keeps them for as long as it lives.
//!
//! Both keep the contract of [`Store`](playhouse_plugin_api::store::Store), which the same tests
//! check. The journal's bytes are described in `docs/journal.md`.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that meets an error has failed"))]

#[cfg(any(test, feature = "faults"))]
mod fault;
mod index;
pub mod journal;
mod journal_store;
mod kind;
mod memory;
mod verify;

#[cfg(any(test, feature = "testing"))]
pub mod contract;

#[cfg(any(test, feature = "faults"))]
pub use fault::{FaultMoment, FaultOp, FaultPoint};
pub use journal_store::{CompactReport, JournalReader, JournalStore, JournalStoreConfig, compact};
pub use kind::{StoreConfig, StoreKind, open_reader};
pub use memory::MemoryStore;
pub use verify::{Progress, VerifyReport, verify};
