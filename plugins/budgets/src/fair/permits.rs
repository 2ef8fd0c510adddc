//! Permits as guards, and waiting for one: a thin shell around the queue.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use super::queue::{Caps, Queue, Ticket, TreeId};

/// The permits of a harness. Clones share them.
#[derive(Clone)]
pub struct Permits(Arc<Mutex<State>>);

struct State {
    queue: Queue,
    waiters: HashMap<Ticket, Waiter>,
}

struct Waiter {
    sender: oneshot::Sender<Permit>,
    tree: TreeId,
    provider: Arc<str>,
}

/// The right to have a request run. Given back on drop.
#[must_use = "dropping it gives the permit back"]
pub struct Permit {
    permits: Permits,
    tree: TreeId,
    provider: Arc<str>,
}

/// A request that waits; it stops waiting when this is dropped.
struct Waiting<'a> {
    permits: &'a Permits,
    tree: TreeId,
    ticket: Ticket,
}

impl Permits {
    /// Permits under these caps.
    pub fn new(caps: Caps) -> Self {
        let state = State { queue: Queue::new(caps), waiters: HashMap::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Waits for a permit. Dropping the future leaves the queue, and leaves nothing behind.
    pub async fn acquire(&self, tree: &str, provider: &str) -> Permit {
        let (tree, provider): (TreeId, Arc<str>) = (tree.into(), provider.into());
        let (sender, mut receiver) = oneshot::channel();
        let ticket = {
            let mut state = self.state();
            let ticket = state.queue.ask(&tree, &provider);
            state.waiters.insert(ticket, Waiter { sender, tree: tree.clone(), provider });
            ticket
        };
        let waiting = Waiting { permits: self, tree, ticket };
        self.serve();
        match (&mut receiver).await {
            Ok(permit) => permit,
            // The sender stays in the table until it has sent, or until this future is gone.
            Err(_) => unreachable!("ticket {} was dropped", waiting.ticket),
        }
    }

    /// How many permits are held now.
    pub fn held(&self) -> usize {
        self.state().queue.held()
    }

    /// How many requests wait now.
    pub fn waiting(&self) -> usize {
        self.state().queue.waiting()
    }

    /// Hands out what may be handed out.
    fn serve(&self) {
        let served: Vec<_> = {
            let mut state = self.state();
            let State { queue, waiters } = &mut *state;
            std::iter::from_fn(|| queue.grant())
                .filter_map(|ticket| waiters.remove(&ticket))
                .collect()
        };
        for Waiter { sender, tree, provider } in served {
            let permit = Permit { permits: self.clone(), tree, provider };
            // Nobody waits for it any more: dropping it here gives it back.
            let _ = sender.send(permit);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.permits.state();
        if state.waiters.remove(&self.ticket).is_some() {
            state.queue.withdraw(&self.tree, self.ticket);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.state().queue.release(&self.tree, &self.provider);
        self.permits.serve();
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Permits")
            .field("held", &state.queue.held())
            .field("waiting", &state.queue.waiting())
            .finish()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("tree", &self.tree)
            .field("provider", &self.provider)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
