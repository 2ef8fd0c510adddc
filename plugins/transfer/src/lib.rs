//! Export and import of sessions as JSON lines.
//!
//! [`export`] writes a session exactly as it is stored, with the stream that a crash left unsettled and
//! the images that it shows; several sessions may follow one another in a file. [`Sessions`] reads such
//! files by the session, [`import`] maps one session's lines (also those of the reference harness,
//! format versions 0, 4 and 5) and [`store`] puts it into any store. What is exported, imported and
//! exported again is the same, byte for byte. `docs/transfer.md` describes the format.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that meets an error has failed"))]

mod error;
mod export;
mod import;
mod lines;
mod native;
mod record;
mod reference;
mod report;
mod store;
#[cfg(test)]
mod tests;

pub use error::{ImportError, ImportFault, TransferError};
pub use export::{Exported, export, with_descendants};
pub use import::{Imported, ImportedAttachment, import};
pub use lines::{LINE_BYTES_MAX, Line, LineFault, Sessions};
pub use report::{Note, Report, SourceFormat};
pub use store::{Stored, store};
