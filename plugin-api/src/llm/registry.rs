//! Which adapter serves which provider route.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{LlmAdapter, LlmError, ModelInfo, RetryPolicy};
use crate::{cancel::CancelToken, watch};

/// The provider routes and the adapters behind them. Clones share it.
///
/// Every change is all or nothing, and moves the generation that [`LlmRegistry::changes`] watches.
#[derive(Clone, Default)]
pub struct LlmRegistry {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    routes: Mutex<Routes>,
    generation: watch::Sender<u64>,
}

#[derive(Default)]
struct Routes {
    /// In registration order. Few, so a scan beats a map.
    list: Vec<RouteEntry>,
    registrations: u64,
}

/// One route as a call binds it.
#[derive(Clone)]
pub(super) struct RouteEntry {
    pub(super) provider: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) adapter: Arc<dyn LlmAdapter>,
    pub(super) retry_policy: RetryPolicy,
    /// Tells a later registration of the same route from this one.
    pub(super) registration: u64,
}

/// A registered route, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderInfo {
    /// The route.
    pub id: String,
    /// Its display name.
    pub name: String,
}

impl LlmRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers an adapter for these routes, or for none of them.
    ///
    /// # Errors
    ///
    /// `INVALID_ADAPTER` for an empty list, an empty name, an empty display name or a bad policy;
    /// `DUPLICATE_ADAPTER` if a route is taken or named twice.
    pub fn register<I, P>(
        &self,
        providers: I,
        adapter: Arc<dyn LlmAdapter>,
    ) -> Result<AdapterRegistration, LlmError>
    where
        I: IntoIterator<Item = P>,
        P: Into<Arc<str>>,
    {
        let entries = describe(providers, &adapter)?;
        if entries.is_empty() {
            let reason = "an adapter must register at least one provider".to_owned();
            return Err(LlmError::InvalidAdapter { reason });
        }
        let mut routes = self.lock();
        let id = routes.registrations + 1;
        routes.swap(id, entries)?;
        routes.registrations = id;
        drop(routes);
        self.changed();
        Ok(AdapterRegistration { registry: self.clone(), id, adapter, live: Mutex::new(true) })
    }

    /// The routes in registration order.
    pub fn providers(&self) -> Vec<ProviderInfo> {
        let info = |entry: &RouteEntry| ProviderInfo {
            id: entry.provider.to_string(),
            name: entry.name.to_string(),
        };
        self.lock().list.iter().map(info).collect()
    }

    /// The adapter that serves a route now.
    pub fn adapter(&self, provider: &str) -> Option<Arc<dyn LlmAdapter>> {
        self.route(provider).ok().map(|entry| entry.adapter)
    }

    /// How failed calls of a route may be retried.
    pub fn retry_policy(&self, provider: &str) -> Option<RetryPolicy> {
        self.route(provider).ok().map(|entry| entry.retry_policy)
    }

    /// The models that a route is known to serve. Advisory: a model that is not listed may be
    /// called all the same.
    ///
    /// # Errors
    ///
    /// `NO_ADAPTER`, `INVALID_CATALOG`, or what the adapter reports.
    pub async fn models(
        &self,
        provider: &str,
        cancel: &CancelToken,
    ) -> Result<Vec<ModelInfo>, LlmError> {
        let entry = self.route(provider)?;
        let models = entry.adapter.models(provider, cancel).await.map_err(LlmError::Adapter)?;
        let invalid =
            |reason: String| LlmError::InvalidCatalog { provider: provider.into(), reason };
        for (index, model) in models.iter().enumerate() {
            if model.id.is_empty() {
                return Err(invalid(format!("model {index} has an empty id")));
            }
            if models[..index].iter().any(|earlier| earlier.id == model.id) {
                return Err(invalid(format!("model \"{}\" is listed twice", model.id)));
            }
            super::prepare::check_model(provider, &model.id, model)
                .map_err(|error| invalid(error.to_string()))?;
        }
        Ok(models)
    }

    /// A number that moves with every change of routes. It says that something changed, not what.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.generation.subscribe()
    }

    pub(super) fn route(&self, provider: &str) -> Result<RouteEntry, LlmError> {
        self.lock().find(provider).cloned()
    }

    /// A route, and every route that its adapter instance serves, sorted.
    pub(super) fn bind(&self, provider: &str) -> Result<(RouteEntry, Vec<Arc<str>>), LlmError> {
        let routes = self.lock();
        let entry = routes.find(provider)?;
        let same = |other: &&RouteEntry| Arc::ptr_eq(&other.adapter, &entry.adapter);
        let names = routes.list.iter().filter(same).map(|other| other.provider.clone());
        let mut peers: Vec<_> = names.collect();
        peers.sort_unstable();
        Ok((entry.clone(), peers))
    }

    fn lock(&self) -> MutexGuard<'_, Routes> {
        // A route list is replaced whole, so a panic elsewhere leaves it consistent.
        self.shared.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.shared.generation.send_modify(|generation| *generation += 1);
    }
}

impl fmt::Debug for LlmRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.providers()).finish()
    }
}

impl Routes {
    fn find(&self, provider: &str) -> Result<&RouteEntry, LlmError> {
        let entry = self.list.iter().find(|entry| &*entry.provider == provider);
        entry.ok_or_else(|| LlmError::NoAdapter { provider: provider.to_owned() })
    }

    /// Gives registration `id` exactly these routes. Those that it keeps stay in their place.
    fn swap(&mut self, id: u64, mut entries: Vec<RouteEntry>) -> Result<(), LlmError> {
        for entry in &mut entries {
            entry.registration = id;
            let held = |other: &&RouteEntry| other.provider == entry.provider;
            if self.list.iter().find(held).is_some_and(|other| other.registration != id) {
                return Err(LlmError::DuplicateAdapter { provider: entry.provider.to_string() });
            }
        }
        let mut list = Vec::with_capacity(self.list.len() + entries.len());
        for entry in self.list.drain(..) {
            if entry.registration != id {
                list.push(entry);
            } else if let Some(at) = entries.iter().position(|new| new.provider == entry.provider) {
                list.push(entries.remove(at));
            }
        }
        list.append(&mut entries);
        self.list = list;
        Ok(())
    }
}

/// Asks the adapter about its routes. Before any lock: it is foreign code.
fn describe<I, P>(providers: I, adapter: &Arc<dyn LlmAdapter>) -> Result<Vec<RouteEntry>, LlmError>
where
    I: IntoIterator<Item = P>,
    P: Into<Arc<str>>,
{
    let mut entries: Vec<RouteEntry> = Vec::new();
    for provider in providers {
        let provider: Arc<str> = provider.into();
        if provider.is_empty() {
            let reason = "adapter provider names must be non-empty".to_owned();
            return Err(LlmError::InvalidAdapter { reason });
        }
        if entries.iter().any(|entry| entry.provider == provider) {
            return Err(LlmError::DuplicateAdapter { provider: provider.to_string() });
        }
        let name: Arc<str> = adapter.display_name(&provider).into();
        if name.is_empty() {
            let reason = format!(
                "adapter metadata for provider \"{provider}\" must preserve its id and have a \
                 non-empty name"
            );
            return Err(LlmError::InvalidAdapter { reason });
        }
        let retry_policy = adapter.retry_policy(&provider).unwrap_or_default();
        if let Err(fault) = retry_policy.check() {
            let reason = format!("the retry policy of provider \"{provider}\" is invalid: {fault}");
            return Err(LlmError::InvalidAdapter { reason });
        }
        let adapter = adapter.clone();
        entries.push(RouteEntry { provider, name, adapter, retry_policy, registration: 0 });
    }
    Ok(entries)
}

/// One adapter's hold on its routes. Keep it to dispose or replace the registration.
///
/// Dropping it ends nothing; [`AdapterRegistration::dispose`] does, or the guard that
/// [`AdapterRegistration::into_guard`] makes of it.
pub struct AdapterRegistration {
    registry: LlmRegistry,
    id: u64,
    adapter: Arc<dyn LlmAdapter>,
    live: Mutex<bool>,
}

impl AdapterRegistration {
    /// Removes the routes that this registration still holds. Doing it again does nothing, and a
    /// later registration of the same route is left alone.
    pub fn dispose(&self) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *live, false) {
            return;
        }
        let mut routes = self.registry.lock();
        routes.list.retain(|entry| entry.registration != self.id);
        drop(routes);
        self.registry.changed();
    }

    /// Swaps the routes for these in one step; none is allowed. The retry policies are asked for
    /// again, so replacing a list by itself takes up a changed policy.
    ///
    /// # Errors
    ///
    /// As [`LlmRegistry::register`], and `REGISTRATION_DISPOSED`.
    pub fn replace<I, P>(&self, providers: I) -> Result<(), LlmError>
    where
        I: IntoIterator<Item = P>,
        P: Into<Arc<str>>,
    {
        let entries = describe(providers, &self.adapter)?;
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if !*live {
            return Err(LlmError::RegistrationDisposed);
        }
        self.registry.lock().swap(self.id, entries)?;
        self.registry.changed();
        Ok(())
    }

    /// Ties the registration to an owner's life: dropping the guard disposes.
    pub fn into_guard(self) -> RegistrationGuard {
        RegistrationGuard(self)
    }
}

impl fmt::Debug for AdapterRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterRegistration").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A registration that ends when dropped.
#[derive(Debug)]
#[must_use = "dropping the guard ends the registration"]
pub struct RegistrationGuard(AdapterRegistration);

impl std::ops::Deref for RegistrationGuard {
    type Target = AdapterRegistration;

    fn deref(&self) -> &AdapterRegistration {
        &self.0
    }
}

impl Drop for RegistrationGuard {
    fn drop(&mut self) {
        self.0.dispose();
    }
}
