//! Dispatch: around-middleware, serial points and notify points.
//!
//! A point is a list of listeners, each in a scope. A dispatch runs those that an agent's scope
//! chain admits. A panic in a listener is an error value for the turn, never a dead actor.

use std::{
    any::Any,
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicI64, Ordering},
    },
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::chunk::Failure;

use crate::scope::{Registration, Scope, ScopeClosed, ScopeId};

/// What a listener fails with. A model-layer [`Failure`] keeps its facts; any other error becomes
/// one of code `UNKNOWN`.
pub type HookResult<T> = Result<T, Failure>;

type AroundFn<I, O> =
    dyn Fn(I, Next<I, O>) -> BoxFuture<'static, HookResult<O>> + Send + Sync + 'static;
type BaseFn<I, O> = dyn Fn(I) -> BoxFuture<'static, HookResult<O>> + Send + Sync + 'static;

struct Entry<F: ?Sized> {
    /// Its place among the listeners of all scopes.
    place: i64,
    listener: Arc<F>,
}

/// By scope: a dispatch costs what the scope chain holds, however many scopes have listeners.
struct Listeners<F: ?Sized>(Arc<RwLock<HashMap<ScopeId, Vec<Entry<F>>>>>);

impl<F: ?Sized> Clone for Listeners<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: ?Sized + Send + Sync + 'static> Listeners<F> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn add(
        &self,
        scope: &Scope,
        first: bool,
        listener: Arc<F>,
    ) -> Result<Registration, ScopeClosed> {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        let place = NEXT.fetch_add(1, Ordering::Relaxed) * if first { -1 } else { 1 };
        let id = scope.id();
        self.write().entry(id).or_default().push(Entry { place, listener });
        let listeners = self.clone();
        let remove = move || listeners.remove(id, place);
        // It is in the list already: a scope that closes at this moment takes it out.
        let registration = scope.on_close(remove.clone());
        if registration.is_err() {
            remove();
        }
        registration
    }

    fn remove(&self, scope: ScopeId, place: i64) {
        let mut layers = self.write();
        let Some(layer) = layers.get_mut(&scope) else { return };
        let at = layer.iter().position(|entry| entry.place == place);
        let removed = at.map(|at| layer.remove(at));
        if layer.is_empty() {
            layers.remove(&scope);
        }
        drop(layers);
        // Outside the lock: what a listener holds may unregister as it is dropped.
        drop(removed);
    }

    fn admitted(&self, scope: &Scope) -> Vec<Arc<F>> {
        let layers = self.read();
        if layers.is_empty() {
            return Vec::new();
        }
        let chain = scope.chain().filter_map(|scope| layers.get(&scope.id()));
        let mut admitted: Vec<_> = chain.flatten().collect();
        admitted.sort_by_key(|entry| entry.place);
        admitted.into_iter().map(|entry| entry.listener.clone()).collect()
    }

    fn all(&self) -> Vec<Arc<F>> {
        let layers = self.read();
        let mut all: Vec<_> = layers.values().flatten().collect();
        all.sort_by_key(|entry| entry.place);
        all.into_iter().map(|entry| entry.listener.clone()).collect()
    }

    fn none_admitted(&self, scope: &Scope) -> bool {
        let layers = self.read();
        layers.is_empty() || !scope.chain().any(|scope| layers.contains_key(&scope.id()))
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<ScopeId, Vec<Entry<F>>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<ScopeId, Vec<Entry<F>>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A point that listeners wrap around a default: the value flows in through the listeners in
/// registration order, and the result back out. Returning without calling [`Next::run`]
/// short-circuits; the returned value is authoritative.
pub struct Around<I, O> {
    listeners: Listeners<AroundFn<I, O>>,
}

/// The rest of an around-chain. Cloneable, so that a listener may try twice.
pub struct Next<I, O> {
    rest: Arc<[Arc<AroundFn<I, O>>]>,
    at: usize,
    base: Arc<BaseFn<I, O>>,
}

impl<I, O> Clone for Next<I, O> {
    fn clone(&self) -> Self {
        Self { rest: self.rest.clone(), at: self.at, base: self.base.clone() }
    }
}

impl<I: Send + 'static, O: Send + 'static> Next<I, O> {
    /// Runs the listeners after this one, and at the end the default.
    pub fn run(self, input: I) -> BoxFuture<'static, HookResult<O>> {
        match self.rest.get(self.at).cloned() {
            Some(listener) => {
                let next = Self { at: self.at + 1, ..self };
                contain(move || listener(input, next))
            }
            None => (self.base)(input),
        }
    }
}

impl<I: Send + 'static, O: Send + 'static> Around<I, O> {
    /// A point without listeners.
    pub fn new() -> Self {
        Self { listeners: Listeners::new() }
    }

    /// Adds a listener for the agents at or below `scope`.
    pub fn add<F, Fut>(&self, scope: &Scope, listener: F) -> Result<Registration, ScopeClosed>
    where
        F: Fn(I, Next<I, O>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult<O>> + Send + 'static,
    {
        let listener = move |input, next| listener(input, next).boxed();
        self.listeners.add(scope, false, Arc::new(listener))
    }

    /// As [`Around::add`], outside all listeners that are there.
    pub fn add_first<F, Fut>(&self, scope: &Scope, listener: F) -> Result<Registration, ScopeClosed>
    where
        F: Fn(I, Next<I, O>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult<O>> + Send + 'static,
    {
        let listener = move |input, next| listener(input, next).boxed();
        self.listeners.add(scope, true, Arc::new(listener))
    }

    /// Whether any listener would run.
    pub fn is_empty_for(&self, scope: &Scope) -> bool {
        self.listeners.none_admitted(scope)
    }

    /// Runs the chain that `scope` admits around `base`. The listeners are those of this moment.
    pub fn run<B, Fut>(&self, scope: &Scope, input: I, base: B) -> BoxFuture<'static, HookResult<O>>
    where
        B: Fn(I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult<O>> + Send + 'static,
    {
        let rest = self.listeners.admitted(scope);
        if rest.is_empty() {
            return base(input).boxed();
        }
        let base = Arc::new(move |input| base(input).boxed());
        Next { rest: rest.into(), at: 0, base }.run(input)
    }
}

impl<I: Send + 'static, O: Send + 'static> Default for Around<I, O> {
    fn default() -> Self {
        Self::new()
    }
}

type SerialFn<I> = dyn Fn(I) -> BoxFuture<'static, HookResult<()>> + Send + Sync + 'static;

/// A point whose listeners run one after the other and are awaited; the first failure ends the
/// dispatch and skips the rest.
pub struct Serial<I> {
    listeners: Listeners<SerialFn<I>>,
}

impl<I: Clone + Send + 'static> Serial<I> {
    /// A point without listeners.
    pub fn new() -> Self {
        Self { listeners: Listeners::new() }
    }

    /// Adds a listener for the agents at or below `scope`.
    pub fn add<F, Fut>(&self, scope: &Scope, listener: F) -> Result<Registration, ScopeClosed>
    where
        F: Fn(I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult<()>> + Send + 'static,
    {
        self.listeners.add(scope, false, Arc::new(move |input| listener(input).boxed()))
    }

    /// Whether any listener would run.
    pub fn is_empty_for(&self, scope: &Scope) -> bool {
        self.listeners.none_admitted(scope)
    }

    /// Runs the listeners that `scope` admits, in order.
    pub fn run(&self, scope: &Scope, input: I) -> BoxFuture<'static, HookResult<()>> {
        let listeners = self.listeners.admitted(scope);
        async move {
            for listener in listeners {
                let input = input.clone();
                contain(move || listener(input)).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

impl<I: Clone + Send + 'static> Default for Serial<I> {
    fn default() -> Self {
        Self::new()
    }
}

type NotifyFn<I> = dyn Fn(&I) + Send + Sync + 'static;

/// A point whose listeners are told, synchronously and without a say. They must return quickly; a
/// panic is logged and changes nothing.
pub struct Notify<I> {
    listeners: Listeners<NotifyFn<I>>,
}

impl<I: 'static> Notify<I> {
    /// A point without listeners.
    pub fn new() -> Self {
        Self { listeners: Listeners::new() }
    }

    /// Adds a listener for the agents at or below `scope`.
    pub fn add(
        &self,
        scope: &Scope,
        listener: impl Fn(&I) + Send + Sync + 'static,
    ) -> Result<Registration, ScopeClosed> {
        self.listeners.add(scope, false, Arc::new(listener))
    }

    /// Tells the listeners that `scope` admits.
    pub fn tell(&self, scope: &Scope, event: &I) {
        Self::tell_these(&self.listeners.admitted(scope), event);
    }

    /// Tells all listeners, whatever their scope: for what is no agent's.
    pub fn tell_everyone(&self, event: &I) {
        Self::tell_these(&self.listeners.all(), event);
    }

    fn tell_these(listeners: &[Arc<NotifyFn<I>>], event: &I) {
        for listener in listeners {
            let told = std::panic::catch_unwind(AssertUnwindSafe(|| listener(event)));
            if let Err(panic) = told {
                tracing::error!(panic = panic_text(&*panic), "a listener panicked");
            }
        }
    }
}

impl<I: 'static> Default for Notify<I> {
    fn default() -> Self {
        Self::new()
    }
}

/// Calls and awaits a listener; a panic of either becomes a failure of code `PANIC`.
fn contain<T: Send + 'static>(
    call: impl FnOnce() -> BoxFuture<'static, HookResult<T>>,
) -> BoxFuture<'static, HookResult<T>> {
    match std::panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(future) => AssertUnwindSafe(future)
            .catch_unwind()
            .map(|outcome| outcome.unwrap_or_else(|panic| Err(panic_failure(&*panic))))
            .boxed(),
        Err(panic) => futures::future::ready(Err(panic_failure(&*panic))).boxed(),
    }
}

/// A panic as an error value.
pub fn panic_failure(panic: &(dyn Any + Send)) -> Failure {
    Failure::new("PANIC", format!("panicked: {}", panic_text(panic)))
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "(no message)"
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn around_listeners_nest_in_registration_order() {
        let scope = Scope::root("root");
        let point = Around::<String, String>::new();
        for name in ["a", "b"] {
            let wrap = move |input: String, next: Next<String, String>| async move {
                Ok(format!("{name}({})", next.run(format!("{input}{name}")).await?))
            };
            point.add(&scope, wrap).unwrap();
        }
        let base = |input: String| async move { Ok(format!("[{input}]")) };
        assert_eq!(point.run(&scope, "x".into(), base).await.unwrap(), "a(b([xab]))");
        let refuse = |_, _| async { Ok("short".to_owned()) };
        let first = point.add_first(&scope, refuse).unwrap();
        assert_eq!(point.run(&scope, "x".into(), base).await.unwrap(), "short");
        first.remove();
        assert_eq!(point.run(&scope, "x".into(), base).await.unwrap(), "a(b([xab]))");
        scope.close();
        assert_eq!(point.run(&scope, "x".into(), base).await.unwrap(), "[x]");
    }

    #[test]
    fn what_is_no_agents_is_told_to_listeners_of_all_scopes() {
        let root = Scope::root("root");
        let (one, other) = (root.child("one").unwrap(), root.child("other").unwrap());
        let point = Notify::<&str>::new();
        let told = Arc::new(Mutex::new(Vec::new()));
        for scope in [&one, &other] {
            let (told, name) = (told.clone(), scope.name().to_owned());
            point
                .add(scope, move |event| told.lock().unwrap().push(format!("{name}:{event}")))
                .unwrap();
        }
        point.tell(&one, &"a");
        point.tell_everyone(&"b");
        assert_eq!(*told.lock().unwrap(), ["one:a", "one:b", "other:b"]);
    }

    #[test]
    fn a_closed_scope_leaves_no_listener() {
        let scope = Scope::root("root");
        let point = Notify::<()>::new();
        scope.close();
        assert!(point.add(&scope, |()| ()).is_err());
        assert!(point.listeners.read().is_empty());
    }

    #[tokio::test]
    async fn a_listener_hears_only_agents_at_or_below_its_scope() {
        let root = Scope::root("root");
        let (left, right) = (root.child("left").unwrap(), root.child("right").unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let point = Notify::<&'static str>::new();
        for (name, scope) in [("root", &root), ("left", &left)] {
            let heard = heard.clone();
            point
                .add(scope, move |event| heard.lock().unwrap().push(format!("{name}:{event}")))
                .unwrap();
        }
        point.tell(&left, &"l");
        point.tell(&right, &"r");
        assert_eq!(*heard.lock().unwrap(), ["root:l", "left:l", "root:r"]);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_value_and_skips_later_serial_listeners() {
        let scope = Scope::root("root");
        let point = Serial::<()>::new();
        let ran = Arc::new(Mutex::new(0));
        point.add(&scope, |()| async { panic!("boom") }).unwrap();
        let count = ran.clone();
        point
            .add(&scope, move |()| {
                *count.lock().unwrap() += 1;
                async { Ok(()) }
            })
            .unwrap();
        let failure = point.run(&scope, ()).await.unwrap_err();
        assert_eq!((failure.code.as_str(), failure.message.as_str()), ("PANIC", "panicked: boom"));
        assert_eq!(*ran.lock().unwrap(), 0);
    }

    #[tokio::test]
    async fn a_panicking_notify_listener_changes_nothing() {
        let scope = Scope::root("root");
        let point = Notify::<()>::new();
        point.add(&scope, |()| panic!("boom")).unwrap();
        point.tell(&scope, &());
    }
}
