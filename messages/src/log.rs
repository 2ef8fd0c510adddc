//! The log as a value: append-only, cheap to clone, readable without a lock.

use std::{ops::Range, sync::Arc};

use crate::event::{Seq, SharedEvent};

/// Events a full chunk holds. A snapshot that is still held costs the next append a copy of at most
/// one chunk of pointers.
const CHUNK_LEN: usize = 256;

/// An append-only log of events. Clones share every full chunk.
#[derive(Debug, Clone, Default)]
pub struct Log {
    full: Arc<Vec<Arc<[SharedEvent]>>>,
    tail: Arc<Vec<SharedEvent>>,
}

impl Log {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many events the log holds; also the next event's seq.
    pub fn len(&self) -> u64 {
        (self.full.len() * CHUNK_LEN + self.tail.len()) as u64
    }

    /// Whether the log holds no event.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends an event, whose seq must be the next one.
    ///
    /// # Panics
    ///
    /// If the seq is not [`Log::len`]: the caller numbers events, and a gap must never be written.
    pub fn push(&mut self, event: SharedEvent) {
        assert_eq!(event.seq, self.len(), "event seq must equal its index in the log");
        let tail = Arc::make_mut(&mut self.tail);
        tail.push(event);
        if tail.len() == CHUNK_LEN {
            let chunk = std::mem::take(tail).into();
            Arc::make_mut(&mut self.full).push(chunk);
        }
    }

    /// The event at `seq`.
    pub fn get(&self, seq: Seq) -> Option<&SharedEvent> {
        let index = usize::try_from(seq).ok()?;
        match self.full.get(index / CHUNK_LEN) {
            Some(chunk) => chunk.get(index % CHUNK_LEN),
            None => self.tail.get(index - self.full.len() * CHUNK_LEN),
        }
    }

    /// The last event.
    pub fn last(&self) -> Option<&SharedEvent> {
        self.tail.last().or_else(|| self.full.last()?.last())
    }

    /// All events in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &SharedEvent> + ExactSizeIterator {
        self.range(0..self.len())
    }

    /// The events from `range.start` up to, not including, `range.end`, clipped to the log.
    pub fn range(
        &self,
        range: Range<Seq>,
    ) -> impl DoubleEndedIterator<Item = &SharedEvent> + ExactSizeIterator {
        let end = range.end.min(self.len());
        // Indices below `len` fit `usize`, since the events are in memory.
        let indices = range.start.min(end) as usize..end as usize;
        indices.map(|index| match self.full.get(index / CHUNK_LEN) {
            Some(chunk) => &chunk[index % CHUNK_LEN],
            None => &self.tail[index - self.full.len() * CHUNK_LEN],
        })
    }
}

impl FromIterator<SharedEvent> for Log {
    fn from_iter<I: IntoIterator<Item = SharedEvent>>(events: I) -> Self {
        let mut log = Self::new();
        for event in events {
            log.push(event);
        }
        log
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventBody, NewEvent, TurnStart};

    fn event(seq: Seq) -> SharedEvent {
        Arc::new(NewEvent::log_only(EventBody::TurnStart(TurnStart { turn: 1 })).at(seq, 0))
    }

    #[test]
    fn a_snapshot_does_not_see_later_appends() {
        let mut log = Log::new();
        for seq in 0..1000 {
            let before = log.clone();
            log.push(event(seq));
            assert_eq!(before.len(), seq);
            assert!(before.get(seq).is_none());
            assert_eq!(log.get(seq).unwrap().seq, seq);
            assert_eq!(log.last().unwrap().seq, seq);
        }
        assert_eq!(log.iter().map(|e| e.seq).collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
        assert_eq!(log.range(254..258).map(|e| e.seq).collect::<Vec<_>>(), [254, 255, 256, 257]);
        assert_eq!(log.range(998..2000).len(), 2);
        assert_eq!(log.range(3000..4000).len(), 0);
    }

    #[test]
    #[should_panic(expected = "seq must equal")]
    fn a_gap_is_refused() {
        Log::new().push(event(1));
    }
}
