//! The session of a fork: another one's history, read without touching it.

use std::sync::Arc;

use playhouse_messages::{
    chunk::Failure, header::SessionHeader, id::SessionId, log::Log, repair::fork_seed,
};
use playhouse_plugin_api::{
    creation::NewAgent,
    fork::{ForkPoint, store_fork, take_back},
    store::{SessionWriter, StoreError},
};

use super::{
    creation::{Creation, Prepared},
    disposal::store_failure,
};

impl Creation<'_> {
    pub(super) async fn forked(
        &self,
        new: &NewAgent,
        from: &ForkPoint,
    ) -> Result<Prepared, Failure> {
        if new.seed.is_some() {
            let text = "a fork begins with its source's events; leave the seed out";
            return Err(Failure::new("INVALID_ARGUMENT", text));
        }
        let (source, log) = self.while_wanted(self.source(&from.session)).await??;
        self.while_wanted(self.vacant()).await??;
        let world = &self.maker.world;
        let now = world.clock.now_ms();
        let seed = fork_seed(&log, from.boundary, now).map_err(|fault| {
            Failure::new(fault.code(), format!("session `{}`: {fault}", source.id))
        })?;
        let mut header = source.fork(self.id.clone(), u64::try_from(now).unwrap_or(0));
        header.origin = new.origin;
        header.agent_preset.clone_from(&new.agent_preset);
        header.blueprint.clone_from(&new.blueprint);
        header.cwd = new.cwd.clone().or(header.cwd);
        header.delegation_depth = new.delegation_depth.or(header.delegation_depth);
        header.check().map_err(|fault| Failure::new("INVALID_ARGUMENT", fault.to_string()))?;
        let header = Arc::new(header);
        let core = self.load(header.clone(), seed.log.clone())?;
        let inherited_event_count = seed.inherited;
        let Some(store) = world.store.clone() else {
            return Ok(Prepared { core, handle: None, stored: 0, inherited_event_count });
        };
        let (id, keeper) = (self.id.clone(), store.clone());
        let create = async move { store_fork(&*store, &header, &seed).await };
        let unwanted = |handle: Arc<dyn SessionWriter>| async move {
            take_back(&*keeper, &id, &*handle).await
        };
        let handle = self.claim(create, unwanted).await?;
        let stored = core.log().len();
        Ok(Prepared { core, handle: Some(handle), stored, inherited_event_count })
    }

    /// The source as it is now: in the world, else in the store.
    async fn source(&self, id: &SessionId) -> Result<(Arc<SessionHeader>, Log), Failure> {
        let world = &self.maker.world;
        if let Some(agent) = world.agents.made(id) {
            return Ok((agent.session().header().clone(), agent.session().log()));
        }
        let Some(store) = &world.store else {
            let text = format!("no session `{id}`: no agent drives it, and there is no store");
            return Err(Failure::new("SESSION_NOT_FOUND", text));
        };
        let stored = store.read(id).await.map_err(store_failure)?;
        let log = stored.log().map_err(store_failure)?;
        Ok((stored.header, log))
    }

    /// Told before anything about the boundary; the claim sees to it again.
    async fn vacant(&self) -> Result<(), Failure> {
        let Some(store) = &self.maker.world.store else { return Ok(()) };
        match store.stat(&self.id).await.map_err(store_failure)? {
            None => Ok(()),
            Some(_) => Err(store_failure(StoreError::AlreadyExists { id: self.id.clone() })),
        }
    }
}
