//! The harness of a run, and what everybody in it shares.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::clock::{Ids, UuidIds};
use playhouse_policies::Retry;
use playhouse_subagents::{Slots, Subagents};
use playhouse_supervisor::plugin_host::{PluginHandle, PluginStatus};
use ractor::ActorCell;

use super::{Load, ledger::Ledger, model::Model, place::Opened, report::Fault, workshop::Workshop};
use crate::{
    AgentHandle, AgentOptions, CancelToken, Harness, NewAgent, Plugin,
    testing::{FaultyStore, StoreOdds},
};

/// Longer than anything may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Agents that share a route: the death of its actor ends the streams of all of them.
const AGENTS_A_ROUTE: usize = 10;

/// How long tools and hooks that are cancelled are waited for.
const GRACE: Duration = Duration::from_millis(500);

pub(super) struct Fleet {
    pub(super) load: Load,
    pub(super) ledger: Arc<Ledger>,
    pub(super) harness: Harness,
    pub(super) store: FaultyStore,
    pub(super) keeper: Option<ActorCell>,
    pub(super) plugins: Vec<PluginHandle>,
    pub(super) routes: Vec<String>,
    pub(super) slots: Slots,
    /// Fires when nobody is to begin anything more.
    pub(super) over: CancelToken,
}

impl Fleet {
    pub(super) async fn start(
        load: &Load,
        opened: &Opened,
        over: CancelToken,
    ) -> Result<Arc<Self>, Failure> {
        let ledger = Arc::<Ledger>::default();
        let store = FaultyStore::over(opened.store.clone());
        let mut builder = crate::minimal()
            .store(store.clone())
            .grace(GRACE)
            .restart_policy(load.restarts)
            .invariants(true);
        for kind in
            [&playhouse_subagents::EVENT_KINDS[..], &playhouse_policies::EVENT_KINDS].concat()
        {
            builder = builder.event_kind(kind);
        }
        let started = builder.start().await;
        let harness = started.map_err(|error| Failure::new(error.code(), error.to_string()))?;
        let mut rng = Rng::with_seed(load.seed);
        let made = ledger.clone();
        harness.world().hooks.created.add(&harness.world().scope, move |created| {
            made.enter(&created.agent);
            async { Ok(()) }
        })?;
        let routes: Vec<_> = (0..load.agents.div_ceil(AGENTS_A_ROUTE))
            .map(|route| format!("route-{route}"))
            .collect();
        for route in &routes {
            let model = Arc::new(Model::adapter(load, ledger.clone(), over.clone(), rng.fork()));
            // The registration lasts as long as the harness.
            let registered = harness.world().models.register([route.as_str()], model);
            let _ = registered.map_err(|error| Failure::new(error.code(), error.to_string()))?;
        }
        let subagents = Subagents::new().max_children(usize::MAX).max_depth(1);
        let slots = subagents.slots().clone();
        let plugins = vec![
            host(&harness, Workshop::new(ledger.clone(), rng.fork())).await?,
            host(&harness, Retry::new()).await?,
            host(&harness, subagents).await?,
        ];
        let (load, keeper) = (load.clone(), opened.keeper.clone());
        Ok(Arc::new(Self { load, ledger, harness, store, keeper, plugins, routes, slots, over }))
    }

    /// Makes the agents, while nothing fails yet.
    pub(super) async fn enlist(&self) -> Result<Vec<AgentHandle>, Failure> {
        let mut agents = Vec::new();
        for index in 0..self.load.agents {
            let options = AgentOptions::new()
                .model(&self.routes[index % self.routes.len()], "m")
                .max_steps(8);
            let id = format!("stress-{index}-{}", UuidIds.fresh());
            agents.push(self.harness.create(NewAgent::new(options).id(id)).await?);
        }
        Ok(agents)
    }

    /// From now on the store fails by chance, if there is chaos.
    pub(super) fn let_loose(&self) {
        if self.load.chaos > 0.0 {
            self.store.chaos(self.load.seed, StoreOdds::default());
        }
    }

    /// Awaits what always ends; what does not is a fault.
    pub(super) async fn bounded<T>(
        &self,
        session: &SessionId,
        what: &str,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let ended = tokio::time::timeout(PATIENCE, future).await.ok();
        if ended.is_none() {
            self.ledger.fault(Fault::of(session, format!("{what} does not end")));
        }
        ended
    }
}

async fn host(harness: &Harness, plugin: impl Plugin) -> Result<PluginHandle, Failure> {
    let hosted = harness.host(plugin).await;
    let plugin = hosted.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let settled = |status: &PluginStatus| {
        !matches!(status, PluginStatus::Waiting { .. } | PluginStatus::SettingUp)
    };
    match plugin.watch().wait_for(settled).await.as_deref() {
        Ok(PluginStatus::Failed { failure }) => Err(failure.clone()),
        _ => Ok(plugin),
    }
}
