//! Which sessions, and which events, are meant.

use playhouse_messages::{
    event::{Event, Seq},
    id::SessionId,
};

use super::{
    QueryError, SessionRecord, SurfaceClass,
    text::{Phrase, searchable},
};

/// A condition on sessions. Of several values one must fit; an empty list fits none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SessionFilter {
    /// One of these.
    Id(Vec<SessionId>),
    /// In one of these working directories; `None` is a session without one.
    Cwd(Vec<Option<String>>),
    /// Created between these times, in epoch milliseconds, both inclusive.
    CreatedAt {
        /// Not before.
        from: Option<u64>,
        /// Not after.
        to: Option<u64>,
    },
    /// With one of these parents; `None` is a session without one.
    Parent(Vec<Option<SessionId>>),
    /// Found in one of these places.
    Availability(Vec<Availability>),
}

/// Where a session is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Availability {
    /// An agent drives it.
    Live,
    /// The store has it.
    Persisted,
}

/// A condition on events; several values as in [`SessionFilter`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EventFilter {
    /// In this range, both ends inclusive.
    Seq {
        /// Not before.
        from: Option<Seq>,
        /// Not after.
        to: Option<Seq>,
    },
    /// Committed between these times, in epoch milliseconds, both inclusive.
    Time {
        /// Not before.
        from: Option<i64>,
        /// Not after.
        to: Option<i64>,
    },
    /// Of one of these kinds.
    Kind(Vec<String>),
    /// Of one of these classes.
    Surface(Vec<SurfaceClass>),
    /// With this phrase in its searchable text.
    Text(Phrase),
}

fn within<T: PartialOrd>(value: T, from: Option<T>, to: Option<T>) -> bool {
    from.is_none_or(|from| value >= from) && to.is_none_or(|to| value <= to)
}

fn backwards<T: PartialOrd>(from: Option<T>, to: Option<T>) -> bool {
    matches!((from, to), (Some(from), Some(to)) if from > to)
}

const BACKWARDS: QueryError = QueryError::InvalidFilter("a range begins after its end");

pub(super) fn check(filters: &[SessionFilter]) -> Result<(), QueryError> {
    let bad = |filter: &SessionFilter| match filter {
        SessionFilter::CreatedAt { from, to } => backwards(*from, *to),
        _ => false,
    };
    if filters.iter().any(bad) { Err(BACKWARDS) } else { Ok(()) }
}

pub(super) fn check_events(filters: &[EventFilter]) -> Result<(), QueryError> {
    let bad = |filter: &EventFilter| match filter {
        EventFilter::Seq { from, to } => backwards(*from, *to),
        EventFilter::Time { from, to } => backwards(*from, *to),
        _ => false,
    };
    if filters.iter().any(bad) { Err(BACKWARDS) } else { Ok(()) }
}

impl SessionFilter {
    pub(super) fn admits(&self, record: &SessionRecord) -> bool {
        let header = &record.header;
        match self {
            Self::Id(ids) => ids.contains(&header.id),
            Self::Cwd(cwds) => cwds.contains(&header.cwd),
            Self::CreatedAt { from, to } => within(header.created_at, *from, *to),
            Self::Parent(parents) => parents.contains(&header.parent_session),
            Self::Availability(places) => places.iter().any(|place| match place {
                Availability::Live => record.live,
                Availability::Persisted => record.persisted,
            }),
        }
    }
}

impl EventFilter {
    pub(super) fn admits(&self, event: &Event, class: SurfaceClass) -> bool {
        match self {
            Self::Seq { from, to } => within(event.seq, *from, *to),
            Self::Time { from, to } => within(event.time, *from, *to),
            Self::Kind(kinds) => kinds.iter().any(|kind| kind == event.body.kind()),
            Self::Surface(classes) => classes.contains(&class),
            Self::Text(phrase) => phrase.is_in(&searchable(event)),
        }
    }
}
