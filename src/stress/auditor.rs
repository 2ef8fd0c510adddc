//! Compares what is stored with what was promised, while the store fails.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use playhouse_plugin_api::store::{StoreError, StoreReader};

use super::{fleet::Fleet, report::Fault};
use crate::testing::checks;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Audits one session after the other until the run is over. What is marked as written is stored, as
/// it stands in the log; so is what is marked as durable.
pub(super) async fn audit(fleet: Arc<Fleet>, mut rng: Rng) {
    loop {
        tokio::select! {
            biased;
            () = fleet.over.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
        let session = {
            let mut entries = fleet.ledger.entries();
            entries.audits += 1;
            let at = rng.usize(0..entries.agents.len().max(1));
            entries.agents.values().nth(at).map(|agent| agent.session().clone())
        };
        let Some(session) = session else { continue };
        let marks = *session.marks().borrow();
        let promised = usize::try_from(marks.written.max(marks.durable)).unwrap_or(usize::MAX);
        let stored = match fleet.store.read(session.id()).await {
            Ok(stored) => Some(stored),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => {
                fleet.ledger.fault(Fault::of(session.id(), format!("it cannot be read: {error}")));
                continue;
            }
        };
        if let Err(fault) = checks::kept(&session, stored.as_ref(), promised) {
            let text = format!("after {promised} events were written: {fault}");
            fleet.ledger.fault(Fault::of(session.id(), text));
        }
    }
}
