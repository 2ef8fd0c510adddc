//! Where events stand in what a model sees.

use std::collections::HashMap;

use playhouse_messages::{
    candidate::Candidate,
    event::{Event, Seq},
    id::SessionId,
    log::Log,
    surface::{Surface, SurfaceChange},
};
use serde::Serialize;

use super::QueryError;

/// Where an event stands in what a model sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SurfaceClass {
    /// On the surface now.
    Current,
    /// Replaced by a later event.
    Shadowed,
    /// Never on it.
    LogOnly,
}

/// How an event came to be what it is on the surface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventTrace {
    /// The event.
    pub target: Seq,
    /// Where it stands.
    pub class: SurfaceClass,
    /// The event that took its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<Seq>,
    /// That one, the one that took that one's place, and so on.
    pub replacement_chain: Vec<Seq>,
    /// The events whose place it took, in their order on the surface.
    pub replaced_event_seqs: Vec<Seq>,
    /// The events that it derives from.
    pub source_event_seqs: Vec<Seq>,
    /// The events that derive from it.
    pub derived_event_seqs: Vec<Seq>,
}

/// The surface of a log, and who took whose place on the way.
#[derive(Debug, Default)]
pub(super) struct SurfaceFold {
    pub(super) surface: Surface,
    replaced_by: HashMap<Seq, Seq>,
    replaced: HashMap<Seq, Vec<Seq>>,
}

impl SurfaceFold {
    pub(super) fn of(id: &SessionId, log: &Log) -> Result<Self, QueryError> {
        let mut fold = Self::default();
        for event in log.iter() {
            let change = fold.surface.plan(log, Candidate::from(&**event));
            let change = change.map_err(|fault| QueryError::InvalidSurface {
                id: id.clone(),
                seq: event.seq,
                cause: fault.to_string(),
            })?;
            if let SurfaceChange::Replace { start, end } = change {
                let gone = fold.surface.nodes().skip(start).take(end + 1 - start);
                let gone: Vec<_> = gone.collect();
                fold.replaced_by.extend(gone.iter().map(|seq| (*seq, event.seq)));
                fold.replaced.insert(event.seq, gone);
            }
            fold.surface.apply(event.seq, &event.body, &change);
        }
        Ok(fold)
    }

    pub(super) fn class(&self, event: &Event) -> SurfaceClass {
        if !event.body.is_surface() {
            SurfaceClass::LogOnly
        } else if self.replaced_by.contains_key(&event.seq) {
            SurfaceClass::Shadowed
        } else {
            SurfaceClass::Current
        }
    }

    pub(super) fn trace(&self, log: &Log, event: &Event) -> EventTrace {
        let replaced_by = self.replaced_by.get(&event.seq).copied();
        // A replacement is later than what it replaces, so this ends.
        let chain = std::iter::successors(replaced_by, |by| self.replaced_by.get(by).copied());
        let later = log.range(event.seq + 1..log.len());
        let derived = later.filter(|later| later.sources.contains(&event.seq));
        EventTrace {
            target: event.seq,
            class: self.class(event),
            replaced_by,
            replacement_chain: chain.collect(),
            replaced_event_seqs: self.replaced.get(&event.seq).cloned().unwrap_or_default(),
            source_event_seqs: event.sources.clone(),
            derived_event_seqs: derived.map(|later| later.seq).collect(),
        }
    }
}
