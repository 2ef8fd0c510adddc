//! Who gets the next permit: a pure data structure.
//!
//! A tree that holds the fewest permits is served first; trees that hold equally many take turns, and
//! within a tree requests are served in the order in which they came. So a tree that holds nothing is
//! passed over at most once by each other tree that waits, and nobody is served who holds more than
//! another that could have been.
//!
//! Of a cap of [`SPARE_FROM`] or more the last permit is only for a tree that holds none: requests of a
//! busy tree may all end at once, and a lone agent that comes right after would wait for all of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// A tree of agents: the id of its root.
pub type TreeId = Arc<str>;

/// One request that asked for a permit. Later ones have greater numbers.
pub type Ticket = u64;

/// From this cap on, one permit is kept for trees that hold none.
pub const SPARE_FROM: usize = 8;

/// How many requests may run at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caps {
    /// Over all providers; `None` for no cap.
    pub global: Option<usize>,
    /// Of single providers.
    pub providers: HashMap<String, usize>,
}

/// Permits that are held, and requests that wait.
#[derive(Debug, Default)]
pub struct Queue {
    caps: Caps,
    held: usize,
    by_provider: HashMap<Arc<str>, usize>,
    trees: HashMap<TreeId, Tree>,
    /// The trees that wait: by how many permits they hold, then by whose turn it is.
    order: BTreeSet<(usize, u64, TreeId)>,
    tickets: Ticket,
    turns: u64,
}

#[derive(Debug, Default)]
struct Tree {
    held: usize,
    /// When it was served last, or began to wait.
    turn: u64,
    waiting: BTreeMap<Ticket, Arc<str>>,
}

impl Queue {
    /// A queue under these caps.
    pub fn new(caps: Caps) -> Self {
        Self { caps, ..Self::default() }
    }

    /// How many permits are held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many of a provider.
    pub fn held_by_provider(&self, provider: &str) -> usize {
        self.by_provider.get(provider).copied().unwrap_or(0)
    }

    /// How many a tree holds.
    pub fn held_by_tree(&self, tree: &str) -> usize {
        self.trees.get(tree).map_or(0, |tree| tree.held)
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.trees.values().map(|tree| tree.waiting.len()).sum()
    }

    /// A request waits from now on. Whoever asks calls [`Queue::grant`] next.
    pub fn ask(&mut self, tree: &TreeId, provider: &Arc<str>) -> Ticket {
        self.tickets += 1;
        let ticket = self.tickets;
        let entry = self.trees.entry(tree.clone()).or_default();
        if entry.waiting.is_empty() {
            self.turns += 1;
            entry.turn = self.turns;
            self.order.insert((entry.held, entry.turn, tree.clone()));
        }
        entry.waiting.insert(ticket, provider.clone());
        ticket
    }

    /// A request does not wait any more. Does nothing if it was served.
    pub fn withdraw(&mut self, tree: &TreeId, ticket: Ticket) {
        self.change(tree, |entry| {
            entry.waiting.remove(&ticket);
        });
    }

    /// A permit of a tree is given back.
    pub fn release(&mut self, tree: &TreeId, provider: &Arc<str>) {
        self.held -= 1;
        if let Some(held) = self.by_provider.get_mut(provider) {
            *held -= 1;
            if *held == 0 {
                self.by_provider.remove(provider);
            }
        }
        self.change(tree, |entry| entry.held -= 1);
    }

    /// Serves one request that waits, if one may run.
    pub fn grant(&mut self) -> Option<Ticket> {
        let (tree, ticket) = self.order.iter().find_map(|(held, _, tree)| {
            if self.caps.global.is_some_and(|cap| self.held >= open_to(cap, *held)) {
                return None;
            }
            let waiting = &self.trees[tree].waiting;
            let ticket = waiting.iter().find(|(_, provider)| self.has_room(provider, *held))?.0;
            Some((tree.clone(), *ticket))
        })?;
        self.turns += 1;
        let turn = self.turns;
        let mut provider = None;
        self.change(&tree, |entry| {
            entry.held += 1;
            entry.turn = turn;
            provider = entry.waiting.remove(&ticket);
        });
        self.held += 1;
        if let Some(provider) = provider {
            *self.by_provider.entry(provider).or_default() += 1;
        }
        Some(ticket)
    }

    fn has_room(&self, provider: &Arc<str>, held_by_tree: usize) -> bool {
        let cap = self.caps.providers.get(&**provider);
        cap.is_none_or(|cap| self.held_by_provider(provider) < open_to(*cap, held_by_tree))
    }

    /// Changes a tree, and keeps its place in the order right. One that neither holds nor waits is gone.
    fn change(&mut self, tree: &TreeId, change: impl FnOnce(&mut Tree)) {
        let Some(entry) = self.trees.get_mut(tree) else { return };
        self.order.remove(&(entry.held, entry.turn, tree.clone()));
        change(entry);
        if !entry.waiting.is_empty() {
            self.order.insert((entry.held, entry.turn, tree.clone()));
        } else if entry.held == 0 {
            self.trees.remove(tree);
        }
    }
}

/// How much of a cap is open to a tree that holds so many permits.
fn open_to(cap: usize, held_by_tree: usize) -> usize {
    cap - usize::from(cap >= SPARE_FROM && held_by_tree > 0)
}

#[cfg(test)]
mod tests;
