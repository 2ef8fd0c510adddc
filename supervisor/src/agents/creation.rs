//! Making agents: one transaction, rolled back whole.
//!
//! The order is that of the core specification, 6.1 and 6.2: claim the id and the storage, build the
//! session, start the actors with input held back, run the setup, go live, tell the listeners,
//! release the input.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::FutureExt;
use playhouse_messages::{
    chunk::Failure,
    event::CancelCause,
    header::SessionHeader,
    id::SessionId,
    json::INTEGER_MAX,
    log::Log,
    protocol::{AgentMessage, AgentSupervisorMessage, AgentsRootMessage},
    repair::{UnsettledTail, construction_marker},
    session::{Command, Reply, SessionCore},
};
use playhouse_plugin_api::{
    agent::{Agent, AgentCell, AgentParts, Disposal},
    cancel::CancelToken,
    creation::{AgentHandle, NewAgent},
    fork::ForkPoint,
    points::{Created, CreatedFrom},
    registry::{Making, Reservation, ReserveError},
    scope::Scope,
    session::{Session, SessionCell},
    store::{SessionWriter, StoreError, StoredSession, StoredTail},
};
use ractor::{RpcReplyPort, rpc::CallResult};

use super::{
    blueprint,
    disposal::{self, store_failure},
    maker::{Maker, shutting_down},
    standing::{Standing, take_place},
};

/// What the session of a new agent is made from.
pub(crate) enum Basis {
    /// Nothing, or the seed of the request.
    Fresh,
    /// What is stored under the id.
    Stored,
    /// Another session's history.
    Fork(ForkPoint),
}

impl Basis {
    fn source(&self) -> CreatedFrom {
        match self {
            Self::Fresh | Self::Fork(_) => CreatedFrom::Startup,
            Self::Stored => CreatedFrom::Resume,
        }
    }
}

/// A session that was claimed and built, and is not in the world yet.
pub(super) struct Prepared {
    pub(super) core: SessionCore,
    pub(super) handle: Option<Arc<dyn SessionWriter>>,
    /// How many of its events are durable.
    pub(super) stored: u64,
    pub(super) inherited_event_count: u64,
}

/// One creation under way.
pub(super) struct Creation<'a> {
    pub(super) maker: &'a Maker,
    pub(super) id: SessionId,
    pub(super) owner: Scope,
    cancel: CancelToken,
}

impl Creation<'_> {
    pub(super) async fn run(
        maker: &Maker,
        new: NewAgent,
        basis: Basis,
        cancel: CancelToken,
    ) -> Result<Agent, Failure> {
        let world = &maker.world;
        let new = blueprint::applied(world, new)?;
        let id = match (&new.id, &basis) {
            (Some(id), _) => id.clone(),
            (None, Basis::Fresh | Basis::Fork(_)) => world.ids.session(),
            (None, Basis::Stored) => {
                return Err(Failure::new("INVALID_ARGUMENT", "resume needs a session id"));
            }
        };
        let owner = new.owner.clone().unwrap_or_else(|| world.scope.clone());
        let creation = Creation { maker, id, owner, cancel };
        creation.check(&new)?;
        let making = Making {
            lineage: world.agents.lineage_below(new.runtime_parent.as_ref()),
            owner: creation.owner.clone(),
            cancel: creation.cancel.clone(),
        };
        let reservation = world.agents.reserve(creation.id.clone(), making).map_err(|refused| {
            let code = match (&refused, &basis) {
                (ReserveError::Taken { .. }, Basis::Stored) => "SESSION_ALREADY_OWNED",
                _ => refused.code(),
            };
            Failure::new(code, refused.to_string())
        })?;
        // The owner may have disposed what it owns while this one was not yet among it.
        creation.wanted()?;
        let prepared = match &basis {
            Basis::Fresh => creation.fresh(&new).await?,
            Basis::Stored => creation.stored(&new).await?,
            Basis::Fork(at) => creation.forked(&new, at).await?,
        };
        creation.publish(new, basis.source(), prepared, reservation).await
    }

    fn check(&self, new: &NewAgent) -> Result<(), Failure> {
        if self.id.as_str().is_empty() {
            return Err(Failure::new("INVALID_ARGUMENT", "a session id must not be empty"));
        }
        if new.options.max_tokens.is_some_and(|max| max == 0 || max > INTEGER_MAX) {
            let text = "agent maxTokens must be a positive safe integer";
            return Err(Failure::new("INVALID_ARGUMENT", text));
        }
        self.wanted()
    }

    /// Whether somebody still wants the agent, and could own it.
    fn wanted(&self) -> Result<(), Failure> {
        let aborted = |why: &str| {
            Err(Failure::new("ABORTED", format!("agent \"{}\" creation aborted: {why}", self.id)))
        };
        if self.maker.means.ended.is_cancelled() {
            return Err(shutting_down());
        }
        if !self.owner.is_open() {
            return aborted("its owner is closed");
        }
        if self.cancel.is_cancelled() {
            return aborted("it was cancelled");
        }
        Ok(())
    }

    /// Awaits until the creation is given up, which makes an error of it.
    pub(super) async fn while_wanted<T>(
        &self,
        wait: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let done = tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            () = self.maker.means.ended.cancelled() => None,
            () = self.owner.cancel_token().cancelled() => None,
            done = wait => Some(done),
        };
        match done {
            Some(done) => Ok(done),
            None => Err(self.wanted().err().unwrap_or_else(shutting_down)),
        }
    }

    /// A claim that arrives after the creation was given up is given back.
    pub(super) async fn claim<T, F>(
        &self,
        open: impl Future<Output = Result<T, StoreError>> + Send + 'static,
        give_back: impl FnOnce(T) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let mut opening = self.maker.means.claims.spawn(open);
        match self.while_wanted(&mut opening).await {
            Ok(Ok(opened)) => opened.map_err(store_failure),
            Ok(Err(fault)) => Err(Failure::new("PANIC", fault.to_string())),
            Err(given_up) => {
                self.maker.means.claims.spawn(async move {
                    if let Ok(Ok(late)) = opening.await {
                        give_back(late).await;
                    }
                });
                Err(given_up)
            }
        }
    }

    async fn fresh(&self, new: &NewAgent) -> Result<Prepared, Failure> {
        let world = &self.maker.world;
        let now = u64::try_from(world.clock.now_ms()).unwrap_or(0);
        let mut header = SessionHeader::new(self.id.clone(), now);
        header.cwd.clone_from(&new.cwd);
        header.parent_session.clone_from(&new.runtime_parent);
        header.origin = new.origin;
        header.delegation_depth = new.delegation_depth;
        header.agent_preset.clone_from(&new.agent_preset);
        header.blueprint.clone_from(&new.blueprint);
        header.check().map_err(|fault| Failure::new("INVALID_ARGUMENT", fault.to_string()))?;
        let header = Arc::new(header);
        let log: Log = new.seed.iter().flatten().cloned().collect();
        let mut core = self.load(header.clone(), log)?;
        if new.seed.is_some() {
            self.mark(&mut core)?;
        }
        let handle = match world.store.clone() {
            None => None,
            Some(store) => {
                let create = async move { store.create(&header, 0).await };
                Some(self.claim(create, release).await?)
            }
        };
        Ok(Prepared { core, handle, stored: 0, inherited_event_count: 0 })
    }

    async fn stored(&self, new: &NewAgent) -> Result<Prepared, Failure> {
        let world = &self.maker.world;
        let Some(store) = world.store.clone() else {
            let text =
                "cannot resume: session persistence is not configured; give the harness a store";
            return Err(Failure::new("NO_STORE", text));
        };
        let id = self.id.clone();
        let open = async move { store.open_write(&id).await };
        let (handle, stored) = self.claim(open, |(handle, _)| release(handle)).await?;
        match self.rebuild(new, stored) {
            Ok((core, stored, inherited_event_count)) => {
                Ok(Prepared { core, handle: Some(handle), stored, inherited_event_count })
            }
            Err(failure) => {
                self.give_back(handle).await;
                Err(failure)
            }
        }
    }

    /// Gives back the claim of a session that is not made; the failure before is the one that counts.
    async fn give_back(&self, handle: Arc<dyn SessionWriter>) {
        let patience = self.maker.world.limits.grace + disposal::PATIENCE;
        if tokio::time::timeout(patience, release(handle)).await.is_err() {
            tracing::warn!(session = %self.id, "the store does not take a claim back");
        }
    }

    fn rebuild(
        &self,
        new: &NewAgent,
        stored: StoredSession,
    ) -> Result<(SessionCore, u64, u64), Failure> {
        let log = stored.log().map_err(store_failure)?;
        let StoredSession { header, inherited_event_count, tail, .. } = stored;
        blueprint::check(new, &header)?;
        let len = log.len();
        let mut core = self.load(header, log)?;
        let tail = tail.and_then(|tail| unsettled(&core, &tail));
        let mut mint = self.maker.world.mint();
        if let Reply::Refused(fault) = core.execute(Command::Repair { tail }, &mut mint) {
            return Err(fault.into());
        }
        self.mark(&mut core)?;
        Ok((core, len, inherited_event_count))
    }

    pub(super) fn load(
        &self,
        header: Arc<SessionHeader>,
        log: Log,
    ) -> Result<SessionCore, Failure> {
        SessionCore::load(header, log, &self.maker.world.known)
            .map_err(|fault| Failure::new(fault.code(), format!("session `{}`: {fault}", self.id)))
    }

    /// The marker at the end of what was there before this life.
    fn mark(&self, core: &mut SessionCore) -> Result<(), Failure> {
        if let Some(marker) = construction_marker(core.log()) {
            let mut mint = self.maker.world.mint();
            if let Reply::Refused(fault) = core.execute(Command::Append(vec![marker]), &mut mint) {
                return Err(fault.into());
            }
        }
        Ok(())
    }

    async fn publish(
        self,
        new: NewAgent,
        from: CreatedFrom,
        prepared: Prepared,
        reservation: Reservation,
    ) -> Result<Agent, Failure> {
        let world = &self.maker.world;
        let Prepared { core, handle, stored, inherited_event_count } = prepared;
        let stands = self.standing(&new, from, &core, inherited_event_count);
        let Standing { scope, runtime_parent, account, place } = match stands {
            Ok(stands) => stands,
            Err(failure) => {
                if let Some(handle) = handle {
                    self.give_back(handle).await;
                }
                return Err(failure);
            }
        };
        let known = world.known.clone();
        let cell = SessionCell::new(
            &core,
            inherited_event_count,
            known,
            handle,
            stored,
            world.undurable.clone(),
        );
        let mut options = new.options.clone();
        options.durability.get_or_insert(world.durability);
        let agent = Agent::new(AgentCell::new(AgentParts {
            session: Session::new(cell),
            scope,
            owner: self.owner.clone(),
            options,
            account,
            blueprint: new.blueprint.as_deref().map(Into::into),
            lineage: world.agents.lineage_below(runtime_parent.as_ref()),
            depth: new.delegation_depth.unwrap_or(0),
            registry: world.agents.clone(),
            ids: world.ids.clone(),
            span: world.span.clone(),
        }));
        reservation.made(&agent);
        let adopted = async {
            take_place(&agent, place)?;
            self.adopt(&agent).await
        };
        let brought_up = match adopted.await {
            Ok(()) => self.bring_up(&new, from, &agent, &reservation).await,
            Err(failure) => {
                if let Err(failure) = disposal::discard(world, &agent).await {
                    tracing::warn!(agent = %agent.id(), %failure, "a failed creation left something behind");
                }
                return Err(failure);
            }
        };
        if brought_up.is_err() {
            self.roll_back(&agent).await;
        }
        // The id stays taken until everything that was made for it is released.
        drop(reservation);
        brought_up.map(|()| agent)
    }

    async fn adopt(&self, agent: &Agent) -> Result<(), Failure> {
        let id = agent.id().clone();
        let adopted =
            self.maker.means.root.call(|reply| AgentsRootMessage::Adopt { id, reply }, None);
        match adopted.await {
            Ok(CallResult::Success(adopted)) => adopted,
            _ => Err(shutting_down()),
        }
    }

    async fn bring_up(
        &self,
        new: &NewAgent,
        from: CreatedFrom,
        agent: &Agent,
        reservation: &Reservation,
    ) -> Result<(), Failure> {
        let world = &self.maker.world;
        // The owner's closing disposes the agent, whoever holds its handle. A creation that fails by
        // it leaves pending input alone.
        let made = Arc::new(AtomicBool::new(false));
        let done = made.clone();
        let owned = Arc::downgrade(agent.cell());
        let closing = self.owner.on_close(move || {
            if let Some(cell) = owned.upgrade() {
                let (sender, _) = tokio::sync::oneshot::channel();
                let reply = RpcReplyPort::from(sender);
                let keep_inbox = !done.load(Ordering::Acquire);
                // A supervisor between two lives does not hear it; its successor sees it.
                cell.set_disposal(Disposal::Disposing { keep_inbox });
                let dispose = AgentSupervisorMessage::Dispose { keep_inbox, reply };
                let _ = cell.supervisor.cast(dispose);
            }
        });
        let closing = closing.map_err(|closed| Failure::new(closed.code(), closed.to_string()))?;
        agent
            .scope()
            .on_close(move || closing.remove())
            .map_err(|closed| Failure::new(closed.code(), closed.to_string()))?;

        if let Some(set_up) = &new.set_up {
            let done = AssertUnwindSafe(async { set_up(agent.clone()).await }).catch_unwind();
            match self.while_wanted(done).await? {
                Ok(outcome) => outcome?,
                Err(panic) => {
                    return Err(playhouse_plugin_api::hook::panic_failure(&*panic));
                }
            }
        }
        self.wanted()?;
        reservation.commit(agent);
        let created = Created { agent: agent.clone(), source: from, cancel: self.cancel.clone() };
        self.while_wanted(world.hooks.created.run(agent.scope(), created)).await??;
        self.wanted()?;
        agent.cell().furnish();
        made.store(true, Ordering::Release);
        self.release_input(agent).await;
        Ok(())
    }

    /// Input that came early may run, by the driver of the moment or by one that starts later.
    async fn release_input(&self, agent: &Agent) {
        agent.cell().release();
        if let Ok(driver) = agent.cell().actor.next(None).await {
            let _ = driver.cast(AgentMessage::Maintained);
        }
    }

    /// Releases everything. Pending input stays in the log, and what was stored stays stored.
    async fn roll_back(&self, agent: &Agent) {
        agent.cancel_with(CancelCause::Disposed, true);
        self.release_input(agent).await;
        if let Err(failure) = AgentHandle::new(agent.clone()).dispose_keeping_inbox().await {
            // The caller gets the failure that came first.
            tracing::warn!(agent = %agent.id(), %failure, "a failed creation left something behind");
        }
    }
}

/// Gives a claim back by which nothing was written.
async fn release(handle: Arc<dyn SessionWriter>) {
    // There is nobody to tell.
    let _ = handle.close().await;
}

/// The stored stream, if its attempt has no settlement in the log.
fn unsettled(core: &SessionCore, tail: &StoredTail) -> Option<UnsettledTail> {
    let parts = tail.parts.iter().map(|part| serde_json::from_slice::<UnsettledTail>(part));
    // A part that does not parse ends what can be shown; the store vouches for its bytes.
    let mut parts = parts.map_while(Result::ok);
    let mut whole = parts.next()?;
    for part in parts {
        whole.records.extend(part.records);
    }
    let step = core.state().boundary().open_step()?;
    (step.settled.is_none() && whole.attempt == step.attempts + 1).then_some(whole)
}
