//! The office: what a store and its session writers share.

use std::sync::Arc;

use futures::future::BoxFuture;
use playhouse_plugin_api::store::StoreError;
use ractor::ActorRef;

use super::claim::Claim;
use super::core::Core;
use super::job::{Job, Outcome};
use super::keeper::KeeperMessage;
use super::tray::Tray;

/// When the last store value, session writer and unfinished call is gone, the actors end.
pub(crate) struct Office {
    pub(crate) core: Arc<Core>,
    pub(crate) tray: Arc<Tray>,
    pub(crate) keeper: ActorRef<KeeperMessage>,
}

impl Office {
    /// Queues a job now; the future resolves when it is done.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> BoxFuture<'static, Outcome> {
        let done = self.tray.submit(job);
        let office = Arc::clone(self);
        Box::pin(async move {
            let outcome = done.await;
            drop(office);
            outcome
        })
    }

    /// Gives a claim back, if it is still this one.
    pub(crate) fn release(&self, claim: &Arc<Claim>) {
        let mut ledger = self.core.ledger();
        if ledger.claims.get(&claim.id).is_some_and(|held| Arc::ptr_eq(held, claim)) {
            ledger.claims.remove(&claim.id);
        }
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.tray.abolish(StoreError::Closed);
        // Its committer ends with it, and the desk when that is gone.
        self.keeper.stop(None);
    }
}
