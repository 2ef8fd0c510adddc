//! Reading a session's events along.

use std::{fmt, sync::Arc};

use playhouse_messages::event::{Seq, SharedEvent};

use super::SessionCell;
use crate::watch;

/// A lossless reader of a session's events: it keeps a cursor, so it misses nothing and makes
/// nobody wait.
pub struct Events {
    cell: Arc<SessionCell>,
    len: watch::Receiver<Seq>,
    next: Seq,
}

impl Events {
    pub(super) fn new(cell: Arc<SessionCell>, from: Seq) -> Self {
        Self { len: cell.len.subscribe(), cell, next: from }
    }

    /// The next event, once there is one. Never ends while the session is in the world: stop
    /// reading when its agent is disposed. Safe to drop and call again.
    pub async fn next(&mut self) -> SharedEvent {
        loop {
            if let Some(event) = self.try_next() {
                return event;
            }
            let next = self.next;
            // The cell owns the sender, so it cannot go while we hold the cell.
            let _ = self.len.wait_for(|len| *len > next).await;
        }
    }

    /// The next event, if there is one now.
    pub fn try_next(&mut self) -> Option<SharedEvent> {
        let event = self.cell.view.load().log.get(self.next).cloned()?;
        self.next += 1;
        Some(event)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({}, next {})", self.cell.header.id, self.next)
    }
}
