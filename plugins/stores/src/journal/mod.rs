//! The journal: one append-only log of batches that holds every session of a store.
//!
//! It is the truth; everything else in a store's directory can be rebuilt from it. The bytes are
//! described in `docs/journal.md`. A journal guarantees:
//!
//! - A batch is read back whole or not at all.
//! - A batch that [`Writer::sync`] covered survives power loss; one that [`Writer::write`] took
//!   survives the death of the process.
//! - At most one batch is not synced. So after a crash only the last batch can be bad, and a bad one
//!   with good ones behind it is damage, which is named and never guessed away.
//! - After a failed sync or a short write the segment is not used again.

mod disk;
mod entry;
mod error;
mod format;
mod format_file;
mod map;
mod reader;
mod record;
mod recovery;
mod scan;
mod segments;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub use disk::{Disk, DiskFile, Held, LockOutcome, RealDisk};
pub use entry::{Entry, Kind};
pub use error::{Damage, DamageKind, JournalError};
pub(crate) use format::Bytes;
pub use format::{Checksum, FORMAT_VERSION, StoreId};
pub use format_file::{StoreFormat, read_format};
pub use map::{Block, Map, Place, SessionMap, TailMap};
pub use reader::Reader;
pub use record::Record;
pub use recovery::{Depth, Recovered, recover};
pub use segments::SegmentProgress;
pub(crate) use segments::{journal_bytes, sealed_end};
pub(crate) use writer::write_all;
pub use writer::{JournalConfig, Moved, Sealed, Urgency, Writer, Written};
