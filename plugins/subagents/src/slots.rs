//! Slots: how many children may live at once.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::ChildError;

/// How many children may live at once unless told otherwise.
pub const MAX_CHILDREN_DEFAULT: usize = 32;

/// A number of slots, one for each live child. Clones share them.
///
/// ```
/// use playhouse_subagents::Slots;
///
/// let slots = Slots::new(1);
/// let slot = slots.take()?;
/// assert_eq!(slots.take().unwrap_err().code(), "SUBAGENT_CAPACITY");
/// drop(slot);
/// assert_eq!((slots.taken(), slots.limit()), (0, 1));
/// # Ok::<(), playhouse_subagents::ChildError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Slots {
    limit: usize,
    taken: Arc<AtomicUsize>,
}

/// A taken slot. Dropping it gives it back, and nothing else does: there is no count to forget.
#[derive(Debug)]
#[must_use = "a dropped slot is free again"]
pub struct Slot(Arc<AtomicUsize>);

impl Slots {
    /// This many slots.
    pub fn new(limit: usize) -> Self {
        Self { limit, taken: Arc::default() }
    }

    /// How many there are.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How many are taken now.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// Takes one.
    ///
    /// # Errors
    ///
    /// [`ChildError::Capacity`] if none is free.
    pub fn take(&self) -> Result<Slot, ChildError> {
        let one_more = |taken| (taken < self.limit).then_some(taken + 1);
        match self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(_) => Ok(Slot(self.taken.clone())),
            Err(_) => Err(ChildError::Capacity { limit: self.limit }),
        }
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self::new(MAX_CHILDREN_DEFAULT)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
