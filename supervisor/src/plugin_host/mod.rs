//! Plugin hosting: one actor a plugin, under one root.
//!
//! **Owns**: a plugin's host owns the right to open and close its plugin's scope. The root
//! owns what must outlive a host: the plugin, the scope that is open, and the status.
//!
//! **Guarantees**: a plugin is set up only while every service that it requires is there, at most
//! once at a time, and only after what its last setup left running has ended (or a grace time has
//! passed). Whatever ends a setup (a service that goes, a reload, a failure, a panic, a stop, the
//! death of the host) closes its scope.
//!
//! **Death**: when a host is killed or fails, the root closes the scope and sets the plugin up again
//! by a new host, each time after a longer delay. Past the [`RestartLimits`] the plugin stays down
//! until someone reloads it. When the root dies, its hosts die with it and all scopes are closed.

mod actor;
mod hosted;
mod machine;
mod restarts;
mod root;

use std::sync::Arc;

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{plugin::Plugin, scope::Scope, service::Services, watch};
use ractor::{ActorCell, ActorRef, ActorRuntime, SpawnErr, rpc::CallResult};
use tokio::task::JoinHandle;

pub use self::restarts::RestartLimits;
pub(crate) use self::restarts::Restarts;
use self::{
    hosted::HostKey,
    root::{PluginsRoot, PluginsRootMessage, RootState},
};

/// The plugins of a harness. Clones are the same set. Dropping it ends nothing:
/// [`Plugins::shutdown`] or the closing of the scope does.
#[derive(Debug, Clone)]
pub struct Plugins {
    root: ActorRef<PluginsRootMessage>,
}

impl Plugins {
    /// The actor that the hosts hang under.
    pub(crate) fn root(&self) -> ActorCell {
        self.root.get_cell()
    }
}

/// One hosted plugin. Clones are the same; dropping it ends nothing.
#[derive(Debug, Clone)]
pub struct PluginHandle {
    key: HostKey,
    name: Arc<str>,
    root: ActorRef<PluginsRootMessage>,
    status: watch::Receiver<PluginStatus>,
}

/// How a plugin is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum PluginStatus {
    /// Required services are not there.
    Waiting {
        /// Their names.
        missing: Vec<&'static str>,
    },
    /// Its setup runs.
    SettingUp,
    /// It is set up.
    Active,
    /// It is not set up, because of this. It is tried again on a reload, when one of its required
    /// services is replaced, or, if its host died, after a delay.
    Failed {
        /// Why.
        failure: Failure,
    },
    /// It was stopped, for good.
    Stopped,
}

/// Why a plugin was not hosted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Another plugin of that name is hosted.
    #[error("plugin `{name}` is already hosted; stop it first, or give this one another name")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// The plugin panicked when asked for its name or its requirements.
    #[error("the plugin cannot say its name and requirements: {}", failure.message)]
    Panicked {
        /// What the panic said.
        failure: Failure,
    },
    /// The harness shuts down.
    #[error("no plugin is hosted any more: the harness shuts down")]
    ShuttingDown,
    /// The runtime refused the actor.
    #[error("the plugin's host could not be started: {0}")]
    Spawn(#[from] SpawnErr),
}

impl HostError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Duplicate { .. } => "PLUGIN_DUPLICATE",
            Self::Panicked { .. } => "PANIC",
            Self::ShuttingDown => "SHUTTING_DOWN",
            Self::Spawn(_) => "SPAWN",
        }
    }
}

impl Plugins {
    /// Starts the root actor. Each plugin's scope is below `scope`, and all plugins stop when it
    /// closes. With a `supervisor` the root is linked to it. The handle resolves when the root ends.
    pub async fn start(
        scope: Scope,
        services: Services,
        limits: RestartLimits,
        supervisor: Option<ActorCell>,
    ) -> Result<(Self, JoinHandle<()>), SpawnErr> {
        let state = RootState::new(scope, services, limits);
        let (root, join) = match supervisor {
            Some(supervisor) => {
                ActorRuntime::spawn_linked(None, PluginsRoot, state, supervisor).await?
            }
            None => ActorRuntime::spawn(None, PluginsRoot, state).await?,
        };
        Ok((Self { root }, join))
    }

    /// Hosts a plugin. Returns at once; [`PluginHandle::watch`] tells when it is set up.
    pub async fn host(&self, plugin: Arc<dyn Plugin>) -> Result<PluginHandle, HostError> {
        match self.root.call(|reply| PluginsRootMessage::Host { plugin, reply }, None).await {
            Ok(CallResult::Success(outcome)) => outcome,
            _ => Err(HostError::ShuttingDown),
        }
    }

    /// Stops every plugin, the last hosted first, and then the root. Idempotent.
    pub async fn shutdown(&self) {
        // An error means that the root, and so every host, has ended.
        let _ = self.root.call(|reply| PluginsRootMessage::Shutdown { reply }, None).await;
    }
}

impl PluginHandle {
    /// The plugin's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the plugin is now.
    pub fn status(&self) -> PluginStatus {
        self.status.borrow().clone()
    }

    /// Follows the status. Fast changes may be seen as one; the last one never is missed.
    pub fn watch(&self) -> watch::Receiver<PluginStatus> {
        self.status.clone()
    }

    /// The actor that hosts it, if one lives: for tests that kill it.
    pub async fn host(&self) -> Option<ActorCell> {
        let key = self.key;
        match self.root.call(|reply| PluginsRootMessage::HostOf { key, reply }, None).await {
            Ok(CallResult::Success(host)) => host,
            _ => None,
        }
    }

    /// Unwinds the plugin and sets it up again; returns when that is done. Fails if the setup does,
    /// if services are missing (`PLUGIN_WAITING`), if the plugin was stopped (`PLUGIN_STOPPED`) or if
    /// its host died meanwhile (`PLUGIN_HOST_DIED`). A plugin that was given up gets a new host.
    pub async fn reload(&self) -> Result<(), Failure> {
        let key = self.key;
        match self.root.call(|reply| PluginsRootMessage::Reload { key, reply }, None).await {
            Ok(CallResult::Success(outcome)) => outcome,
            Ok(_) => Err(hosted::host_died(&self.name)),
            Err(_) => Err(hosted::stopped(&self.name)),
        }
    }

    /// Stops the plugin for good; returns when what it ran has ended. Idempotent.
    pub async fn stop(&self) {
        let key = self.key;
        loop {
            match self.root.call(|reply| PluginsRootMessage::Stop { key, reply }, None).await {
                Ok(CallResult::Success(())) | Err(_) => return,
                // The host died with the request: ask the next one, or the root without one.
                Ok(_) if *self.status.borrow() == PluginStatus::Stopped => return,
                Ok(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
