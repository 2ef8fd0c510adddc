//! Claims: who may write which session.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use playhouse_messages::{header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{Revision, StoreError};

/// The right to write one session, and how far it is stored.
pub(crate) struct Claim {
    pub(crate) id: SessionId,
    pub(crate) header: Arc<SessionHeader>,
    pub(crate) inherited: u64,
    /// Whether it only keeps others away while the session is looked up: nothing to show yet.
    pub(crate) placeholder: bool,
    /// As long as nothing of it is stored.
    pub(crate) unstored: Revision,
    stored: Mutex<Stored>,
    /// The serial of the last part of a tail that was submitted.
    submitted: AtomicU32,
}

/// How far a claimed session is stored.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stored {
    /// The store's number for it; `None` while nothing of it is stored.
    pub(crate) number: Option<u64>,
    /// The seq that the next new event must have.
    pub(crate) next_seq: u64,
    /// The serial of the last part of a tail.
    pub(crate) tail_serial: u32,
}

impl Claim {
    pub(crate) fn new(header: Arc<SessionHeader>, inherited: u64, stored: Stored) -> Self {
        Self {
            unstored: Revision::unstored(),
            id: header.id.clone(),
            header,
            inherited,
            placeholder: false,
            submitted: AtomicU32::new(stored.tail_serial),
            stored: Mutex::new(stored),
        }
    }

    /// A claim that only keeps others away.
    pub(crate) fn placeholder(id: &SessionId) -> Self {
        let header = Arc::new(SessionHeader::new(id.clone(), 0));
        Self { placeholder: true, ..Self::new(header, 0, Stored::default()) }
    }

    pub(crate) fn stored(&self) -> MutexGuard<'_, Stored> {
        // Two numbers, set together: whole even if a holder has panicked.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The serial of the next part of a tail.
    pub(crate) fn next_serial(&self) -> u32 {
        self.submitted.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    pub(crate) fn header_json(&self) -> Result<Bytes, StoreError> {
        let text = serde_json::to_vec(&*self.header);
        text.map(Bytes::from).map_err(|error| StoreError::Argument(format!("header: {error}")))
    }
}

/// What every store asks of a value's key.
pub(crate) fn check_key(key: &str) -> Result<(), StoreError> {
    if key.is_empty() || key.len() > ID_BYTES_MAX {
        let text = format!("a key must have 1 to {ID_BYTES_MAX} bytes");
        return Err(StoreError::Argument(text));
    }
    Ok(())
}

/// What every store asks of a new session.
pub(crate) fn check_new(header: &SessionHeader, inherited: u64) -> Result<(), StoreError> {
    header.check().map_err(|error| StoreError::Argument(error.to_string()))?;
    if !header.is_seeded && inherited > 0 {
        let text = "inherited_event_count must be 0 unless the header's `isSeeded` is true";
        return Err(StoreError::Argument(text.to_owned()));
    }
    if header.id.as_str().len() > ID_BYTES_MAX {
        let text = format!("a session id may have at most {ID_BYTES_MAX} bytes");
        return Err(StoreError::Argument(text));
    }
    Ok(())
}

/// The longest session id or key, in bytes.
pub(crate) const ID_BYTES_MAX: usize = 4096;
