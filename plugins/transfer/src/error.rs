//! What keeps a session from being exported or imported.

use playhouse_messages::{event::Seq, session_state::LoadError};
use playhouse_plugin_api::{attachment::AttachmentError, store::StoreError};

use crate::lines::LineFault;

/// A session's lines cannot be imported: where, and why. Nothing of the session was stored.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("line {line}{}: {fault}", place(*.seq))]
pub struct ImportError {
    /// The line, from 1.
    pub line: u64,
    /// The event at fault, by the number that it has in the file.
    pub seq: Option<Seq>,
    /// What is wrong.
    #[source]
    pub fault: ImportFault,
}

fn place(seq: Option<Seq>) -> String {
    seq.map(|seq| format!(", event {seq}")).unwrap_or_default()
}

impl ImportError {
    pub(crate) fn new(line: u64, fault: impl Into<ImportFault>) -> Self {
        Self { line, seq: None, fault: fault.into() }
    }

    pub(crate) fn at(line: u64, seq: Seq, fault: impl Into<ImportFault>) -> Self {
        Self { line, seq: Some(seq), fault: fault.into() }
    }

    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match &self.fault {
            ImportFault::Line(_) => "IMPORT_LINE",
            ImportFault::Json(_) => "IMPORT_JSON",
            ImportFault::NoHeader => "IMPORT_NO_HEADER",
            ImportFault::Header(_) => "IMPORT_HEADER",
            ImportFault::Unsupported(_) => "FORMAT_UNSUPPORTED",
            ImportFault::Sequence { .. } => "SEQUENCE_MISMATCH",
            ImportFault::Incomplete { .. } => "IMPORT_INCOMPLETE",
            ImportFault::Record(_) => "IMPORT_RECORD",
            ImportFault::Event(_) => "INVALID_EVENT",
            ImportFault::Load(fault) => fault.code(),
        }
    }
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportFault {
    /// It is no line of text that can be taken.
    #[error(transparent)]
    Line(#[from] LineFault),
    /// It is no JSON object, or one nested too deeply.
    #[error("it is no JSON object that can be read: {0}")]
    Json(String),
    /// An event comes before any header.
    #[error("a session begins with its header, `{{\"type\":\"session\", ...}}`")]
    NoHeader,
    /// The header cannot be used.
    #[error("the session header: {0}")]
    Header(String),
    /// A format, or an event of one, that cannot be mapped.
    #[error("{0}")]
    Unsupported(String),
    /// An event is missing, repeated or misplaced.
    #[error("the event says seq {found}, and {due} was due")]
    Sequence {
        /// The seq that was due.
        due: Seq,
        /// The one that is there.
        found: Seq,
    },
    /// The session ends before all that its header announces.
    #[error("the header announces {announced} {what}, and there are {found}: the file was cut")]
    Incomplete {
        /// Events, attachments or tail parts.
        what: &'static str,
        /// How many there should be.
        announced: u64,
        /// How many there are.
        found: u64,
    },
    /// A tail or an attachment record cannot be used.
    #[error("{0}")]
    Record(String),
    /// An event is malformed.
    #[error("{0}")]
    Event(String),
    /// An event cannot stand where it stands.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Why an export or the storing of an import failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An image could not be kept.
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    /// Writing failed.
    #[error("writing the export: {0}")]
    Write(#[from] std::io::Error),
}

impl TransferError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Store(error) => error.code(),
            Self::Attachment(error) => error.code(),
            Self::Write(_) => "IO",
        }
    }
}
