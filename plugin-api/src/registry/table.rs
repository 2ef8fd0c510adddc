//! The table of a registry: entries by id, by those who delegate to them, and by who owns them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use playhouse_messages::id::SessionId;

use crate::scope::{Scope, ScopeId};

/// How an entry stands to others.
#[derive(Debug, Clone)]
pub(super) struct Relations {
    /// Who delegated, nearest first, each once.
    lineage: Arc<[SessionId]>,
    /// The owner's scope and those above it.
    owners: Box<[ScopeId]>,
}

impl Relations {
    pub(super) fn new(lineage: Arc<[SessionId]>, owner: &Scope) -> Self {
        Self { lineage, owners: owner.chain().map(Scope::id).collect() }
    }

    /// The ancestors with their distances; those of a child come first in order.
    fn ancestors(&self) -> impl Iterator<Item = (usize, &SessionId)> {
        self.lineage.iter().enumerate()
    }
}

/// Entries and their indices, which always say the same.
#[derive(Debug)]
pub(super) struct Table<E> {
    entries: BTreeMap<SessionId, (Relations, E)>,
    /// Of each ancestor, also one that has no entry: who is below it, and how far.
    below: BTreeMap<SessionId, BTreeSet<(usize, SessionId)>>,
    /// Of each scope: what is owned by it or by one below it.
    owned: BTreeMap<ScopeId, BTreeSet<SessionId>>,
}

impl<E> Default for Table<E> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), below: BTreeMap::new(), owned: BTreeMap::new() }
    }
}

impl<E> Table<E> {
    /// Puts an entry in, in the place of one that may be there.
    pub(super) fn insert(&mut self, id: SessionId, relations: Relations, entry: E) {
        self.remove(&id);
        for (distance, ancestor) in relations.ancestors() {
            self.below.entry(ancestor.clone()).or_default().insert((distance, id.clone()));
        }
        for scope in &relations.owners {
            self.owned.entry(*scope).or_default().insert(id.clone());
        }
        self.entries.insert(id, (relations, entry));
    }

    pub(super) fn remove(&mut self, id: &SessionId) -> Option<E> {
        let (id, (relations, entry)) = self.entries.remove_entry(id)?;
        for (distance, ancestor) in relations.ancestors() {
            drop_from(&mut self.below, ancestor, &(distance, id.clone()));
        }
        for scope in &relations.owners {
            drop_from(&mut self.owned, scope, &id);
        }
        Some(entry)
    }

    pub(super) fn get(&self, id: &SessionId) -> Option<&E> {
        self.entries.get(id).map(|(_, entry)| entry)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &E> {
        self.entries.values().map(|(_, entry)| entry)
    }

    /// Those whose nearest ancestor is this one, ordered by id.
    pub(super) fn children(&self, id: &SessionId) -> impl Iterator<Item = &E> {
        let below = self.below.get(id).into_iter().flatten();
        below.take_while(|(distance, _)| *distance == 0).filter_map(|(_, id)| self.get(id))
    }

    /// Those that have this one among their ancestors, the nearest first.
    pub(super) fn below(&self, id: &SessionId) -> impl Iterator<Item = &E> {
        let below = self.below.get(id).into_iter().flatten();
        below.filter_map(|(_, id)| self.get(id))
    }

    /// Those that are owned by this scope or by one below it, ordered by id.
    pub(super) fn owned(&self, scope: ScopeId) -> impl Iterator<Item = &E> {
        let owned = self.owned.get(&scope).into_iter().flatten();
        owned.filter_map(|id| self.get(id))
    }
}

/// Leaves no empty set behind.
fn drop_from<K: Ord, V: Ord>(index: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(set) = index.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as it would be without an index: every question is a scan.
    #[derive(Default)]
    struct Scanned(BTreeMap<SessionId, (Relations, u32)>);

    impl Scanned {
        fn those(&self, wanted: impl Fn(&Relations) -> bool) -> Vec<u32> {
            let entries = self.0.values().filter(|(relations, _)| wanted(relations));
            entries.map(|(_, entry)| *entry).collect()
        }

        fn below(&self, id: &SessionId) -> Vec<u32> {
            let distance = |relations: &Relations| relations.lineage.iter().position(|a| a == id);
            let mut found: Vec<_> =
                self.0.values().filter(|(r, _)| distance(r).is_some()).collect();
            found.sort_by_key(|(relations, _)| distance(relations));
            found.into_iter().map(|(_, entry)| *entry).collect()
        }
    }

    fn id(number: usize) -> SessionId {
        SessionId::from(format!("s{number}"))
    }

    /// Scopes of a tree: each hangs below one that came before it.
    fn scopes(rng: &mut Lot) -> Vec<Scope> {
        let mut scopes = vec![Scope::root("root")];
        for _ in 1..8 {
            let above = scopes[rng.below(scopes.len())].clone();
            scopes.push(above.child("scope").unwrap());
        }
        scopes
    }

    /// Numbers by lot: xorshift, seeded.
    struct Lot(u64);

    impl Lot {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end as u64) as usize
        }
    }

    #[test]
    fn the_indices_say_what_scans_would_say() {
        let seed = std::env::var("PLAYHOUSE_SEED").ok().and_then(|seed| seed.parse().ok());
        let first = seed.unwrap_or(1);
        for seed in first..first + if seed.is_some() { 1 } else { 200 } {
            let mut rng = Lot(seed);
            let scopes = scopes(&mut rng);
            let (mut table, mut scanned) = (Table::default(), Scanned::default());
            for step in 0..200 {
                let number = rng.below(20);
                if rng.below(3) == 0 {
                    let removed = table.remove(&id(number));
                    assert_eq!(removed, scanned.0.remove(&id(number)).map(|(_, entry)| entry));
                } else {
                    // A parent of the moment, or one that is gone or has not been made yet.
                    let parent = id(rng.below(20));
                    let above = scanned.0.get(&parent).map(|(r, _)| r.lineage.clone());
                    let above = above.iter().flat_map(|lineage| lineage.iter());
                    let lineage = std::iter::once(&parent).chain(above.filter(|a| **a != parent));
                    let lineage = lineage.take(rng.below(6)).cloned().collect();
                    let relations = Relations::new(lineage, &scopes[rng.below(scopes.len())]);
                    scanned.0.insert(id(number), (relations.clone(), step));
                    table.insert(id(number), relations, step);
                }
                let about = id(rng.below(20));
                let of = |found: Vec<&u32>| found.into_iter().copied().collect::<Vec<_>>();
                let what = format!("seed {seed}, step {step}, {about}");
                assert_eq!(of(table.below(&about).collect()), scanned.below(&about), "{what}");
                let children = scanned.those(|r| r.lineage.first() == Some(&about));
                assert_eq!(of(table.children(&about).collect()), children, "{what}");
                for scope in &scopes {
                    let owned = scanned.those(|r| r.owners.contains(&scope.id()));
                    assert_eq!(of(table.owned(scope.id()).collect()), owned, "{what}");
                }
            }
            for number in 0..20 {
                table.remove(&id(number));
            }
            assert!(table.below.is_empty() && table.owned.is_empty(), "seed {seed}");
        }
    }

    #[test]
    fn one_that_is_gone_hides_nobody_below_it() {
        let scope = Scope::root("root");
        let mut table = Table::default();
        let lineages = [vec![], vec![0], vec![1, 0], vec![0]];
        for (number, lineage) in lineages.into_iter().enumerate() {
            let lineage = lineage.into_iter().map(id).collect();
            table.insert(id(number), Relations::new(lineage, &scope), number);
        }
        assert_eq!(table.below(&id(0)).collect::<Vec<_>>(), [&1, &3, &2], "nearest first");
        table.remove(&id(1));
        assert_eq!(table.below(&id(0)).collect::<Vec<_>>(), [&3, &2]);
        assert_eq!(table.children(&id(0)).collect::<Vec<_>>(), [&3]);
        assert_eq!(table.children(&id(1)).collect::<Vec<_>>(), [&2]);
    }
}
