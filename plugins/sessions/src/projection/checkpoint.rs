//! Folded states that outlive the process, and the way back from them.

use std::collections::BTreeMap;

use bytes::Bytes;
use playhouse_messages::{event::Seq, id::SessionId};
use playhouse_plugin_api::store::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cell::{Cell, UnitRef};
use crate::stored::{kind_of, parse};

/// The states of a session's projections, by key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Checkpoint {
    /// One row a projection.
    pub rows: BTreeMap<String, Row>,
}

/// A projection's state as it stood after an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The projection's state version.
    pub ver: u32,
    /// The last event that is folded in.
    pub seq: Seq,
    /// That event's time: it tells the log from another one that has as many events.
    pub time: i64,
    /// The state.
    pub val: Value,
}

/// Why events from later than 0 on do not do.
#[derive(Debug)]
pub(super) enum RestoreError {
    /// A row does not belong to this log: all of it must be read.
    Reread,
    /// The events are damaged.
    Damaged(StoreError),
}

impl From<StoreError> for RestoreError {
    fn from(error: StoreError) -> Self {
        Self::Damaged(error)
    }
}

impl Checkpoint {
    /// Where to read from, so that every unit can go on: one event before what is missing, which
    /// proves that the log still reaches there.
    pub(super) fn floor(&self, units: &[UnitRef]) -> Seq {
        units.iter().map(|of| self.cell(of).map_or(0, |cell| cell.next() - 1)).min().unwrap_or(0)
    }

    fn cell(&self, of: &UnitRef) -> Option<Cell> {
        Cell::load(of, self.rows.get(of.unit.name())?)
    }

    /// The cells that the rows give, without any event.
    pub(super) fn cells(&self, units: &[UnitRef]) -> Vec<(Cell, Seq)> {
        let cell = |of| self.cell(of).map(|cell| (cell.next() - 1, cell)).map(|(seq, c)| (c, seq));
        units.iter().filter_map(cell).collect()
    }

    /// Every unit at the end of a log, whose events from `base` on are given.
    pub(super) fn restore(
        &self,
        units: &[UnitRef],
        id: &SessionId,
        base: Seq,
        events: &[Bytes],
    ) -> Result<Vec<Cell>, RestoreError> {
        let mut cells = Vec::with_capacity(units.len());
        for of in units {
            let row = self.rows.get(of.unit.name()).filter(|row| row.seq >= base);
            let anchored = row.and_then(|row| {
                let at = usize::try_from(row.seq - base).ok()?;
                let anchor = parse(id, row.seq, events.get(at)?).ok()?;
                (anchor.time == row.time).then(|| Cell::load(of, row))?
            });
            cells.push(match anchored {
                Some(cell) => cell,
                None if base == 0 => Cell::new(of.clone()),
                None => return Err(RestoreError::Reread),
            });
        }
        let from = cells.iter().map(Cell::next).min().unwrap_or(base).max(base);
        let last = base + events.len() as u64;
        let skip = usize::try_from(from - base).unwrap_or(usize::MAX);
        for (seq, bytes) in (from..).zip(events.iter().skip(skip)) {
            let read = |cell: &Cell, kind| seq >= cell.next() && cell.of.unit.reads(kind);
            // The last one is read for its time, which the next row names.
            let unread = kind_of(bytes).filter(|_| seq + 1 < last);
            if unread.is_some_and(|kind| !cells.iter().any(|cell| read(cell, kind))) {
                for cell in cells.iter_mut().filter(|cell| seq >= cell.next()) {
                    cell.pass(seq, 0);
                }
                continue;
            }
            let event = parse(id, seq, bytes)?;
            for cell in cells.iter_mut().filter(|cell| seq >= cell.next()) {
                cell.apply(&event);
            }
        }
        Ok(cells)
    }
}
