//! Claims: who may write which session.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use playhouse_messages::header::SessionHeader;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{Revision, SessionStat, StoreError, StoredSession};

/// The right to write one session.
pub(crate) struct Claim {
    pub(crate) id: SessionId,
    pub(crate) header: Arc<SessionHeader>,
    pub(crate) inherited: u64,
    /// Whether there is something to show of a session that is not stored.
    is_new: bool,
    stored: AtomicBool,
    unstored: Revision,
}

impl Claim {
    /// Of a session that is yet to be stored.
    pub(crate) fn new(header: Arc<SessionHeader>, inherited: u64) -> Self {
        let stored = AtomicBool::new(false);
        let unstored = Revision::unstored();
        Self { id: header.id.clone(), header, inherited, is_new: true, stored, unstored }
    }

    /// Of a session that is stored, or looked for: it keeps others away.
    pub(crate) fn held(id: &SessionId) -> Self {
        let header = Arc::new(SessionHeader::new(id.clone(), 0));
        let stored = AtomicBool::new(true);
        let unstored = Revision::unstored();
        Self { id: id.clone(), header, inherited: 0, is_new: false, stored, unstored }
    }

    pub(crate) fn is_stored(&self) -> bool {
        self.stored.load(Ordering::Acquire)
    }

    pub(crate) fn set_stored(&self) {
        self.stored.store(true, Ordering::Release);
    }

    pub(crate) fn session(&self) -> StoredSession {
        StoredSession {
            header: Arc::clone(&self.header),
            inherited_event_count: self.inherited,
            events: Vec::new(),
            tail: None,
        }
    }

    pub(crate) fn stat(&self) -> SessionStat {
        let (header, revision) = (Arc::clone(&self.header), self.unstored.clone());
        SessionStat { header, event_count: 0, size_bytes: 0, revision }
    }
}

/// All claims of a store.
#[derive(Default)]
pub(crate) struct Claims(Mutex<HashMap<SessionId, Arc<Claim>>>);

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Claim>>> {
        // Each change is one call on the map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a claim, if nobody has one.
    pub(crate) fn enter(
        self: &Arc<Self>,
        claim: Claim,
        taken: impl FnOnce(SessionId) -> StoreError,
    ) -> Result<Entered, StoreError> {
        let mut claims = self.lock();
        if claims.contains_key(&claim.id) {
            return Err(taken(claim.id));
        }
        let claim = Arc::new(claim);
        claims.insert(claim.id.clone(), Arc::clone(&claim));
        Ok(Entered { claims: Arc::clone(self), claim })
    }

    /// The claim on a session of which nothing was stored when it was claimed.
    pub(crate) fn new_session(&self, id: &SessionId) -> Option<Arc<Claim>> {
        self.lock().get(id).filter(|claim| claim.is_new).cloned()
    }

    /// Those of which nothing is stored.
    pub(crate) fn unstored(&self) -> Vec<Arc<Claim>> {
        self.lock().values().filter(|claim| !claim.is_stored()).cloned().collect()
    }
}

/// A claim that is given back when this is dropped.
pub(crate) struct Entered {
    claims: Arc<Claims>,
    pub(crate) claim: Arc<Claim>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.claims.lock().remove(&self.claim.id);
    }
}
