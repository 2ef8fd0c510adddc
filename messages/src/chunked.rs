//! A persistent list in chunks: clones share what is full, appends cost amortised O(1).

use std::{ops::Range, sync::Arc};

/// Items a full chunk holds. A snapshot that is still held costs the next append a copy of at most
/// one chunk.
const CHUNK_LEN: usize = 256;

/// A list whose clones share every full chunk.
#[derive(Debug, Clone)]
pub struct Chunked<T> {
    full: Arc<Vec<Arc<[T]>>>,
    tail: Arc<Vec<T>>,
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self { full: Arc::default(), tail: Arc::default() }
    }
}

impl<T: Clone> Chunked<T> {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.full.len() * CHUNK_LEN + self.tail.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an item at the end.
    pub fn push(&mut self, item: T) {
        let tail = Arc::make_mut(&mut self.tail);
        tail.push(item);
        if tail.len() == CHUNK_LEN {
            let chunk = std::mem::take(tail).into();
            Arc::make_mut(&mut self.full).push(chunk);
        }
    }

    /// The item at a position.
    pub fn get(&self, index: usize) -> Option<&T> {
        match self.full.get(index / CHUNK_LEN) {
            Some(chunk) => chunk.get(index % CHUNK_LEN),
            None => self.tail.get(index - self.full.len() * CHUNK_LEN),
        }
    }

    /// Where the items that satisfy `before` end; all of them stand first.
    pub(crate) fn partition_point(&self, before: impl Fn(&T) -> bool) -> usize {
        let (mut start, mut end) = (0, self.len());
        while start < end {
            let middle = start + (end - start) / 2;
            if self.get(middle).is_some_and(&before) {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        start
    }

    /// The items in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.range(0..self.len())
    }

    /// The items of a range, clipped to the list.
    pub fn range(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        let end = range.end.min(self.len());
        (range.start.min(end)..end).map(|index| match self.full.get(index / CHUNK_LEN) {
            Some(chunk) => &chunk[index % CHUNK_LEN],
            None => &self.tail[index - self.full.len() * CHUNK_LEN],
        })
    }

    /// Puts an item in the place of another. Every chunk but its own stays shared.
    fn set(&mut self, index: usize, item: T) {
        let full = self.full.len() * CHUNK_LEN;
        if index >= full {
            Arc::make_mut(&mut self.tail)[index - full] = item;
            return;
        }
        let chunk = &mut Arc::make_mut(&mut self.full)[index / CHUNK_LEN];
        let mut items = chunk.to_vec();
        items[index % CHUNK_LEN] = item;
        *chunk = items.into();
    }

    /// Puts `items` in the place of a range, clipped to the list. Chunks before it stay shared; where
    /// one item takes the place of one, those after it too.
    pub fn splice(&mut self, range: Range<usize>, items: impl IntoIterator<Item = T>) {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        let mut items = items.into_iter().peekable();
        if end == start + 1
            && let Some(item) = items.next()
        {
            if items.peek().is_none() {
                return self.set(start, item);
            }
            return self.rebuild(start..end, std::iter::once(item).chain(items));
        }
        self.rebuild(start..end, items);
    }

    fn rebuild(&mut self, range: Range<usize>, items: impl Iterator<Item = T>) {
        let Range { start, end } = range;
        let keep = (start / CHUNK_LEN).min(self.full.len());
        let rest: Vec<T> = self
            .range(keep * CHUNK_LEN..start)
            .cloned()
            .chain(items)
            .chain(self.range(end..self.len()).cloned())
            .collect();
        Arc::make_mut(&mut self.full).truncate(keep);
        self.tail = Arc::default();
        for item in rest {
            self.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_vector(ops in prop::collection::vec((0usize..900, 0usize..900, 0usize..400), 1..12)) {
            let mut vector: Vec<usize> = Vec::new();
            let mut list = Chunked::default();
            for (a, b, count) in ops {
                let before = (vector.clone(), list.clone());
                let (start, end) = (a.min(b).min(vector.len()), a.max(b).min(vector.len()));
                if count % 3 == 0 {
                    vector.splice(start..end, 0..count);
                    list.splice(start..end, 0..count);
                } else {
                    for item in 0..count {
                        vector.push(item);
                        list.push(item);
                    }
                }
                if let Some(item) = vector.get_mut(a) {
                    *item = b;
                    list.splice(a..a + 1, [b]);
                }
                prop_assert_eq!(list.len(), vector.len());
                prop_assert!(list.iter().eq(&vector));
                prop_assert!(list.iter().rev().eq(vector.iter().rev()));
                prop_assert_eq!(list.get(a), vector.get(a));
                prop_assert!(before.1.iter().eq(&before.0));
            }
        }
    }
}
