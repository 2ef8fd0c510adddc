//! Blueprints: what agents of a kind are made from, by name, so that one can be made again.
//!
//! An agent's header names its blueprint. Whoever has the name and the session can make the agent
//! anew: that is how one that [hibernates](crate::agent::AgentError::Hibernated) wakes.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use playhouse_messages::chunk::Failure;

use crate::{
    agent::Agent,
    creation::SetUp,
    options::AgentOptions,
    scope::{Registration, Scope, ScopeClosed},
};

/// What agents of a kind are made from.
///
/// ```
/// use playhouse_plugin_api::{blueprint::Blueprint, options::AgentOptions};
///
/// let clerk = Blueprint::new(AgentOptions::new().model("deepseek", "deepseek-v4-flash"))
///     .set_up(|agent| async move {
///         // The log says if this is its first life.
///         if agent.session().log().is_empty() {
///             agent.inject("You keep the books of one customer.").await?;
///         }
///         Ok(())
///     });
/// # drop(clerk);
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Blueprint {
    /// The options.
    pub options: AgentOptions,
    /// The scope that owns the agents: its closing disposes those that live, and lets none wake. The
    /// harness's if absent.
    pub owner: Option<Scope>,
    /// The scope whose registrations they see; the owner if absent.
    pub within: Option<Scope>,
    /// Runs before each life of an agent, the first and every later one.
    pub set_up: Option<SetUp>,
}

impl Blueprint {
    /// A blueprint with these options.
    pub fn new(options: AgentOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Its agents are owned by this scope.
    #[must_use]
    pub fn owned_by(mut self, owner: Scope) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Its agents see what is registered in this scope and above it, whoever owns them.
    #[must_use]
    pub fn within(mut self, scope: Scope) -> Self {
        self.within = Some(scope);
        self
    }

    /// Its agents are set up by this, in each of their lives. What it registers in the agent's scope
    /// is back after a hibernation; what others register there later is not, and keeps the agent
    /// awake. It must not append to a log that has its events already.
    #[must_use]
    pub fn set_up<F, Fut>(mut self, set_up: F) -> Self
    where
        F: Fn(Agent) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.set_up = Some(Arc::new(move |agent| Box::pin(set_up(agent))));
        self
    }
}

impl fmt::Debug for Blueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blueprint").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Why a blueprint was not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlueprintError {
    /// The name is taken, or empty.
    #[error("blueprint \"{name}\" cannot be registered: {problem}; choose another name")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The scope is closed.
    #[error(transparent)]
    Closed(#[from] ScopeClosed),
}

impl BlueprintError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Name { .. } => "BLUEPRINT_NAME",
            Self::Closed(closed) => closed.code(),
        }
    }
}

impl From<BlueprintError> for Failure {
    fn from(error: BlueprintError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// The blueprints of a harness, by name. Clones are the same registry.
#[derive(Debug, Clone, Default)]
pub struct Blueprints(Arc<Mutex<BTreeMap<Arc<str>, Blueprint>>>);

impl Blueprints {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a blueprint until the scope closes. Its name stands in the headers of its agents, so
    /// a later process must register it under the same one before it wakes them.
    ///
    /// # Errors
    ///
    /// If the name is taken or empty, or the scope is closed.
    pub fn register(
        &self,
        scope: &Scope,
        name: impl Into<String>,
        blueprint: Blueprint,
    ) -> Result<Registration, BlueprintError> {
        let name = name.into();
        if name.trim().is_empty() {
            return Err(BlueprintError::Name { name, problem: "a name must not be empty" });
        }
        let name = Arc::<str>::from(name);
        match self.table().entry(name.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(blueprint);
            }
            Entry::Occupied(_) => {
                let problem = "the name is taken";
                return Err(BlueprintError::Name { name: (*name).to_owned(), problem });
            }
        }
        let (table, key) = (Arc::downgrade(&self.0), name.clone());
        let registered = scope.on_close(move || {
            if let Some(table) = table.upgrade() {
                Self(table).table().remove(&key);
            }
        });
        if registered.is_err() {
            self.table().remove(&name);
        }
        Ok(registered?)
    }

    /// The blueprint of this name.
    pub fn get(&self, name: &str) -> Option<Blueprint> {
        self.table().get(name).cloned()
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Blueprint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_blueprint_until_its_scope_closes() {
        let (blueprints, scope) = (Blueprints::new(), Scope::root("plugin"));
        let of = |tokens| Blueprint::new(AgentOptions::new().max_tokens(tokens));
        blueprints.register(&scope, "clerk", of(1)).unwrap();
        let taken = blueprints.register(&Scope::root("other"), "clerk", of(2)).unwrap_err();
        assert_eq!(taken.code(), "BLUEPRINT_NAME");
        assert!(blueprints.register(&scope, " ", of(3)).is_err());
        assert_eq!(blueprints.get("clerk").unwrap().options.max_tokens, Some(1));
        scope.close();
        assert!(blueprints.get("clerk").is_none());
        assert_eq!(blueprints.register(&scope, "clerk", of(4)).unwrap_err().code(), "SCOPE_CLOSED");
        assert!(blueprints.get("clerk").is_none());
    }
}
