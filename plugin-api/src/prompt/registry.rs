//! Who contributes what to prompts, by scope.

use std::{
    cmp::Ordering,
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;

use super::{
    AssembleContext, AssembleInput, Assembly, Context, PromptError, Section, Text, ToolOffer,
    ToolOrder, is_variable_name,
};
use crate::{
    hook::{Around, panic_failure},
    scope::{Registration, Scope, ScopeClosed, ScopeId},
    watch,
};

/// Everything that plugins contribute to prompts. Clones are the same registry.
///
/// A contribution counts for the agents at or below its scope, and ends with it. The nearest one of
/// a name wins; those it shadows are not even evaluated.
#[derive(Clone)]
pub struct PromptRegistry(Arc<Inner>);

struct Inner {
    table: Mutex<Table>,
    changes: watch::Sender<u64>,
    assemble: Around<AssembleInput, Assembly>,
}

#[derive(Default)]
struct Table {
    next: u64,
    sections: Layers<Section>,
    contexts: Layers<Context>,
    variables: Layers<Text>,
    tools: Layers<ToolsFn>,
    suppressed: Layers<()>,
    order: Option<Arc<ToolOrder>>,
}

type ToolsFn = Box<dyn Fn(&AssembleContext) -> ToolOffer + Send + Sync>;

/// Registrations of one kind: one layer a scope, each in order.
struct Layers<T>(HashMap<ScopeId, Vec<Entry<T>>>);

struct Entry<T> {
    key: u64,
    name: String,
    item: Arc<T>,
}

impl<T> Default for Layers<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Layers<T> {
    fn has(&self, scope: &Scope, name: &str) -> bool {
        let layer = self.0.get(&scope.id());
        layer.is_some_and(|layer| layer.iter().any(|entry| entry.name == name))
    }

    fn take(&mut self, scope: ScopeId, key: u64) -> Option<Entry<T>> {
        let layer = self.0.get_mut(&scope)?;
        let position = layer.iter().position(|entry| entry.key == key)?;
        let taken = layer.remove(position);
        if layer.is_empty() {
            self.0.remove(&scope);
        }
        Some(taken)
    }

    /// What the scope sees, outermost layer first.
    fn layers<'a>(&'a self, scope: &Scope) -> impl Iterator<Item = (ScopeId, &'a Entry<T>)> {
        let mut chain: Vec<_> = scope.chain().map(Scope::id).collect();
        chain.reverse();
        chain
            .into_iter()
            .flat_map(|id| self.0.get(&id).into_iter().flatten().map(move |entry| (id, entry)))
    }

    /// What the scope sees by name: a nearer one takes the place of the one that it shadows.
    fn effective(&self, scope: &Scope) -> Vec<(String, Arc<T>)> {
        let mut effective: Vec<(String, Arc<T>)> = Vec::new();
        for (_, entry) in self.layers(scope) {
            match effective.iter_mut().find(|(name, _)| *name == entry.name) {
                Some((_, item)) => *item = entry.item.clone(),
                None => effective.push((entry.name.clone(), entry.item.clone())),
            }
        }
        effective
    }
}

/// What one scope sees, taken at one moment.
pub(super) struct View {
    pub(super) sections: Vec<Arc<Section>>,
    pub(super) contexts: Vec<Arc<Context>>,
    pub(super) variables: Vec<(String, Arc<Text>)>,
    pub(super) tools: Vec<(ScopeId, Arc<ToolsFn>)>,
    pub(super) suppressed: bool,
    pub(super) order: Option<Arc<ToolOrder>>,
}

impl PromptRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            table: Mutex::default(),
            changes: watch::Sender::new(0),
            assemble: Around::new(),
        }))
    }

    /// Adds a section of the system prompt.
    pub fn section(&self, scope: &Scope, section: Section) -> Result<Registration, PromptError> {
        check("prompt section", &section.name, section.order)?;
        let name = section.name.clone();
        self.add("prompt section", scope, name, section, |table| &mut table.sections)
    }

    /// Adds a runtime fact.
    pub fn context(&self, scope: &Scope, context: Context) -> Result<Registration, PromptError> {
        check("runtime context", &context.name, context.order)?;
        let name = context.name.clone();
        self.add("runtime context", scope, name, context, |table| &mut table.contexts)
    }

    /// Adds a variable that texts refer to as `{{name}}`. It is computed once an assembly; `None`
    /// fails the prompt only where the variable is referenced. `provider` and `model` are there
    /// already, as in the outermost scope.
    pub fn variable<F, Fut, T>(
        &self,
        scope: &Scope,
        name: impl Into<String>,
        compute: F,
    ) -> Result<Registration, PromptError>
    where
        F: Fn(&AssembleContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Into<Option<String>> + 'static,
    {
        let name = name.into();
        if !is_variable_name(&name) {
            return Err(PromptError::VariableName { name });
        }
        let text = Text::computed(compute);
        self.add("prompt variable", scope, name, text, |table| &mut table.variables)
    }

    /// Adds a provider of tools. All that a scope sees contribute; of two tools with one name the
    /// nearer one counts.
    pub fn tools<F, T>(&self, scope: &Scope, offer: F) -> Result<Registration, PromptError>
    where
        F: Fn(&AssembleContext) -> T + Send + Sync + 'static,
        T: Into<ToolOffer>,
    {
        let offer: ToolsFn = Box::new(move |ctx| offer(ctx).into());
        self.add_unnamed(scope, offer, |table| &mut table.tools)
    }

    /// Keeps runtime facts from the agents at or below the scope; they are not evaluated for them.
    pub fn suppress_runtime_context(&self, scope: &Scope) -> Result<Registration, PromptError> {
        self.add_unnamed(scope, (), |table| &mut table.suppressed)
    }

    /// Sets the configured order of tools; `None` means by name.
    pub fn set_tool_order(&self, order: Option<ToolOrder>) {
        self.table().order = order.map(Arc::new);
        self.changed();
    }

    /// Counts every change of the registry.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Wraps around the last stage of each assembly: a listener may change what the registry gives
    /// or replace it, and its word is final. Tools that it adds are not sorted, nothing is checked
    /// again. A complete section and the suppression of contexts hold all the same.
    pub fn on_assemble(&self) -> &Around<AssembleInput, Assembly> {
        &self.0.assemble
    }

    pub(super) fn view(&self, scope: &Scope) -> View {
        let table = self.table();
        let mut sections: Vec<_> =
            table.sections.effective(scope).into_iter().map(|(_, section)| section).collect();
        let mut contexts: Vec<_> =
            table.contexts.effective(scope).into_iter().map(|(_, context)| context).collect();
        // Stable sorts: equal orders keep the order of registration.
        sections.sort_by(|a, b| by_order(a.order, b.order));
        contexts.sort_by(|a, b| by_order(a.order, b.order));
        View {
            sections,
            contexts,
            variables: table.variables.effective(scope),
            tools: table.tools.layers(scope).map(|(id, entry)| (id, entry.item.clone())).collect(),
            suppressed: table.suppressed.layers(scope).next().is_some(),
            order: table.order.clone(),
        }
    }

    fn add<T: Send + Sync + 'static>(
        &self,
        kind: &'static str,
        scope: &Scope,
        name: String,
        item: T,
        layers: fn(&mut Table) -> &mut Layers<T>,
    ) -> Result<Registration, PromptError> {
        let mut table = self.table();
        if layers(&mut table).has(scope, &name) {
            return Err(match scope.parent() {
                None => PromptError::DuplicateGlobal { kind, name },
                Some(_) => PromptError::Duplicate { kind, name, scope: scope.name().to_owned() },
            });
        }
        Ok(self.insert(table, scope, name, item, layers)?)
    }

    fn add_unnamed<T: Send + Sync + 'static>(
        &self,
        scope: &Scope,
        item: T,
        layers: fn(&mut Table) -> &mut Layers<T>,
    ) -> Result<Registration, PromptError> {
        Ok(self.insert(self.table(), scope, String::new(), item, layers)?)
    }

    /// The table stays locked from the registration with the scope to the insertion: a scope that
    /// closes in between waits, and then finds what it has to remove.
    fn insert<T: Send + Sync + 'static>(
        &self,
        mut table: MutexGuard<'_, Table>,
        scope: &Scope,
        name: String,
        item: T,
        layers: fn(&mut Table) -> &mut Layers<T>,
    ) -> Result<Registration, ScopeClosed> {
        let key = table.next;
        table.next += 1;
        let (registry, layer) = (self.clone(), scope.id());
        let registration = scope.on_close(move || {
            let taken = layers(&mut registry.table()).take(layer, key);
            // Outside the lock: what a plugin's closure holds may unregister as it is dropped.
            drop(taken);
            registry.changed();
        })?;
        let layer = layers(&mut table).0.entry(layer).or_default();
        layer.push(Entry { key, name, item: Arc::new(item) });
        drop(table);
        self.changed();
        Ok(registration)
    }

    fn changed(&self) {
        self.0.changes.send_modify(|generation| *generation += 1);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for PromptRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for PromptRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let generation = *self.0.changes.borrow();
        f.debug_struct("PromptRegistry").field("generation", &generation).finish_non_exhaustive()
    }
}

/// Orders are finite, so they compare; 0 and -0 are equal.
fn by_order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or(Ordering::Equal)
}

fn check(kind: &'static str, name: &str, order: f64) -> Result<(), PromptError> {
    if name.is_empty() {
        return Err(PromptError::EmptyName { kind });
    }
    if !order.is_finite() {
        return Err(PromptError::Order { kind, name: name.to_owned(), order });
    }
    Ok(())
}

impl Text {
    /// The text for this assembly. Failures and panics name the contribution.
    pub(super) fn evaluate(
        &self,
        ctx: &AssembleContext,
        kind: &str,
        name: &str,
    ) -> BoxFuture<'static, Result<Option<String>, Failure>> {
        let compute = match self {
            Self::Fixed(text) => return futures::future::ready(Ok(Some((**text).into()))).boxed(),
            Self::Computed(compute) => compute,
        };
        let place = format!("{kind} \"{name}\"");
        let named = move |failure: Failure| Failure {
            message: format!("{place}: {}", failure.message),
            ..failure
        };
        match std::panic::catch_unwind(AssertUnwindSafe(|| compute(ctx))) {
            Ok(future) => AssertUnwindSafe(future)
                .catch_unwind()
                .map(|outcome| outcome.unwrap_or_else(|panic| Err(panic_failure(&*panic))))
                .map(|outcome| outcome.map_err(named))
                .boxed(),
            Err(panic) => futures::future::ready(Err(named(panic_failure(&*panic)))).boxed(),
        }
    }
}
