//! How jobs end with their owner, and all with the service.

use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::{agent::Agent, scope::ScopeId};

use super::Jobs;
use crate::JobId;

impl Jobs {
    /// Ends an owner's jobs with it: its disposal waits for that.
    pub(super) fn guard(&self, owner: &Agent) {
        let (jobs, scope) = (self.clone(), owner.scope().clone());
        let (closing, ending) = (scope.cancel_token().clone(), self.0.scope.cancel_token().clone());
        owner.scope().spawn_to_end(async move {
            tokio::select! {
                () = closing.cancelled() => jobs.end(Some(scope.id())).await,
                // The service ends all jobs itself.
                () = ending.cancelled() => {}
            }
        });
    }

    /// Cancels the jobs of an owner, or with `None` all, waits for their ends and forgets them. What
    /// has not ended after the grace is dropped.
    pub(super) async fn end(&self, owner: Option<ScopeId>) {
        let unwanted = self.table().registry.end(owner);
        for id in &unwanted {
            self.cancel_or_abandon(id);
        }
        let mut ends = self.0.ends.subscribe();
        let mut quiet = async || {
            while self.table().registry.pending(owner) > 0 {
                // The sender is this service's.
                let _ = ends.changed().await;
            }
        };
        // Again and again: one that was just being begun is at work only now.
        while tokio::time::timeout(self.0.world.limits.grace, quiet()).await.is_err() {
            let live = self.table().registry.live(owner);
            for id in live {
                tracing::warn!(job = %id, "a job does not end; its work is dropped");
                self.abandon(&id);
            }
        }
        // What producers handed over is dropped outside the lock: it may call back.
        let (mut gone, mut agents) = (Vec::new(), Vec::new());
        {
            let mut table = self.table();
            for id in table.registry.forget(owner) {
                gone.extend(table.live.remove(&id));
            }
            match owner {
                Some(scope) => agents.extend(table.owners.remove(&scope)),
                None => agents.extend(table.owners.drain().map(|(_, agent)| agent)),
            }
        }
        drop(gone);
        let agent = agents.pop().filter(|_| owner.is_some());
        self.changed(agent);
    }

    pub(super) fn cancel_or_abandon(&self, id: &JobId) {
        let running = self.table().live.get(id).cloned();
        let asked = running.as_ref().map_or(Ok(()), |running| running.ask(Some("disposed")));
        if let Err(failure) = asked {
            tracing::warn!(job = %id, %failure, "a job cannot be cancelled; its work may go on");
            self.abandon(id);
        }
    }

    fn abandon(&self, id: &JobId) {
        if let Some(running) = self.table().live.get(id) {
            running.abandon.cancel(CancelCause::Disposed);
        }
    }
}
