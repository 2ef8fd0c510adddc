//! What outlives the death of a plugin's host.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    plugin::{Plugin, PluginContext},
    scope::{Scope, ScopeClosed, ScopeId},
    service::Services,
    watch,
};

use super::{PluginStatus, machine::Instances};

/// How long a scope's tasks may take to notice that it was closed. A task that yields ends at once;
/// one that does not must not keep its plugin down.
const DRAIN_GRACE: Duration = Duration::from_secs(10);

/// Tells hosted plugins apart, also those that follow each other by one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostKey(pub(super) u64);

/// One hosted plugin, shared by the root and its host of the moment.
pub(super) struct Hosted {
    pub(super) key: HostKey,
    pub(super) name: Arc<str>,
    pub(super) plugin: Arc<dyn Plugin>,
    pub(super) requires: Vec<&'static str>,
    parent: Scope,
    services: Services,
    scopes: Mutex<Scopes>,
    status: watch::Sender<PluginStatus>,
}

#[derive(Default)]
struct Scopes {
    open: Option<Scope>,
    /// Closed, and perhaps with tasks that have not noticed yet.
    draining: Vec<Scope>,
}

impl Hosted {
    pub(super) fn new(
        key: HostKey,
        name: Arc<str>,
        plugin: Arc<dyn Plugin>,
        requires: Vec<&'static str>,
        parent: Scope,
        services: Services,
    ) -> Self {
        let there = services.instances(&requires);
        let missing = requires.iter().zip(&there).filter(|(_, instance)| instance.is_none());
        let missing: Vec<_> = missing.map(|(name, _)| *name).collect();
        // It says what it waits for, or that it waits for nobody, before its host has looked.
        let status = watch::Sender::new(match missing.is_empty() {
            true => PluginStatus::SettingUp,
            false => PluginStatus::Waiting { missing },
        });
        let scopes = Mutex::default();
        Self { key, name, plugin, requires, parent, services, scopes, status }
    }

    /// A new scope for a setup. One that is still open is closed first.
    pub(super) fn open(&self) -> Result<PluginContext, ScopeClosed> {
        self.close();
        let scope = self.parent.child(format!("plugin {}", self.name))?;
        self.scopes().open = Some(scope.clone());
        Ok(PluginContext::new(scope, self.services.clone()))
    }

    /// Closes the open scope, if any.
    pub(super) fn close(&self) {
        let open = {
            let mut scopes = self.scopes();
            let open = scopes.open.take();
            scopes.draining.extend(open.clone());
            open
        };
        // Outside the lock: closing runs the plugin's own steps.
        if let Some(scope) = open {
            scope.close();
        }
    }

    /// Resolves when what ran in closed scopes has ended, or the grace time has passed.
    pub(super) async fn drained(&self) {
        loop {
            let Some(scope) = self.scopes().draining.first().cloned() else { return };
            if tokio::time::timeout(DRAIN_GRACE, scope.close_and_wait()).await.is_err() {
                tracing::warn!(
                    plugin = &*self.name,
                    "tasks of the plugin ignore that its scope is closed"
                );
            }
            self.forget(scope.id());
        }
    }

    fn forget(&self, id: ScopeId) {
        self.scopes().draining.retain(|scope| scope.id() != id);
    }

    /// Whether the scope above still takes plugins.
    pub(super) fn is_wanted(&self) -> bool {
        self.parent.is_open()
    }

    /// Fires when no plugin is wanted any more.
    pub(super) fn parent(&self) -> &Scope {
        &self.parent
    }

    pub(super) fn services(&self) -> &Services {
        &self.services
    }

    pub(super) fn instances(&self) -> Instances {
        self.services.instances(&self.requires)
    }

    pub(super) fn report(&self, status: PluginStatus) {
        self.status.send_if_modified(|now| {
            let modified = *now != status;
            *now = status;
            modified
        });
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.status.borrow() == PluginStatus::Stopped
    }

    pub(super) fn watch(&self) -> watch::Receiver<PluginStatus> {
        self.status.subscribe()
    }

    fn scopes(&self) -> MutexGuard<'_, Scopes> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The root's death takes every host with it, without a word: nothing else closes the scopes then.
impl Drop for Hosted {
    fn drop(&mut self) {
        self.close();
    }
}

pub(super) fn stopped(name: &str) -> Failure {
    Failure::new("PLUGIN_STOPPED", format!("plugin `{name}` was stopped; host it again"))
}

pub(super) fn host_died(name: &str) -> Failure {
    let message = format!("the host of plugin `{name}` died; the plugin is set up again");
    Failure::new("PLUGIN_HOST_DIED", message)
}

pub(super) fn given_up(name: &str, deaths: usize) -> Failure {
    let message = format!(
        "the host of plugin `{name}` died {deaths} times in a short time, so it stays down; reload \
         it to try again"
    );
    Failure::new("PLUGIN_GIVEN_UP", message)
}
