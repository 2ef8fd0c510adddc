//! Scopes: where a registration counts, and how long it lives.
//!
//! Scopes form a tree: the harness's root, a plugin's or preset's below it, an agent's below that.
//! Views inherit down (the nearest registration of a name wins), and events are admitted up (a
//! listener of a scope hears the agents at or below it). Scopes route; they are not a security
//! boundary.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use playhouse_messages::event::CancelCause;
use tokio_util::task::TaskTracker;

use crate::cancel::CancelToken;

/// A scope. Clones are the same scope. Dropping every clone closes nothing: [`Scope::close`] does,
/// or the closing of a scope above.
#[derive(Clone)]
pub struct Scope(Arc<Inner>);

/// Tells scopes apart within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(u64);

struct Inner {
    id: ScopeId,
    name: String,
    parent: Option<Scope>,
    cancel: CancelToken,
    tasks: TaskTracker,
    /// How many scopes of the whole tree are open.
    open: Arc<AtomicUsize>,
    /// `None` once closed.
    unwind: Mutex<Option<Unwind>>,
}

#[derive(Default)]
struct Unwind {
    next: u64,
    /// Run newest first. By key, so that one among thousands is removed at its own cost.
    steps: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
}

/// The scope was closed, so nothing can be registered in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("scope `{name}` is closed: register before its owner is disposed")]
pub struct ScopeClosed {
    /// The scope's name.
    pub name: String,
}

impl ScopeClosed {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        "SCOPE_CLOSED"
    }
}

impl Scope {
    /// A scope without a parent.
    pub fn root(name: impl Into<String>) -> Self {
        Self::new(name.into(), None, CancelToken::new(), Arc::default())
    }

    /// A scope below this one. Closing this one closes it first.
    pub fn child(&self, name: impl Into<String>) -> Result<Self, ScopeClosed> {
        let (cancel, open) = (self.0.cancel.child(), self.0.open.clone());
        let child = Self::new(name.into(), Some(self.clone()), cancel, open);
        let weak = Arc::downgrade(&child.0);
        let closing = self.on_close(move || {
            if let Some(child) = weak.upgrade() {
                Self(child).close();
            }
        });
        let registration = match closing {
            Ok(registration) => registration,
            Err(closed) => {
                child.close();
                return Err(closed);
            }
        };
        // Closed alone, the child leaves nothing behind in its parent.
        child.on_close(move || registration.remove())?;
        Ok(child)
    }

    fn new(
        name: String,
        parent: Option<Self>,
        cancel: CancelToken,
        open: Arc<AtomicUsize>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner {
            id: ScopeId(NEXT.fetch_add(1, Ordering::Relaxed)),
            name,
            parent,
            cancel,
            tasks: TaskTracker::new(),
            open,
            unwind: Mutex::new(Some(Unwind::default())),
        }))
    }

    /// Tells the scope apart.
    pub fn id(&self) -> ScopeId {
        self.0.id
    }

    /// For people.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The scope above.
    pub fn parent(&self) -> Option<&Self> {
        self.0.parent.as_ref()
    }

    /// This scope and those above it, nearest first.
    pub fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |scope| scope.parent())
    }

    /// Whether `other` is this scope or above it.
    pub fn is_within(&self, other: ScopeId) -> bool {
        self.chain().any(|scope| scope.id() == other)
    }

    /// Fires when the scope is closed.
    pub fn cancel_token(&self) -> &CancelToken {
        &self.0.cancel
    }

    /// Whether registrations are still taken.
    pub fn is_open(&self) -> bool {
        self.unwind().is_some()
    }

    /// How many scopes are open in the whole tree that this one is part of.
    pub fn open_scopes(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }

    /// How many registrations it holds itself, its scopes below counted as one each.
    pub fn registrations(&self) -> usize {
        self.unwind().as_ref().map_or(0, |unwind| unwind.steps.len())
    }

    /// Runs `step` when the scope closes, newest first, unless it is removed before.
    pub fn on_close(
        &self,
        step: impl FnOnce() + Send + 'static,
    ) -> Result<Registration, ScopeClosed> {
        let mut unwind = self.unwind();
        let Some(unwind) = unwind.as_mut() else {
            return Err(ScopeClosed { name: self.0.name.clone() });
        };
        let key = unwind.next;
        unwind.next += 1;
        unwind.steps.insert(key, Box::new(step));
        Ok(Registration { scope: Arc::downgrade(&self.0), key })
    }

    /// How far registrations have got, for [`Scope::registered_since`].
    pub(crate) fn mark(&self) -> u64 {
        self.unwind().as_ref().map_or(0, |unwind| unwind.next)
    }

    /// How many registrations that were made at or after a mark still stand.
    pub(crate) fn registered_since(&self, mark: u64) -> usize {
        let unwind = self.unwind();
        let steps = unwind.iter().flat_map(|unwind| &unwind.steps);
        steps.filter(|(key, _)| **key >= mark).count()
    }

    /// How many tasks run in it.
    pub(crate) fn tasks(&self) -> usize {
        self.0.tasks.len()
    }

    /// Runs `task` until it ends or the scope closes; then it is dropped at its next await.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.0.cancel.clone();
        self.0.tasks.spawn(async move {
            cancel.race(task).await;
        });
    }

    /// Runs `task` to its end, also past the closing of the scope: [`Scope::close_and_wait`] waits for
    /// it. For work that has to be wound up in order; it watches the scope's token itself, and must
    /// end soon after that fires.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn spawn_to_end(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn(task);
    }

    /// Closes the scope: scopes below it first, then its registrations, newest first. Idempotent. A
    /// step that panics does not keep the others from running.
    pub fn close(&self) {
        let steps = self.unwind().take();
        if steps.is_some() {
            self.0.open.fetch_sub(1, Ordering::Relaxed);
        }
        self.0.tasks.close();
        self.0.cancel.cancel(CancelCause::Disposed);
        for (_, step) in steps.into_iter().flat_map(|unwind| unwind.steps.into_iter().rev()) {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(step));
            if outcome.is_err() {
                tracing::error!(scope = self.0.name, "a registration panicked while unwinding");
            }
        }
    }

    /// Closes the scope and waits until its tasks have ended.
    pub async fn close_and_wait(&self) {
        self.close();
        self.0.tasks.wait().await;
    }

    fn unwind(&self) -> MutexGuard<'_, Option<Unwind>> {
        self.0.unwind.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for Scope {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({} #{})", self.0.name, self.0.id.0)
    }
}

impl From<ScopeClosed> for playhouse_messages::chunk::Failure {
    fn from(closed: ScopeClosed) -> Self {
        Self::new(closed.code(), closed.to_string())
    }
}

/// One thing that was registered in a scope. Dropping it changes nothing: it lasts until it is
/// removed or its scope closes.
#[derive(Clone)]
pub struct Registration {
    scope: std::sync::Weak<Inner>,
    key: u64,
}

impl Registration {
    /// Undoes the registration now. Idempotent; never touches another registration.
    pub fn remove(&self) {
        let Some(inner) = self.scope.upgrade() else { return };
        let step = {
            let mut unwind = inner.unwind.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(unwind) = unwind.as_mut() else { return };
            unwind.steps.remove(&self.key)
        };
        // Outside the lock: the step may register or remove in the same scope.
        if let Some(step) = step {
            step();
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration(#{})", self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Step = Box<dyn FnOnce() + Send>;

    fn recorder() -> (Arc<Mutex<Vec<&'static str>>>, impl Fn(&'static str) -> Step) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let step = move |name| {
            let log = log.clone();
            Box::new(move || log.lock().unwrap().push(name)) as Step
        };
        (seen, step)
    }

    #[test]
    fn closing_unwinds_newest_first_and_once() {
        let (seen, step) = recorder();
        let scope = Scope::root("root");
        scope.on_close(step("a")).unwrap();
        let b = scope.on_close(step("b")).unwrap();
        scope.on_close(step("c")).unwrap();
        b.remove();
        b.remove();
        scope.close();
        scope.close();
        assert_eq!(*seen.lock().unwrap(), ["b", "c", "a"]);
        assert!(scope.on_close(|| ()).is_err());
    }

    #[test]
    fn a_parent_closes_its_children_and_a_child_leaves_no_trace() {
        let (seen, step) = recorder();
        let root = Scope::root("root");
        root.on_close(step("root")).unwrap();
        let gone = root.child("gone").unwrap();
        assert_eq!((root.registrations(), gone.open_scopes()), (2, 2));
        gone.close();
        gone.close();
        assert_eq!((root.registrations(), root.open_scopes()), (1, 1));
        assert!(gone.child("below").is_err() && root.open_scopes() == 1);
        let child = root.child("child").unwrap();
        child.on_close(step("child")).unwrap();
        assert!(child.is_within(root.id()) && !root.is_within(child.id()));
        root.close();
        assert!(!child.is_open() && child.cancel_token().is_cancelled());
        assert_eq!(*seen.lock().unwrap(), ["child", "root"]);
        assert_eq!(root.open_scopes(), 0);
    }

    #[test]
    fn a_panicking_step_does_not_keep_the_others_from_running() {
        let (seen, step) = recorder();
        let scope = Scope::root("root");
        scope.on_close(step("a")).unwrap();
        scope.on_close(|| panic!("boom")).unwrap();
        scope.close();
        assert_eq!(*seen.lock().unwrap(), ["a"]);
    }

    #[tokio::test]
    async fn closing_ends_the_tasks_of_the_scope() {
        let scope = Scope::root("root");
        scope.spawn(std::future::pending());
        scope.close_and_wait().await;
    }

    #[tokio::test]
    async fn closing_waits_for_work_that_winds_itself_up() {
        let (seen, step) = recorder();
        let scope = Scope::root("root");
        let closing = scope.cancel_token().clone();
        scope.spawn_to_end(async move {
            closing.cancelled().await;
            tokio::task::yield_now().await;
            step("wound up")();
        });
        scope.close_and_wait().await;
        assert_eq!(*seen.lock().unwrap(), ["wound up"]);
    }
}
