//! Which tools a scope sees.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use playhouse_messages::config::ToolList;
use serde_json::Value;

use super::{ArgumentSchema, Concurrency, SchemaError, Tool, ToolCallContext};
use crate::{
    hook::panic_text,
    scope::{Registration, Scope, ScopeClosed, ScopeId},
    watch,
};

/// The tools of a harness, in layers: one a scope. The nearest layer that has a name wins. Clones
/// are the same registry.
#[derive(Clone)]
pub struct ToolRegistry(Arc<Inner>);

struct Inner {
    layers: RwLock<Layers>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Layers {
    next: u64,
    by_scope: HashMap<ScopeId, Layer>,
}

#[derive(Default)]
struct Layer {
    tools: BTreeMap<String, (u64, Arc<RegisteredTool>)>,
    filters: Vec<(u64, ToolFilter)>,
    guards: Vec<(u64, Arc<GuardFn>)>,
}

impl Layer {
    fn is_empty(&self) -> bool {
        self.tools.is_empty() && self.filters.is_empty() && self.guards.is_empty()
    }
}

type GuardFn = dyn Fn(&ToolCallContext) -> Option<String> + Send + Sync;

/// A tool with its compiled schemas.
pub struct RegisteredTool {
    tool: Arc<dyn Tool>,
    parameters: ArgumentSchema,
    output: Option<ArgumentSchema>,
}

impl RegisteredTool {
    /// The tool.
    pub fn tool(&self) -> &Arc<dyn Tool> {
        &self.tool
    }

    /// What its arguments must satisfy.
    pub fn parameters(&self) -> &ArgumentSchema {
        &self.parameters
    }

    /// What its success values must satisfy.
    pub fn output(&self) -> Option<&ArgumentSchema> {
        self.output.as_ref()
    }

    fn name(&self) -> &str {
        &self.tool.schema().name
    }
}

impl fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredTool({})", self.name())
    }
}

/// Masks inherited tools by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolFilter {
    /// Only these stay; `None` keeps all.
    pub allow: Option<BTreeSet<String>>,
    /// These go.
    pub deny: BTreeSet<String>,
}

impl ToolFilter {
    /// Keeps only these names.
    pub fn allow<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self { allow: Some(names.into_iter().map(Into::into).collect()), deny: BTreeSet::new() }
    }

    /// Drops these names.
    pub fn deny<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self { allow: None, deny: names.into_iter().map(Into::into).collect() }
    }

    fn admits(&self, name: &str) -> bool {
        self.allow.as_ref().is_none_or(|allow| allow.contains(name)) && !self.deny.contains(name)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.allow.iter().flatten().chain(&self.deny)
    }
}

/// Why the registry refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolRegistryError {
    /// The name is taken in the outermost layer.
    #[error(
        "tool \"{name}\" is already registered; register it in an agent's scope to replace it there"
    )]
    DuplicateGlobal {
        /// The name.
        name: String,
    },
    /// The name is taken in the scope's layer.
    #[error("tool \"{name}\" is already registered in this scope")]
    DuplicateInScope {
        /// The name.
        name: String,
    },
    /// A tool without a name.
    #[error("a tool needs a name")]
    Unnamed,
    /// A schema of the tool is not valid.
    #[error("tool \"{name}\": {cause}")]
    Schema {
        /// The tool.
        name: String,
        /// What is wrong.
        cause: SchemaError,
    },
    /// A zero time budget.
    #[error("tool \"{name}\" timeoutMs must be a positive finite number")]
    Timeout {
        /// The tool.
        name: String,
    },
    /// A restriction on a scope that inherits nothing.
    #[error("tools can only be restricted in a scope below another; `{scope}` is outermost")]
    NotScoped {
        /// The scope's name.
        scope: String,
    },
    /// A restriction without a list.
    #[error("a tool restriction needs an allow list or a deny list")]
    EmptyFilter,
    /// A restriction names tools that the scope does not inherit.
    #[error("tool restriction names unknown tool(s) {names}; known tools: {known}")]
    UnknownInherited {
        /// The names, quoted.
        names: String,
        /// The inherited names, joined by commas.
        known: String,
    },
    /// The scope was closed.
    #[error(transparent)]
    Closed(#[from] ScopeClosed),
}

impl ToolRegistryError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::DuplicateGlobal { .. } | Self::DuplicateInScope { .. } => "TOOL_DUPLICATE",
            Self::Unnamed | Self::Timeout { .. } => "INVALID_TOOL",
            Self::Schema { cause, .. } => cause.code(),
            Self::NotScoped { .. } | Self::EmptyFilter => "INVALID_RESTRICTION",
            Self::UnknownInherited { .. } => "UNKNOWN_TOOL",
            Self::Closed(closed) => closed.code(),
        }
    }
}

impl From<ToolRegistryError> for playhouse_messages::chunk::Failure {
    fn from(error: ToolRegistryError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl ToolRegistry {
    /// A registry without tools.
    pub fn new() -> Self {
        let changes = watch::Sender::new(0);
        Self(Arc::new(Inner { layers: RwLock::default(), changes }))
    }

    /// Registers a tool for the agents at or below `scope`, until the scope closes.
    pub fn register(
        &self,
        scope: &Scope,
        tool: Arc<dyn Tool>,
    ) -> Result<Registration, ToolRegistryError> {
        let name = tool.schema().name.clone();
        if name.is_empty() {
            return Err(ToolRegistryError::Unnamed);
        }
        if tool.timeout().is_some_and(|timeout| timeout.is_zero()) {
            return Err(ToolRegistryError::Timeout { name });
        }
        let fault = |cause| ToolRegistryError::Schema { name: name.clone(), cause };
        let parameters = ArgumentSchema::parameters(&tool.schema().parameters).map_err(fault)?;
        let output = tool.output_schema().map(ArgumentSchema::output).transpose().map_err(fault)?;
        let entry = Arc::new(RegisteredTool { tool, parameters, output });
        self.enter(scope, move |layer, key| {
            if layer.tools.contains_key(&name) {
                return Err(match scope.parent() {
                    None => ToolRegistryError::DuplicateGlobal { name },
                    Some(_) => ToolRegistryError::DuplicateInScope { name },
                });
            }
            layer.tools.insert(name, (key, entry));
            Ok(())
        })
    }

    /// Masks tools that `scope` inherits, for the agents at or below it. Restrictions intersect; a
    /// tool registered later is judged by the same lists. What is registered in `scope` itself is
    /// exempt, so that a restricted agent keeps the tools that it was given.
    pub fn restrict(
        &self,
        scope: &Scope,
        filter: ToolFilter,
    ) -> Result<Registration, ToolRegistryError> {
        let Some(parent) = scope.parent() else {
            return Err(ToolRegistryError::NotScoped { scope: scope.name().to_owned() });
        };
        if filter.allow.is_none() && filter.deny.is_empty() {
            return Err(ToolRegistryError::EmptyFilter);
        }
        let known = self.known_names(parent);
        let unknown: Vec<_> = filter.names().filter(|name| !known.contains(*name)).collect();
        if !unknown.is_empty() {
            return Err(ToolRegistryError::UnknownInherited {
                names: quoted(unknown),
                known: joined(&known),
            });
        }
        self.enter(scope, |layer, key| {
            layer.filters.push((key, filter));
            Ok(())
        })
    }

    /// The restrictions that were registered in exactly this scope.
    pub fn restrictions(&self, scope: &Scope) -> Vec<ToolFilter> {
        let layers = self.read();
        let filters = layers.by_scope.get(&scope.id()).into_iter().flat_map(|layer| &layer.filters);
        filters.map(|(_, filter)| filter.clone()).collect()
    }

    /// Adds a check that may deny calls of the agents at or below `scope`, and never allow one. It
    /// runs after policy and approval, right before the body, and must be quick; a panic denies.
    pub fn guard(
        &self,
        scope: &Scope,
        guard: impl Fn(&ToolCallContext) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Registration, ToolRegistryError> {
        self.enter(scope, |layer, key| {
            layer.guards.push((key, Arc::new(guard)));
            Ok(())
        })
    }

    /// The tool that a call of this name reaches from `scope`.
    pub fn lookup(&self, scope: &Scope, name: &str) -> Option<Arc<RegisteredTool>> {
        let layers = self.read();
        for scope in scope.chain() {
            let Some(layer) = layers.by_scope.get(&scope.id()) else { continue };
            if let Some((_, entry)) = layer.tools.get(name) {
                return Some(entry.clone());
            }
            if !layer.filters.iter().all(|(_, filter)| filter.admits(name)) {
                return None;
            }
        }
        None
    }

    /// The tools that `scope` sees, ordered by name: a provider caches requests by their prefix, so
    /// the order must not depend on who registered first. The prompt registry may order otherwise.
    pub fn visible(&self, scope: &Scope) -> Vec<Arc<dyn Tool>> {
        let mut found: BTreeMap<String, Arc<dyn Tool>> = BTreeMap::new();
        let layers = self.read();
        let mut filters: Vec<&ToolFilter> = Vec::new();
        for scope in scope.chain() {
            let Some(layer) = layers.by_scope.get(&scope.id()) else { continue };
            for (name, (_, entry)) in &layer.tools {
                if filters.iter().all(|filter| filter.admits(name)) {
                    found.entry(name.clone()).or_insert_with(|| entry.tool.clone());
                }
            }
            filters.extend(layer.filters.iter().map(|(_, filter)| filter));
        }
        found.into_values().collect()
    }

    /// As [`ToolRegistry::visible`], as a request carries it.
    pub fn schemas(&self, scope: &Scope) -> ToolList {
        self.visible(scope).iter().map(|tool| tool.schema().clone()).collect()
    }

    /// How a call would run that starts now: parallel only if the visible tool says so for valid
    /// arguments.
    pub fn classify(&self, scope: &Scope, name: &str, arguments: &Value) -> Concurrency {
        let Some(entry) = self.lookup(scope, name) else { return Concurrency::Exclusive };
        if !entry.parameters.violations(arguments).is_empty() {
            return Concurrency::Exclusive;
        }
        catch_unwind(AssertUnwindSafe(|| entry.tool.concurrency(arguments)))
            .unwrap_or(Concurrency::Exclusive)
    }

    /// The first reason of a guard to deny the call, outermost scope first.
    pub fn denial(&self, call: &ToolCallContext) -> Option<String> {
        let guards: Vec<Arc<GuardFn>> = {
            let layers = self.read();
            let mut chain: Vec<_> = call.scope().chain().map(Scope::id).collect();
            chain.reverse();
            let layers = chain.iter().filter_map(|scope| layers.by_scope.get(scope));
            layers.flat_map(|layer| layer.guards.iter().map(|(_, guard)| guard.clone())).collect()
        };
        guards.iter().find_map(|guard| {
            catch_unwind(AssertUnwindSafe(|| guard(call))).unwrap_or_else(|panic| {
                Some(format!(
                    "a guard of tool \"{}\" panicked: {}",
                    call.name(),
                    panic_text(&*panic)
                ))
            })
        })
    }

    /// Counts changes of tools, restrictions and guards.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Every name registered in `scope` and above, masked or not.
    fn known_names(&self, scope: &Scope) -> BTreeSet<String> {
        names_in(&self.read(), scope)
    }

    fn enter(
        &self,
        scope: &Scope,
        enter: impl FnOnce(&mut Layer, u64) -> Result<(), ToolRegistryError>,
    ) -> Result<Registration, ToolRegistryError> {
        let key = {
            let mut layers = self.write();
            let key = layers.next;
            layers.next += 1;
            let layer = layers.by_scope.entry(scope.id()).or_default();
            let entered = enter(layer, key);
            if layer.is_empty() {
                layers.by_scope.remove(&scope.id());
            }
            entered?;
            key
        };
        let (weak, id) = (Arc::downgrade(&self.0), scope.id());
        let registration = scope.on_close(move || {
            if let Some(inner) = weak.upgrade() {
                Self(inner).leave(id, key);
            }
        });
        match registration {
            Ok(registration) => {
                self.changed();
                Ok(registration)
            }
            Err(closed) => {
                self.leave(scope.id(), key);
                Err(closed.into())
            }
        }
    }

    fn leave(&self, scope: ScopeId, key: u64) {
        {
            let mut layers = self.write();
            let Some(layer) = layers.by_scope.get_mut(&scope) else { return };
            layer.tools.retain(|_, (at, _)| *at != key);
            layer.filters.retain(|(at, _)| *at != key);
            layer.guards.retain(|(at, _)| *at != key);
            if layer.is_empty() {
                layers.by_scope.remove(&scope);
            }
        }
        self.changed();
    }

    fn changed(&self) {
        self.0.changes.send_modify(|generation| *generation += 1);
    }

    fn read(&self) -> RwLockReadGuard<'_, Layers> {
        self.0.layers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Layers> {
        self.0.layers.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ToolRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolRegistry({} layers)", self.read().by_scope.len())
    }
}

fn names_in(layers: &Layers, scope: &Scope) -> BTreeSet<String> {
    let layers = scope.chain().filter_map(|scope| layers.by_scope.get(&scope.id()));
    layers.flat_map(|layer| layer.tools.keys().cloned()).collect()
}

fn quoted<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let quoted: Vec<_> = names.into_iter().map(|name| format!("\"{name}\"")).collect();
    quoted.join(", ")
}

fn joined(names: &BTreeSet<String>) -> String {
    if names.is_empty() {
        return "(none)".to_owned();
    }
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
