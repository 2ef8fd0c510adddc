//! What can go wrong with a journal, and where.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// A place in the journal where bytes that should be there are missing, bad or in the wrong order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Number of the segment, as its file name says.
    pub segment: u64,
    /// Offset in the segment's file, in bytes.
    pub offset: u64,
    /// What is wrong there.
    pub kind: DamageKind,
    /// Numbers of the batches that cannot be read because of it; empty if none is missing.
    pub missing: Range<u64>,
    /// Numbers of the sessions that had something there and so cannot be read whole.
    pub sessions: Vec<u64>,
    /// Keys of the small values that had a version there and so cannot be trusted.
    pub keys: Vec<Vec<u8>>,
    /// Whether `sessions` and `keys` are known to be all. If not, a session that was touched there
    /// shows itself only by a gap in its sequence numbers.
    pub known: bool,
}

/// What is wrong at the place of a [`Damage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageKind {
    /// A batch whose checksum or framing does not hold, with good batches after it.
    BadBatch,
    /// Batches are not there at all: the file was cut, or a segment is missing.
    MissingBatches,
    /// A batch number comes twice, with different bytes.
    DifferingBatch,
    /// A batch stands behind one with a higher number.
    OutOfOrder,
    /// The file's own header names another segment, or the header cannot be read.
    SegmentHeader,
    /// A sealed segment's footer disagrees with the batches before it.
    Footer,
    /// A record's checksum holds, and it cannot be understood.
    BadRecord,
    /// A session's events skip a sequence number.
    EventGap,
    /// A session's event comes twice, with different bytes.
    DifferingEvent,
    /// Events of a session whose own record is nowhere.
    UnknownSession,
}

impl DamageKind {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::BadBatch => "a batch's checksum does not hold and good batches follow it",
            Self::MissingBatches => "batches are missing",
            Self::DifferingBatch => "a batch number comes twice with different bytes",
            Self::OutOfOrder => "a batch stands behind one with a higher number",
            Self::SegmentHeader => "the segment's header is unreadable or names another segment",
            Self::Footer => "the footer disagrees with the batches",
            Self::BadRecord => "a record cannot be understood",
            Self::EventGap => "a session's events skip a sequence number",
            Self::DifferingEvent => "an event comes twice with different bytes",
            Self::UnknownSession => "events of a session whose own record is missing",
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} offset {}: {}", self.segment, self.offset, self.kind.words())?;
        if !self.missing.is_empty() {
            write!(f, " (batches {} to {})", self.missing.start, self.missing.end - 1)?;
        }
        if !self.sessions.is_empty() {
            write!(f, ", session numbers {:?}", self.sessions)?;
        }
        if !self.known {
            write!(f, ", further sessions may be affected")?;
        }
        Ok(())
    }
}

/// An error of the journal. [`JournalError::code`] is stable; the text is for people.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Another process (or another store value in this one) has the directory open for writing.
    #[error(
        "the store at {} is in use{}: stop that process, or open the store for reading only",
        dir.display(),
        .pid.map(|pid| format!(" by process {pid}")).unwrap_or_default()
    )]
    StoreInUse {
        /// The store's directory.
        dir: PathBuf,
        /// The holder's process id, if its lock file says.
        pid: Option<u32>,
    },
    /// The directory was written by a newer version.
    #[error(
        "the store at {} has format {found}, this version reads up to {supported}: upgrade Playhouse to open it",
        dir.display()
    )]
    FormatUnsupported {
        /// The store's directory.
        dir: PathBuf,
        /// The version found.
        found: u64,
        /// The highest version this code reads.
        supported: u64,
    },
    /// The directory holds something that is no store, or whose format file cannot be read.
    #[error("{} is not a Playhouse store: {reason}", dir.display())]
    NotAStore {
        /// The directory.
        dir: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// The disk (or quota) is full. Nothing of the batch was accepted.
    #[error("no space left for the store at {}: free some and flush again", path.display())]
    StoreFull {
        /// The file that was being written.
        path: PathBuf,
    },
    /// The operating system refused an operation. Nothing of the batch was accepted.
    #[error("could not {action} {}: {source}", path.display())]
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Stored bytes are damaged. They are never guessed at.
    #[error("the store is damaged at {0}: restore it from a backup, or read the other sessions")]
    Corrupt(Box<Damage>),
    /// One batch would be larger than the format allows.
    #[error("a batch of {bytes} bytes is over the limit of {limit}: append fewer events at a time")]
    BatchTooLarge {
        /// Size of the refused batch, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        limit: u64,
    },
}

impl JournalError {
    /// A short stable word for the kind of error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::StoreInUse { .. } => "STORE_IN_USE",
            Self::FormatUnsupported { .. } => "FORMAT_UNSUPPORTED",
            Self::NotAStore { .. } => "STORE_NOT_FOUND",
            Self::StoreFull { .. } => "STORE_FULL",
            Self::Io { .. } => "STORE_IO",
            Self::Corrupt(_) => "STORE_CORRUPT",
            Self::BatchTooLarge { .. } => "BATCH_TOO_LARGE",
        }
    }

    /// Wraps an operating system error; a full disk or quota gets its own variant.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::StoreFull { path },
            _ => Self::Io { action, path, source },
        }
    }
}
