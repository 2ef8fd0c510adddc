//! The parent of all plugin hosts: starts them, and starts another when one dies.

use std::{panic::AssertUnwindSafe, sync::Arc};

use playhouse_messages::{chunk::Failure, protocol::PluginHostMessage};
use playhouse_plugin_api::{hook::panic_failure, plugin::Plugin, scope::Scope, service::Services};
use ractor::{
    Actor, ActorCell, ActorProcessingErr, ActorRef, ActorRuntime, RpcReplyPort, SpawnErr,
    SupervisionEvent,
};
use tokio::time::Instant;

use super::{
    HostError, PluginHandle, PluginStatus, RestartLimits,
    actor::PluginHost,
    hosted::{self, HostKey, Hosted},
    restarts::Restarts,
};

/// What the root is told.
pub(crate) enum PluginsRootMessage {
    Host {
        plugin: Arc<dyn Plugin>,
        reply: RpcReplyPort<Result<PluginHandle, HostError>>,
    },
    Reload {
        key: HostKey,
        reply: RpcReplyPort<Result<(), Failure>>,
    },
    Stop {
        key: HostKey,
        reply: RpcReplyPort<()>,
    },
    /// The delay after a death is over. Not if someone was faster: then the epoch differs.
    Respawn {
        key: HostKey,
        epoch: u64,
    },
    Shutdown {
        reply: RpcReplyPort<()>,
    },
    HostOf {
        key: HostKey,
        reply: RpcReplyPort<Option<ActorCell>>,
    },
}

pub(super) struct PluginsRoot;

pub(super) struct RootState {
    scope: Scope,
    services: Services,
    limits: RestartLimits,
    next: u64,
    /// In the order of hosting.
    entries: Vec<Entry>,
    shutting_down: bool,
}

struct Entry {
    hosted: Arc<Hosted>,
    host: Option<ActorRef<PluginHostMessage>>,
    restarts: Restarts,
    epoch: u64,
}

impl RootState {
    pub(super) fn new(scope: Scope, services: Services, limits: RestartLimits) -> Self {
        Self { scope, services, limits, next: 0, entries: Vec::new(), shutting_down: false }
    }

    fn find(&mut self, key: HostKey) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.hosted.key == key)
    }
}

impl Actor for PluginsRoot {
    type Msg = PluginsRootMessage;
    type State = RootState;
    type Arguments = RootState;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        state: RootState,
    ) -> Result<RootState, ActorProcessingErr> {
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PluginsRootMessage::Host { plugin, reply } => {
                let outcome = host(&myself, state, plugin).await;
                let _ = reply.send(outcome);
            }
            PluginsRootMessage::Reload { key, reply } => reload(&myself, state, key, reply).await,
            PluginsRootMessage::Stop { key, reply } => stop(state, key, reply),
            PluginsRootMessage::Respawn { key, epoch } => {
                if let Some(entry) = state.find(key)
                    && entry.epoch == epoch
                {
                    respawn(&myself, entry).await;
                }
            }
            PluginsRootMessage::Shutdown { reply } => shut_down(myself, state, reply),
            PluginsRootMessage::HostOf { key, reply } => {
                let host = state.find(key).and_then(|entry| entry.host.as_ref());
                let _ = reply.send(host.map(ActorRef::get_cell));
            }
        }
        Ok(())
    }

    /// The default would end the root, and with it every plugin, when one host ends.
    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        if let Some((who, why)) = crate::death::death(event) {
            ended(&myself, state, &who, &why);
        }
        Ok(())
    }
}

async fn host(
    myself: &ActorRef<PluginsRootMessage>,
    state: &mut RootState,
    plugin: Arc<dyn Plugin>,
) -> Result<PluginHandle, HostError> {
    if state.shutting_down || !state.scope.is_open() {
        return Err(HostError::ShuttingDown);
    }
    let facts = || (Arc::<str>::from(plugin.name()), plugin.requires());
    let (name, requires) = std::panic::catch_unwind(AssertUnwindSafe(facts))
        .map_err(|panic| HostError::Panicked { failure: panic_failure(&*panic) })?;
    // One that was stopped and whose host has not quite ended does not hold the name.
    let same = |entry: &Entry| entry.hosted.name == name && !entry.hosted.is_stopped();
    if state.entries.iter().any(same) {
        return Err(HostError::Duplicate { name: name.to_string() });
    }
    let key = HostKey(state.next);
    state.next += 1;
    let (scope, services) = (state.scope.clone(), state.services.clone());
    let hosted = Arc::new(Hosted::new(key, name.clone(), plugin, requires, scope, services));
    let host = spawn(myself, hosted.clone()).await?;
    let status = hosted.watch();
    let restarts = Restarts::default();
    state.entries.push(Entry { hosted, host: Some(host), restarts, epoch: 0 });
    Ok(PluginHandle { key, name, root: myself.clone(), status })
}

async fn spawn(
    myself: &ActorRef<PluginsRootMessage>,
    hosted: Arc<Hosted>,
) -> Result<ActorRef<PluginHostMessage>, SpawnErr> {
    let spawned = ActorRuntime::spawn_linked(None, PluginHost, hosted, myself.get_cell()).await?;
    Ok(spawned.0)
}

async fn respawn(myself: &ActorRef<PluginsRootMessage>, entry: &mut Entry) {
    if entry.host.is_some() || entry.hosted.is_stopped() {
        return;
    }
    entry.epoch += 1;
    match spawn(myself, entry.hosted.clone()).await {
        Ok(host) => entry.host = Some(host),
        Err(error) => {
            let failure = Failure::new("SPAWN", error.to_string());
            entry.hosted.report(PluginStatus::Failed { failure });
        }
    }
}

async fn reload(
    myself: &ActorRef<PluginsRootMessage>,
    state: &mut RootState,
    key: HostKey,
    reply: RpcReplyPort<Result<(), Failure>>,
) {
    let Some(entry) = state.find(key) else {
        let message = "the plugin was stopped; host it again";
        let _ = reply.send(Err(Failure::new("PLUGIN_STOPPED", message)));
        return;
    };
    if entry.host.is_none() {
        // Someone who asks by hand starts a new count.
        entry.restarts = Restarts::default();
        respawn(myself, entry).await;
    }
    if let Some(host) = &entry.host {
        // Of a host that has just died the caller hears by the reply that is dropped.
        let _ = host.cast(PluginHostMessage::Reload { reply });
    }
}

fn stop(state: &mut RootState, key: HostKey, reply: RpcReplyPort<()>) {
    let Some(position) = state.entries.iter().position(|entry| entry.hosted.key == key) else {
        let _ = reply.send(());
        return;
    };
    if let Some(host) = &state.entries[position].host {
        // Of a host that has just died the caller hears by the reply that is dropped, and asks again.
        let _ = host.cast(PluginHostMessage::Stop { reply });
        return;
    }
    let Entry { hosted, .. } = state.entries.remove(position);
    hosted.close();
    hosted.report(PluginStatus::Stopped);
    tokio::spawn(async move {
        hosted.drained().await;
        let _ = reply.send(());
    });
}

fn shut_down(myself: ActorRef<PluginsRootMessage>, state: &mut RootState, reply: RpcReplyPort<()>) {
    state.shutting_down = true;
    let handle = |entry: &Entry| PluginHandle {
        key: entry.hosted.key,
        name: entry.hosted.name.clone(),
        root: myself.clone(),
        status: entry.hosted.watch(),
    };
    let handles: Vec<_> = state.entries.iter().rev().map(handle).collect();
    tokio::spawn(async move {
        for handle in handles {
            handle.stop().await;
        }
        let _ = reply.send(());
        myself.stop(None);
    });
}

fn ended(
    myself: &ActorRef<PluginsRootMessage>,
    state: &mut RootState,
    who: &ActorCell,
    reason: &str,
) {
    let is_it = |entry: &Entry| entry.host.as_ref().is_some_and(|h| h.get_id() == who.get_id());
    let Some(position) = state.entries.iter().position(is_it) else { return };
    let entry = &mut state.entries[position];
    entry.host = None;
    // After a kill nobody else does.
    entry.hosted.close();
    if entry.hosted.is_stopped() {
        state.entries.remove(position);
        return;
    }
    let name = &*entry.hosted.name;
    entry.epoch += 1;
    match entry.restarts.died(Instant::now(), &state.limits) {
        Some(delay) => {
            tracing::warn!(plugin = name, reason, ?delay, "a plugin's host died");
            entry.hosted.report(PluginStatus::Failed { failure: hosted::host_died(name) });
            let (key, epoch) = (entry.hosted.key, entry.epoch);
            myself.send_after(delay, move || PluginsRootMessage::Respawn { key, epoch });
        }
        None => {
            let deaths = entry.restarts.count();
            tracing::error!(plugin = name, reason, deaths, "a plugin's host dies too often");
            let failure = hosted::given_up(name, deaths);
            entry.hosted.report(PluginStatus::Failed { failure });
        }
    }
}
