//! A value that changes, for readers who only want its latest state.
//!
//! As tokio's channel of this name, except that waiters are woken in the order in which they came.
//! Tokio draws that order by lot, from a generator that nobody can seed: two senders that wait for an
//! actor's successor would then enter its mailbox in an order that no simulation could repeat.

use std::{
    fmt,
    ops::Deref,
    pin::pin,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

struct Shared<T> {
    state: RwLock<State<T>>,
    senders: AtomicUsize,
    told: Notify,
}

struct State<T> {
    value: T,
    version: u64,
}

impl<T> Shared<T> {
    fn read(&self) -> RwLockReadGuard<'_, State<T>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<T>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.senders.load(Ordering::Acquire) == 0
    }
}

/// Changes the value. Clones change the same one.
pub struct Sender<T>(Arc<Shared<T>>);

/// Reads the value, and waits for changes that it has not seen. Clones have seen what their original
/// has.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// The value at one moment. Senders wait while it is held: not over an await.
pub struct Ref<'a, T>(RwLockReadGuard<'a, State<T>>);

/// Every sender is gone, and the value changes no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the value changes no more: its senders are gone")]
pub struct Closed;

impl<T> Sender<T> {
    /// A value that nobody watches yet.
    pub fn new(value: T) -> Self {
        let state = RwLock::new(State { value, version: 0 });
        Self(Arc::new(Shared { state, senders: AtomicUsize::new(1), told: Notify::new() }))
    }

    /// A reader that has seen the value as it is now.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver { seen: self.0.read().version, shared: self.0.clone() }
    }

    /// The value as it is now.
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.0.read())
    }

    /// Replaces the value, and returns the one before.
    pub fn send_replace(&self, mut value: T) -> T {
        self.send_modify(|held| std::mem::swap(held, &mut value));
        value
    }

    /// Changes the value in place.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Changes the value in place, and tells readers if `change` says that it did. Returns what it
    /// said.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let modified = {
            let mut state = self.0.write();
            let modified = change(&mut state.value);
            state.version += u64::from(modified);
            modified
        };
        if modified {
            self.0.told.notify_waiters();
        }
        modified
    }
}

impl<T> Receiver<T> {
    /// The value as it is now. A change that is seen here is still waited for.
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.shared.read())
    }

    /// The value as it is now, and no longer news.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let state = self.shared.read();
        self.seen = state.version;
        Ref(state)
    }

    /// Whether the value has changed since it was seen last.
    ///
    /// # Errors
    ///
    /// As [`Receiver::changed`].
    pub fn has_changed(&self) -> Result<bool, Closed> {
        // Asked first: the last sender may change the value just before it goes.
        let closed = self.shared.is_closed();
        let changed = self.shared.read().version != self.seen;
        if !changed && closed { Err(Closed) } else { Ok(changed) }
    }

    /// Waits for a change, and takes it as seen. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`Closed`] if there is none and will be none.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        let seen = self.seen;
        self.wait(|state| state.version != seen).await.map(drop)
    }

    /// Waits until the value is as asked for, which it may be already. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`Closed`] if it is not and will not be.
    pub async fn wait_for(
        &mut self,
        mut is_it: impl FnMut(&T) -> bool,
    ) -> Result<Ref<'_, T>, Closed> {
        self.wait(|state| is_it(&state.value)).await
    }

    async fn wait(
        &mut self,
        mut done: impl FnMut(&State<T>) -> bool,
    ) -> Result<Ref<'_, T>, Closed> {
        let shared = &*self.shared;
        loop {
            let mut told = pin!(shared.told.notified());
            // From here on a change is not missed, also before the first poll.
            told.as_mut().enable();
            let closed = shared.is_closed();
            {
                let state = shared.read();
                self.seen = state.version;
                if done(&state) {
                    return Ok(Ref(state));
                }
            }
            if closed {
                return Err(Closed);
            }
            told.await;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.told.notify_waiters();
        }
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&*self.borrow()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&*self.borrow()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn waiters_are_woken_in_the_order_in_which_they_came() {
        let (open, woken) = (Sender::new(false), Arc::new(Mutex::new(Vec::new())));
        let mut waiters = tokio::task::JoinSet::new();
        for number in 0..32 {
            let (mut open, woken) = (open.subscribe(), woken.clone());
            waiters.spawn(async move {
                open.wait_for(|open| *open).await.unwrap();
                woken.lock().unwrap().push(number);
            });
        }
        tokio::task::yield_now().await;
        open.send_replace(true);
        waiters.join_all().await;
        assert_eq!(*woken.lock().unwrap(), Vec::from_iter(0..32));
    }

    #[tokio::test]
    async fn a_change_is_news_once_and_the_last_one_outlives_its_sender() {
        let sender = Sender::new(0);
        let mut reader = sender.subscribe();
        assert_eq!(reader.has_changed(), Ok(false));
        assert!(!sender.send_if_modified(|_| false));
        assert_eq!(reader.has_changed(), Ok(false));
        sender.send_modify(|value| *value = 1);
        assert_eq!((*reader.borrow(), reader.has_changed()), (1, Ok(true)));
        let late = reader.clone();
        assert_eq!(reader.changed().await, Ok(()));
        assert_eq!(reader.has_changed(), Ok(false));
        assert_eq!(sender.clone().send_replace(2), 1);
        drop(sender);
        assert_eq!(*reader.wait_for(|value| *value == 2).await.unwrap(), 2);
        assert_eq!(reader.changed().await, Err(Closed));
        assert_eq!((late.has_changed(), reader.has_changed()), (Ok(true), Err(Closed)));
        assert!(reader.wait_for(|value| *value == 3).await.is_err());
    }

    #[tokio::test]
    async fn the_end_of_the_last_sender_wakes_a_waiter() {
        let sender = Sender::new(());
        let mut reader = sender.subscribe();
        let waiting = tokio::spawn(async move { reader.changed().await });
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(waiting.await.unwrap(), Err(Closed));
    }
}
