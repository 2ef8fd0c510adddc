//! Questions about sessions: which there are, what is in them, where a phrase stands.
//!
//! Read-only, over live sessions and stored ones. Nothing is indexed: a search reads one session
//! after the other and keeps no more than its hits.

mod corpus;
mod cursor;
mod error;
mod events;
mod filter;
mod lineage;
mod search;
mod surface;
#[cfg(test)]
mod tests;
mod text;

pub use self::{
    corpus::{SessionLog, SessionQuery, SessionRecord, TitleSnapshot},
    error::QueryError,
    events::{EventWindow, SessionEvent, SurfaceView},
    filter::{Availability, EventFilter, SessionFilter},
    lineage::{Descendant, SessionTrace},
    search::{EventHit, SearchPage, SearchRequest, SessionHit},
    surface::{EventTrace, SurfaceClass},
    text::{Phrase, searchable},
};
