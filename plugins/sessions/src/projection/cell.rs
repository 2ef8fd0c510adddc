//! One projection of one session, as far as it is folded.

use std::{
    any::type_name,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use playhouse_messages::event::{Event, Seq};
use playhouse_plugin_api::hook::panic_text;
use serde_json::Value;

use super::{
    checkpoint::Row,
    error::ProjectionError,
    unit::{AnyState, Unit},
};

/// A registered unit; another registration of the same key is another instance.
#[derive(Clone)]
pub(super) struct UnitRef {
    pub(super) instance: u64,
    pub(super) unit: Arc<dyn Unit>,
}

/// A unit's state over a log.
pub(super) struct Cell {
    pub(super) of: UnitRef,
    /// Why it is folded no further.
    state: Result<AnyState, ProjectionError>,
    /// The last event that was folded, and its time.
    last: Option<(Seq, i64)>,
}

/// Runs foreign code; a panic of it is its failure.
fn guarded<T>(
    unit: &dyn Unit,
    seq: Option<Seq>,
    run: impl FnOnce() -> T,
) -> Result<T, ProjectionError> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let error = ProjectionError::Failed {
            key: unit.name().to_owned(),
            seq,
            cause: panic_text(&*panic).to_owned(),
        };
        tracing::error!(%error, "a projection is given up for this session");
        error
    })
}

impl Cell {
    /// Over an empty log.
    pub(super) fn new(of: UnitRef) -> Self {
        let state = guarded(&*of.unit, None, || of.unit.start());
        Self { of, state, last: None }
    }

    /// From a row, if it is one of this unit's version and shape.
    pub(super) fn load(of: &UnitRef, row: &Row) -> Option<Self> {
        if row.ver != of.unit.state_version() {
            return None;
        }
        let state = guarded(&*of.unit, None, || of.unit.load(&row.val)).ok()?.ok()?;
        Some(Self { of: of.clone(), state: Ok(state), last: Some((row.seq, row.time)) })
    }

    /// The next event that it needs.
    pub(super) fn next(&self) -> Seq {
        self.last.map_or(0, |(seq, _)| seq + 1)
    }

    /// Folds the next event; says whether the state has changed.
    pub(super) fn apply(&mut self, event: &Event) -> bool {
        debug_assert_eq!(event.seq, self.next(), "no event is folded twice or left out");
        self.last = Some((event.seq, event.time));
        let Ok(state) = &mut self.state else { return false };
        let unit = &self.of.unit;
        if !unit.reads(event.body.kind()) {
            return false;
        }
        let applied = guarded(&**unit, Some(event.seq), || unit.fold(state, event));
        applied.unwrap_or_else(|error| {
            self.state = Err(error);
            false
        })
    }

    /// Goes past an event of a kind that the unit does not read.
    pub(super) fn pass(&mut self, seq: Seq, time: i64) {
        self.last = Some((seq, time));
    }

    /// What others are shown.
    pub(super) fn view(&self) -> Option<Value> {
        let state = self.state.as_ref().ok()?;
        guarded(&*self.of.unit, None, || self.of.unit.show(state)).ok()?
    }

    /// The state, if it is an `S`.
    pub(super) fn state<S: Clone + 'static>(&self) -> Result<S, ProjectionError> {
        let state = self.state.as_ref().map_err(Clone::clone)?;
        let state = (**state).downcast_ref::<S>();
        state.cloned().ok_or_else(|| ProjectionError::WrongType {
            key: self.of.unit.name().to_owned(),
            expected: type_name::<S>(),
        })
    }

    /// The state as a cache keeps it; `None` if there is nothing to keep.
    pub(super) fn row(&self) -> Option<Row> {
        let ((seq, time), state) = (self.last?, self.state.as_ref().ok()?);
        let unit = &self.of.unit;
        match guarded(&**unit, None, || unit.save(state)).ok()? {
            Ok(val) => Some(Row { ver: unit.state_version(), seq, time, val }),
            Err(fault) => {
                tracing::warn!(key = unit.name(), %fault, "a projection's state is no JSON");
                None
            }
        }
    }
}
