//! What one call is answered, and the JSON that says so.

use std::path::PathBuf;

use playhouse_messages::chunk::{Failure, StreamChunk};
use serde::Deserialize;

use super::{ReplayError, placeholder};

/// The answer to one call.
///
/// In JSON `{"chunks":[..]}`, `{"throw":{"chunks":[..],"message":"..","code":".."}}` or
/// `{"hang":{"chunks":[..],"readyFile":".."}}`, chunks in the shape in which logs keep them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", rename_all_fields = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub enum Entry {
    /// These chunks.
    Chunks(Vec<StreamChunk>),
    /// These chunks, then a failure.
    Throw {
        /// What comes first.
        #[serde(default)]
        chunks: Vec<StreamChunk>,
        /// The failure's message.
        message: String,
        /// The failure's code.
        code: String,
        /// The HTTP status, if there shall be one.
        status: Option<u16>,
        /// How long the provider asks to wait, in milliseconds.
        provider_retry_after_ms: Option<u64>,
    },
    /// These chunks, then nothing until the call is cancelled.
    Hang {
        /// What comes first.
        #[serde(default)]
        chunks: Vec<StreamChunk>,
        /// A file that is made once the call hangs, for another process to wait for.
        ready_file: Option<PathBuf>,
    },
}

/// How an answer goes on after its chunks.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Then {
    End,
    Throw(Failure),
    Hang(Option<PathBuf>),
}

impl Entry {
    /// Fails with this after these chunks.
    pub(super) fn failing(chunks: Vec<StreamChunk>, failure: &Failure) -> Self {
        Self::Throw {
            chunks,
            message: failure.message.clone(),
            code: failure.code.clone(),
            status: failure.status,
            provider_retry_after_ms: failure.provider_retry_after_ms,
        }
    }

    pub(super) fn chunks(&self) -> &[StreamChunk] {
        match self {
            Self::Chunks(chunks) | Self::Throw { chunks, .. } | Self::Hang { chunks, .. } => chunks,
        }
    }

    pub(super) fn then(&self) -> Then {
        match self {
            Self::Chunks(_) => Then::End,
            Self::Throw { message, code, status, provider_retry_after_ms, .. } => {
                Then::Throw(Failure {
                    status: *status,
                    provider_retry_after_ms: *provider_retry_after_ms,
                    ..Failure::new(code, message)
                })
            }
            Self::Hang { ready_file, .. } => Then::Hang(ready_file.clone()),
        }
    }
}

/// What a sidecar says: a whole script, or changes of a recorded one.
pub(super) enum Sidecar {
    Script(Vec<Entry>),
    Patches(Patches),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Patches {
    pub(super) patches: Vec<Patch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Patch {
    pub(super) at: usize,
    pub(super) entry: Entry,
}

impl Sidecar {
    /// Reads a sidecar, and checks the placeholders in it.
    pub(super) fn read(json: &str) -> Result<Self, ReplayError> {
        let refuse = |reason: String| ReplayError::Sidecar { reason };
        // Told apart by hand, so that the parser's words are about the shape that was meant.
        let sidecar = if json.trim_start().starts_with('[') {
            serde_json::from_str(json).map(Self::Script)
        } else {
            serde_json::from_str(json).map(Self::Patches)
        };
        let sidecar = sidecar.map_err(|fault| refuse(fault.to_string()))?;
        for (at, entry) in sidecar.entries() {
            placeholder::check(entry.chunks())
                .map_err(|reason| refuse(format!("entry {at}: {reason}")))?;
        }
        Ok(sidecar)
    }

    fn entries(&self) -> Box<dyn Iterator<Item = (usize, &Entry)> + '_> {
        match self {
            Self::Script(entries) => Box::new(entries.iter().enumerate()),
            Self::Patches(patches) => {
                Box::new(patches.patches.iter().map(|patch| (patch.at, &patch.entry)))
            }
        }
    }
}
