//! What an import did to a session.

use std::{collections::BTreeMap, fmt};

use playhouse_messages::{event::Seq, invariants::Violation};
use serde::Serialize;

/// Whose log was met, and in which version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "format", content = "version", rename_all = "lowercase")]
pub enum SourceFormat {
    /// Playhouse's own.
    Playhouse(u64),
    /// The reference harness's.
    Reference(u64),
}

impl fmt::Display for SourceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Playhouse(version) => write!(f, "format version {version}"),
            Self::Reference(version) => write!(f, "the reference's format version {version}"),
        }
    }
}

/// One thing that was done.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "did", content = "what", rename_all = "lowercase")]
pub enum Note {
    /// Events of this kind, which Playhouse does not know, were kept and marked ignorable.
    Kept(String),
    /// Something has another shape now.
    Rewritten(String),
    /// Something was added that the old format kept elsewhere.
    Added(String),
    /// Something is gone.
    Dropped(String),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(kind) => write!(f, "kept `{kind}`, marked ignorable"),
            Self::Rewritten(what) => write!(f, "rewrote {what}"),
            Self::Added(what) => write!(f, "added {what}"),
            Self::Dropped(what) => write!(f, "dropped {what}"),
        }
    }
}

/// What an import met and did.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The format that was met.
    pub source: SourceFormat,
    /// What was done, and how often.
    pub notes: BTreeMap<Note, u64>,
    /// The first event that breaks an invariant of Playhouse's own logs, which does not keep the session
    /// from loading.
    pub violation: Option<Violation>,
    /// The old seqs of events that have another one now, as (old, new); empty if none has.
    pub renumbered: Vec<(Seq, Seq)>,
}

impl Report {
    pub(crate) fn new(source: SourceFormat) -> Self {
        Self { source, notes: BTreeMap::new(), violation: None, renumbered: Vec::new() }
    }

    pub(crate) fn note(&mut self, note: Note) {
        *self.notes.entry(note).or_default() += 1;
    }

    pub(crate) fn rewrote(&mut self, what: &str) {
        self.note(Note::Rewritten(what.to_owned()));
    }
}
