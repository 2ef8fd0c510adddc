//! What plugins offer each other: values by name and type.

use std::{
    any::{Any, type_name},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    scope::{Registration, Scope, ScopeClosed, ScopeId},
    watch,
};

/// The services of a harness. Clones are the same container.
///
/// A service has one provider at a time, wherever its scope is, and goes with that scope. A plugin
/// that lists a service in [`Plugin::requires`](crate::plugin::Plugin::requires) is set up once it is
/// there, and unwound when it goes.
///
/// ```
/// use std::sync::Arc;
/// use playhouse_plugin_api::{scope::Scope, service::Services};
///
/// trait Shell: Send + Sync {
///     fn run(&self, command: &str) -> String;
/// }
/// struct Echo;
/// impl Shell for Echo {
///     fn run(&self, command: &str) -> String {
///         command.to_owned()
///     }
/// }
///
/// let (services, scope) = (Services::new(), Scope::root("echo"));
/// services.provide::<dyn Shell>(&scope, "shell", Arc::new(Echo))?;
/// assert_eq!(services.require::<dyn Shell>("shell")?.run("hi"), "hi");
/// scope.close();
/// assert!(services.get::<dyn Shell>("shell").is_none());
/// # Ok::<(), playhouse_plugin_api::service::ServiceError>(())
/// ```
#[derive(Clone)]
pub struct Services(Arc<Inner>);

struct Inner {
    table: Mutex<Table>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Table {
    next: u64,
    entries: Vec<Entry>,
    /// Scopes that may provide nothing, nor those below them.
    closed_to: Vec<ScopeId>,
}

struct Entry {
    name: &'static str,
    instance: ServiceInstance,
    scope: String,
    /// `Arc<T>` under the type-erasing box, so that `T` may be a trait object.
    service: Box<dyn Any + Send + Sync>,
    type_name: &'static str,
}

/// Tells one provision of a service from the next of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceInstance(u64);

/// Why a service could not be provided or had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// Someone provides it already.
    #[error(
        "service `{name}` is already provided by scope `{provider}`; remove that one first or \
         choose another name"
    )]
    Duplicate {
        /// The service.
        name: &'static str,
        /// The scope that provides it.
        provider: String,
    },
    /// Nobody provides it.
    #[error("service `{name}` is not there; list it in `requires` to wait for it")]
    Missing {
        /// The service.
        name: String,
    },
    /// It is there, as another type.
    #[error("service `{name}` of scope `{provider}` is a `{actual}`, not a `{expected}`")]
    WrongType {
        /// The service.
        name: String,
        /// The scope that provides it.
        provider: String,
        /// The type that was asked for.
        expected: &'static str,
        /// The type that was provided.
        actual: &'static str,
    },
    /// The scope is for some agents only, and a service is everybody's.
    #[error(
        "service `{name}` cannot be provided from scope `{scope}`, which is for some agents only: \
         let a plugin of the harness provide it"
    )]
    Scoped {
        /// The service.
        name: &'static str,
        /// The scope.
        scope: String,
    },
    /// The scope is closed.
    #[error(transparent)]
    Closed(#[from] ScopeClosed),
}

impl ServiceError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Duplicate { .. } => "SERVICE_DUPLICATE",
            Self::Missing { .. } => "SERVICE_MISSING",
            Self::WrongType { .. } => "SERVICE_WRONG_TYPE",
            Self::Scoped { .. } => "SERVICE_SCOPED",
            Self::Closed(closed) => closed.code(),
        }
    }
}

impl From<ServiceError> for playhouse_messages::chunk::Failure {
    fn from(error: ServiceError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl Services {
    /// An empty container.
    pub fn new() -> Self {
        Self(Arc::new(Inner { table: Mutex::default(), changes: watch::Sender::new(0) }))
    }

    /// Offers a service until `scope` closes. `T` is what others ask for, often a `dyn Trait`.
    pub fn provide<T: ?Sized + Send + Sync + 'static>(
        &self,
        scope: &Scope,
        name: &'static str,
        service: Arc<T>,
    ) -> Result<Registration, ServiceError> {
        let mut table = self.table();
        if table.closed_to.iter().any(|closed| scope.is_within(*closed)) {
            return Err(ServiceError::Scoped { name, scope: scope.name().to_owned() });
        }
        if let Some(entry) = table.entries.iter().find(|entry| entry.name == name) {
            return Err(ServiceError::Duplicate { name, provider: entry.scope.clone() });
        }
        let instance = ServiceInstance(table.next);
        table.next += 1;
        let services = self.clone();
        // Under the lock: a scope that closes meanwhile waits, and then finds what to remove.
        let registration = scope.on_close(move || {
            let taken = services.take(instance);
            // Told before the last handle may be dropped, which runs the provider's code.
            services.changed();
            drop(taken);
        })?;
        table.entries.push(Entry {
            name,
            instance,
            scope: scope.name().to_owned(),
            service: Box::new(service),
            type_name: type_name::<T>(),
        });
        drop(table);
        self.changed();
        Ok(registration)
    }

    /// Refuses services from this scope and those below it, until it closes: it is for some agents
    /// only, and a service would be everybody's.
    ///
    /// # Errors
    ///
    /// The scope is closed.
    pub fn refuse_from(&self, scope: &Scope) -> Result<Registration, ScopeClosed> {
        let (services, id) = (self.clone(), scope.id());
        let mut table = self.table();
        let registration =
            scope.on_close(move || services.table().closed_to.retain(|closed| *closed != id))?;
        table.closed_to.push(id);
        Ok(registration)
    }

    /// The service, if it is there and a `T`; [`Services::require`] says which of both is not so.
    pub fn get<T: ?Sized + Send + Sync + 'static>(&self, name: &str) -> Option<Arc<T>> {
        self.require(name).ok()
    }

    /// The service, or why it cannot be had.
    pub fn require<T: ?Sized + Send + Sync + 'static>(
        &self,
        name: &str,
    ) -> Result<Arc<T>, ServiceError> {
        let table = self.table();
        let Some(entry) = table.entries.iter().find(|entry| entry.name == name) else {
            return Err(ServiceError::Missing { name: name.to_owned() });
        };
        match entry.service.downcast_ref::<Arc<T>>() {
            Some(service) => Ok(service.clone()),
            None => Err(ServiceError::WrongType {
                name: name.to_owned(),
                provider: entry.scope.clone(),
                expected: type_name::<T>(),
                actual: entry.type_name,
            }),
        }
    }

    /// Which provision of the service is there. Another one of the same name is another instance.
    pub fn instance(&self, name: &str) -> Option<ServiceInstance> {
        self.table().entries.iter().find(|entry| entry.name == name).map(|entry| entry.instance)
    }

    /// As [`Services::instance`] for several, all at one moment.
    pub fn instances(&self, names: &[&'static str]) -> Vec<Option<ServiceInstance>> {
        let table = self.table();
        let instance = |name: &&'static str| {
            table.entries.iter().find(|entry| entry.name == *name).map(|entry| entry.instance)
        };
        names.iter().map(instance).collect()
    }

    /// Counts every service that comes or goes.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn take(&self, instance: ServiceInstance) -> Option<Entry> {
        let mut table = self.table();
        let position = table.entries.iter().position(|entry| entry.instance == instance)?;
        Some(table.entries.remove(position))
    }

    fn changed(&self) {
        self.0.changes.send_modify(|generation| *generation += 1);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Services {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        f.debug_set().entries(table.entries.iter().map(|entry| entry.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_goes_with_its_scope_and_comes_back_as_another_instance() {
        let (services, root) = (Services::new(), Scope::root("root"));
        let mut watch = services.watch();
        let scope = root.child("first").unwrap();
        services.provide(&scope, "number", Arc::new(1_u32)).unwrap();
        assert_eq!(*watch.borrow_and_update(), 1);
        let first = services.instance("number");
        assert_eq!(services.get::<u32>("number").as_deref(), Some(&1));
        scope.close();
        assert_eq!(*watch.borrow_and_update(), 2);
        assert_eq!(services.require::<u32>("number").unwrap_err().code(), "SERVICE_MISSING");
        let second = services.provide(&root, "number", Arc::new(2_u32)).unwrap();
        assert_ne!(services.instances(&["number", "other"]), [first, None]);
        second.remove();
        second.remove();
        assert_eq!((*watch.borrow_and_update(), services.instance("number")), (4, None));
        assert_eq!(
            services.provide(&scope, "number", Arc::new(3_u32)).unwrap_err().code(),
            "SCOPE_CLOSED"
        );
    }

    #[test]
    fn a_second_provider_is_refused_and_does_no_harm() {
        let (services, root) = (Services::new(), Scope::root("root"));
        services.provide(&root, "number", Arc::new(1_u32)).unwrap();
        let other = root.child("other").unwrap();
        let refused = services.provide(&other, "number", Arc::new(2_u32)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "service `number` is already provided by scope `root`; remove that one first or \
             choose another name"
        );
        other.close();
        assert_eq!(services.get::<u32>("number").as_deref(), Some(&1));
    }

    #[test]
    fn a_scope_for_some_agents_provides_nothing_nor_what_is_below_it() {
        let (services, root) = (Services::new(), Scope::root("root"));
        let some = root.child("some").unwrap();
        services.refuse_from(&some).unwrap();
        for scope in [&some, &some.child("below").unwrap()] {
            let refused = services.provide(scope, "number", Arc::new(1_u32)).unwrap_err();
            assert_eq!(refused.code(), "SERVICE_SCOPED");
        }
        services.provide(&root, "number", Arc::new(1_u32)).unwrap();
        some.close();
        assert!(services.table().closed_to.is_empty());
    }

    #[test]
    fn another_type_is_an_error_that_names_both() {
        let (services, root) = (Services::new(), Scope::root("root"));
        services.provide(&root, "number", Arc::new(1_u32)).unwrap();
        assert!(services.get::<u64>("number").is_none());
        assert_eq!(
            services.require::<u64>("number").unwrap_err().to_string(),
            "service `number` of scope `root` is a `u32`, not a `u64`"
        );
    }
}
