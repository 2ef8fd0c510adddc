//! How a member comes to be.

use std::sync::Arc;

use playhouse_messages::{event::CancelCause, id::SessionId};
use playhouse_plugin_api::cancel::CancelToken;
use playhouse_subagents::{
    ChildError, ChildRequest, ContinuationError, StartContinuable, fork::FORK, spawn::SPAWN,
};
use tokio::sync::oneshot;

use crate::{
    error::TeamError,
    lead::Lead,
    record::{Member, Record, TeamContext},
    roster::NewMember,
};

/// Gives a spawn up whose caller has gone.
struct GiveUp(CancelToken);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.cancel(CancelCause::Parent);
    }
}

impl Lead {
    /// Starts a member. The Lead owns the spawn: it is wound up in order also if the caller goes.
    pub async fn spawn(
        self: &Arc<Self>,
        new: NewMember,
        cancel: &CancelToken,
    ) -> Result<Member, TeamError> {
        self.admitted()?;
        // Fires when the Lead goes, too.
        let token = self.scope.cancel_token().child();
        let (lead, given_up) = (self.clone(), GiveUp(token.clone()));
        let (reply, mut spawned) = oneshot::channel();
        self.scope.spawn_to_end(async move {
            let _ = reply.send(lead.provision(new, token).await);
        });
        let spawned = tokio::select! {
            biased;
            spawned = &mut spawned => spawned,
            () = cancel.cancelled() => {
                drop(given_up);
                spawned.await
            }
        };
        spawned.unwrap_or(Err(TeamError::Cancelled))
    }

    async fn provision(
        self: &Arc<Self>,
        new: NewMember,
        cancel: CancelToken,
    ) -> Result<Member, TeamError> {
        let id = self.world.ids.session();
        let provider = match new.context {
            TeamContext::Fresh => SPAWN,
            TeamContext::Fork => FORK,
        };
        self.transact(|team| {
            let max = self.config.max_members;
            let member = team.new_member(id.clone(), &new, provider, max)?;
            Ok((Some(Record::Member(member)), ()))
        })
        .await?;
        let name = new.name.clone();
        let cause = match self.start(&id, provider, new, cancel).await {
            Ok(()) => match self.settle(&id, None).await {
                Ok(member) => return Ok(member),
                Err(error) => error,
            },
            Err(cause) => {
                let settled = self.settle(&id, Some(cause.to_string())).await;
                settled.err().unwrap_or(TeamError::Provisioning { name, cause: Box::new(cause) })
            }
        };
        // What was started and is no member must not go on.
        let ended = self.continuations.drain_children(&self.agent, std::slice::from_ref(&id)).await;
        if let Err(error) = ended {
            tracing::warn!(team = %self.id(), child = %id, %error, "a member that failed");
        }
        Err(cause)
    }

    /// Starts the child; its session holds the prompt **durably** when this returns.
    async fn start(
        &self,
        id: &SessionId,
        provider: &str,
        new: NewMember,
        cancel: CancelToken,
    ) -> Result<(), ContinuationError> {
        let label = new.description.clone();
        let mut request = ChildRequest::new(&self.agent, "").cancelled_by(cancel);
        (request.prompt, request.options, request.persona) = (new.prompt, new.options, new.persona);
        let start = StartContinuable { label, child_id: Some(id.clone()), request };
        let started = self.continuations.start(provider, start).await?;
        let lost = |why: String| {
            let failure = playhouse_messages::chunk::Failure::new("TEAM_PROMPT_LOST", why);
            Err(ContinuationError::from(ChildError::Start(failure)))
        };
        match self.holds(id, &started.message).await {
            Ok(true) => Ok(()),
            Ok(false) => lost("its session does not hold its prompt".to_owned()),
            Err(error) => lost(error.to_string()),
        }
    }

    /// Records what became of a member, unless somebody else has.
    pub async fn settle(
        self: &Arc<Self>,
        id: &SessionId,
        failed: Option<String>,
    ) -> Result<Member, TeamError> {
        self.transact(|team| {
            let member = team.settled_member(id, failed)?;
            Ok((Some(Record::Member(member.clone())), member))
        })
        .await
    }
}
