//! A set that only grows and is cheap to clone.

use std::{collections::HashSet, hash::Hash, sync::Arc};

/// A level below this size takes inserts directly.
const SMALL: usize = 64;

/// A growing set in levels of falling size: a clone shares them, an insert touches the smallest, and
/// levels of like size merge. Insert is amortised O(log n), lookup visits O(log n) levels.
#[derive(Debug, Clone)]
pub(crate) struct SharedSet<T> {
    levels: Vec<Arc<HashSet<T>>>,
}

impl<T> Default for SharedSet<T> {
    fn default() -> Self {
        Self { levels: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> SharedSet<T> {
    pub(crate) fn contains(&self, item: &T) -> bool {
        self.levels.iter().any(|level| level.contains(item))
    }

    pub(crate) fn len(&self) -> usize {
        self.levels.iter().map(|level| level.len()).sum()
    }

    pub(crate) fn insert(&mut self, item: T) {
        if self.contains(&item) {
            return;
        }
        match self.levels.last_mut() {
            Some(level) if level.len() < SMALL => {
                Arc::make_mut(level).insert(item);
            }
            _ => self.levels.push(Arc::new(HashSet::from([item]))),
        }
        while let [.., larger, smaller] = self.levels.as_mut_slice() {
            if smaller.len() < SMALL || smaller.len() < larger.len() {
                return;
            }
            Arc::make_mut(larger).extend(smaller.iter().cloned());
            self.levels.pop();
        }
    }
}

impl<T: Clone + Eq + Hash> PartialEq for SharedSet<T> {
    fn eq(&self, other: &Self) -> bool {
        // No item is in two levels.
        self.len() == other.len()
            && self.levels.iter().flat_map(|level| level.iter()).all(|item| other.contains(item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_set_with_few_levels() {
        let mut set = SharedSet::default();
        let mut snapshots = Vec::new();
        for n in 0..10_000u32 {
            if n % 997 == 0 {
                snapshots.push((n, set.clone()));
            }
            set.insert(n);
            set.insert(n / 2);
        }
        assert_eq!(set.len(), 10_000);
        // Few levels for lookups; and levels of unlike size do not merge, or inserts would cost O(n).
        let sizes: Vec<_> = set.levels.iter().map(|level| level.len()).collect();
        assert!((3..12).contains(&sizes.len()), "{sizes:?}");
        assert!(sizes.is_sorted_by(|larger, smaller| larger > smaller), "{sizes:?}");
        assert!((0..10_000).all(|n| set.contains(&n)) && !set.contains(&10_000));
        for (n, snapshot) in snapshots {
            assert_eq!(snapshot.len(), n as usize);
            assert!(!snapshot.contains(&n));
            assert!(snapshot != set);
        }
        let mut reversed = SharedSet::default();
        (0..10_000u32).rev().for_each(|n| reversed.insert(n));
        assert!(reversed == set);
    }
}
