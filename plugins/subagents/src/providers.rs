//! The registry of providers.

use std::{
    collections::VecDeque,
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::FutureExt;
use playhouse_plugin_api::{
    hook::panic_failure,
    scope::{Registration, Scope},
};

use crate::{
    ChildError, ChildProvider, ChildRequest, Lifecycle, Run, lifecycle::ProviderNotice,
    structured::Structured,
};

/// The providers of a harness. Clones are the same registry.
#[derive(Clone, Default)]
pub struct ChildProviders(Arc<Inner>);

#[derive(Default)]
struct Inner {
    table: Mutex<Table>,
    lifecycle: Lifecycle,
}

#[derive(Default)]
struct Table {
    providers: Vec<Arc<dyn ChildProvider>>,
    /// What listeners are still to be told, in order.
    untold: VecDeque<ProviderNotice>,
    /// Somebody tells them now, and will tell what comes meanwhile.
    telling: bool,
}

impl ChildProviders {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a provider until `scope` closes. Its going blocks new starts; runs go on.
    ///
    /// # Errors
    ///
    /// [`ChildError::DuplicateProvider`] if the name is taken.
    pub fn register(
        &self,
        scope: &Scope,
        provider: Arc<dyn ChildProvider>,
    ) -> Result<Registration, ChildError> {
        let name = provider.name().to_owned();
        let mut table = self.table();
        if table.providers.iter().any(|other| other.name() == name) {
            return Err(ChildError::DuplicateProvider { name });
        }
        let (registry, leaving) = (self.clone(), provider.clone());
        // Under the lock: a scope that closes meanwhile waits, and then finds what to remove.
        let registration = scope.on_close(move || {
            let mut table = registry.table();
            table.providers.retain(|other| !Arc::ptr_eq(other, &leaving));
            table.untold.push_back(ProviderNotice::Removed { name: leaving.name().to_owned() });
            drop(table);
            registry.tell();
        })?;
        table.providers.push(provider);
        table.untold.push_back(ProviderNotice::Added { name });
        drop(table);
        self.tell();
        Ok(registration)
    }

    /// Tells listeners what they have not been told, outside the lock and in order.
    fn tell(&self) {
        loop {
            let mut table = self.table();
            if table.telling {
                return;
            }
            let Some(notice) = table.untold.pop_front() else { return };
            table.telling = true;
            drop(table);
            self.lifecycle().provider.tell_everyone(&notice);
            self.table().telling = false;
        }
    }

    /// The registered names, in order of registration.
    pub fn names(&self) -> Vec<String> {
        self.table().providers.iter().map(|provider| provider.name().to_owned()).collect()
    }

    /// The provider of this name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn ChildProvider>> {
        self.table().providers.iter().find(|provider| provider.name() == name).cloned()
    }

    /// Starts a child.
    ///
    /// # Errors
    ///
    /// In this order: [`ChildError::NoProvider`], [`ChildError::UnsupportedCapability`] for the
    /// first thing that the provider cannot do, [`ChildError::Schema`], and what the provider says.
    pub async fn start(&self, provider: &str, request: ChildRequest) -> Result<Run, ChildError> {
        let Some(provider) = self.get(provider) else {
            let known = self.names().join(", ");
            return Err(ChildError::NoProvider { name: provider.to_owned(), known });
        };
        let can = provider.capabilities();
        let asked = [
            (request.output_schema.is_some(), can.output_schema, "outputSchema"),
            (request.max_depth.is_some(), can.depth_limit, "depthLimit"),
            (request.tool_filter.is_some(), can.tool_filter, "toolFilter"),
            (request.persona.is_some(), can.persona, "persona"),
        ];
        if let Some((_, _, capability)) = asked.into_iter().find(|(asked, can, _)| *asked && !can) {
            let provider = provider.name().to_owned();
            return Err(ChildError::UnsupportedCapability { provider, capability });
        }
        request.output_schema.as_ref().map(Structured::new).transpose()?;
        let parent = request.parent.clone();
        let start = AssertUnwindSafe(async { provider.start(request).await }).catch_unwind();
        let started = start.await;
        let run = started.unwrap_or_else(|panic| Err(ChildError::Start(panic_failure(&*panic))))?;
        let started =
            self.lifecycle().begin(parent, provider.name(), run.id(), run.agent().is_some());
        // Ends with the run, which ends with whatever owns it.
        let (registry, watched) = (self.clone(), run.clone());
        tokio::spawn(async move {
            let result = watched.result().await;
            registry.lifecycle().end(started, result.as_ref().ok());
        });
        Ok(run)
    }

    /// Where to listen for starts and ends.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.0.lifecycle
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ChildProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
