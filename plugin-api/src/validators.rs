//! Which rules are held against every event of every session, before it is committed.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use playhouse_messages::validator::Validator;

use crate::{
    patterns::Patterns,
    scope::{Registration, Scope, ScopeClosed},
};

/// The validators of a harness. They hold for all its sessions: those that live take up a new one
/// with their next append, having it follow their history first.
///
/// Clones are the same registry.
#[derive(Clone, Default)]
pub struct Validators(Arc<Inner>);

#[derive(Default)]
struct Inner {
    filter: ValidatorFilter,
    registered: Mutex<Registered>,
    active: ArcSwap<Vec<Arc<dyn Validator>>>,
}

#[derive(Default)]
struct Registered {
    next: u64,
    validators: Vec<(u64, Arc<dyn Validator>)>,
}

/// Selects validators by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValidatorFilter {
    /// Only those that fit one of these hold; empty, all do.
    pub allow: Patterns,
    /// Those that fit one of these do not hold, whatever is allowed.
    pub block: Patterns,
}

impl ValidatorFilter {
    /// Keeps only what fits.
    pub fn allow(patterns: impl Into<Patterns>) -> Self {
        Self { allow: patterns.into(), block: Patterns::default() }
    }

    /// Drops what fits.
    pub fn block(patterns: impl Into<Patterns>) -> Self {
        Self { allow: Patterns::default(), block: patterns.into() }
    }

    /// Whether a validator of this name holds.
    pub fn admits(&self, name: &str) -> bool {
        (self.allow.is_empty() || self.allow.fit(name)) && !self.block.fit(name)
    }
}

impl Validators {
    /// A registry in which only those hold that the filter admits.
    pub fn new(filter: ValidatorFilter) -> Self {
        Self(Arc::new(Inner { filter, ..Inner::default() }))
    }

    /// Holds a rule against every event from now on, until the scope closes. Of several, the one that
    /// was registered first is asked first.
    ///
    /// # Errors
    ///
    /// The scope is closed.
    pub fn register(
        &self,
        scope: &Scope,
        validator: impl Validator,
    ) -> Result<Registration, ScopeClosed> {
        let key = self.0.change(|registered| {
            registered.next += 1;
            registered.validators.push((registered.next, Arc::new(validator)));
            registered.next
        });
        let inner = self.0.clone();
        let remove =
            move || inner.change(|registered| registered.validators.retain(|(no, _)| *no != key));
        let registration = scope.on_close(remove.clone());
        if registration.is_err() {
            remove();
        }
        registration
    }

    /// Those that hold. The same list, by identity, as long as nothing changes.
    pub fn active(&self) -> Arc<Vec<Arc<dyn Validator>>> {
        self.0.active.load_full()
    }
}

impl Inner {
    fn change<T>(&self, change: impl FnOnce(&mut Registered) -> T) -> T {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = change(&mut registered);
        let all = registered.validators.iter().map(|(_, validator)| validator);
        let active = all.filter(|validator| self.filter.admits(validator.name()));
        // Under the lock, so that lists are published in the order of the changes.
        self.active.store(Arc::new(active.cloned().collect()));
        outcome
    }
}

impl fmt::Debug for Validators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.active().iter().map(|validator| validator.name())).finish()
    }
}

#[cfg(test)]
mod tests {
    use playhouse_messages::{candidate::Candidate, validator::Trace};

    use super::*;

    struct Named(&'static str);

    impl Validator for Named {
        fn name(&self) -> &str {
            self.0
        }

        fn trace(&self) -> Box<dyn Trace> {
            Box::new(Content)
        }
    }

    struct Content;

    impl Trace for Content {
        fn follow(&mut self, _: Candidate<'_>) -> Result<(), String> {
            Ok(())
        }

        fn fork(&self) -> Box<dyn Trace> {
            Box::new(Self)
        }
    }

    #[test]
    fn what_is_registered_holds_until_its_scope_closes_and_block_wins() {
        let filter = ValidatorFilter { allow: ["x/*"].into(), block: ["*/no"].into() };
        let validators = Validators::new(filter);
        let scope = Scope::root("root");
        let plugin = scope.child("plugin").unwrap();
        let names = || format!("{validators:?}");
        let first = validators.register(&scope, Named("x/a")).unwrap();
        validators.register(&plugin, Named("x/b")).unwrap();
        validators.register(&plugin, Named("y")).unwrap();
        validators.register(&plugin, Named("x/no")).unwrap();
        assert_eq!(names(), r#"["x/a", "x/b"]"#);
        assert!(Arc::ptr_eq(&validators.active(), &validators.active()));
        first.remove();
        assert_eq!(names(), r#"["x/b"]"#);
        plugin.close();
        assert_eq!(names(), "[]");
        assert!(validators.register(&plugin, Named("x/c")).is_err());
        assert_eq!(names(), "[]");
        assert!(ValidatorFilter::default().admits("any"));
        assert!(!ValidatorFilter::block(["an*"]).admits("any"));
        assert!(!ValidatorFilter::allow(["x"]).admits("any"));
    }
}
