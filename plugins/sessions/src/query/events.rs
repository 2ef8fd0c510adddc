//! What is in one session.

use playhouse_messages::{
    event::{Seq, SharedEvent},
    id::SessionId,
    message::SharedMessage,
};
use playhouse_plugin_api::cancel::CancelToken;

use super::{
    EventFilter, EventTrace, QueryError, SessionLog, SessionQuery, SurfaceClass, filter,
    surface::SurfaceFold,
};

/// The most events of a window on either side.
const WINDOW: u64 = 50;

/// An event, and where it stands in what the model sees.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionEvent {
    /// The event.
    pub event: SharedEvent,
    /// Where it stands.
    pub class: SurfaceClass,
}

/// An event and its neighbours.
#[derive(Debug, Clone, PartialEq)]
pub struct EventWindow {
    /// The event.
    pub target: SessionEvent,
    /// Those before it, in order.
    pub before: Vec<SessionEvent>,
    /// Those after it, in order.
    pub after: Vec<SessionEvent>,
}

/// What the model sees.
#[derive(Debug, Clone, PartialEq)]
pub struct SurfaceView {
    /// The messages, in order, with their events.
    pub messages: Vec<(Seq, SharedMessage)>,
    /// The last event of the log that it was taken from; `None` for an empty one.
    pub captured_through_seq: Option<Seq>,
}

impl SessionQuery {
    /// The events of a session for which all filters hold, in order.
    ///
    /// # Errors
    ///
    /// As [`SessionQuery::read`]; [`QueryError::InvalidFilter`], [`QueryError::InvalidSurface`].
    pub async fn events(
        &self,
        id: &SessionId,
        filters: &[EventFilter],
        cancel: &CancelToken,
    ) -> Result<Vec<SessionEvent>, QueryError> {
        filter::check_events(filters)?;
        let session = self.read(id, cancel).await?;
        let surface = session.surface()?;
        let mut events = Vec::new();
        for event in session.log.iter() {
            let class = surface.class(event);
            if filters.iter().all(|filter| filter.admits(event, class)) {
                events.push(SessionEvent { event: event.clone(), class });
            }
            breathe(event.seq, cancel).await?;
        }
        Ok(events)
    }

    /// An event and up to 50 events on either side.
    ///
    /// # Errors
    ///
    /// As [`SessionQuery::events`]; [`QueryError::InvalidWindow`], [`QueryError::EventNotFound`].
    pub async fn event(
        &self,
        id: &SessionId,
        seq: Seq,
        before: u64,
        after: u64,
        cancel: &CancelToken,
    ) -> Result<EventWindow, QueryError> {
        if before > WINDOW || after > WINDOW {
            return Err(QueryError::InvalidWindow { most: WINDOW });
        }
        let session = self.read(id, cancel).await?;
        let target = session.event(seq)?.clone();
        let surface = session.surface()?;
        let shown = |event: &SharedEvent| SessionEvent {
            event: event.clone(),
            class: surface.class(event),
        };
        let part = |range| session.log.range(range).map(shown).collect();
        Ok(EventWindow {
            target: shown(&target),
            before: part(seq.saturating_sub(before)..seq),
            after: part(seq + 1..(seq + 1).saturating_add(after)),
        })
    }

    /// What the model sees of a session.
    ///
    /// # Errors
    ///
    /// As [`SessionQuery::read`]; [`QueryError::InvalidSurface`].
    pub async fn surface(
        &self,
        id: &SessionId,
        cancel: &CancelToken,
    ) -> Result<SurfaceView, QueryError> {
        let session = self.read(id, cancel).await?;
        let SurfaceFold { surface, .. } = session.surface()?;
        let message = |seq| Some((seq, surface.message(&session.log, seq)?.clone()));
        let messages = surface.nodes().filter_map(message).collect();
        Ok(SurfaceView { messages, captured_through_seq: session.len().checked_sub(1) })
    }

    /// How an event came to be what it is on the surface.
    ///
    /// # Errors
    ///
    /// As [`SessionQuery::surface`]; [`QueryError::EventNotFound`], which is told first.
    pub async fn trace_event(
        &self,
        id: &SessionId,
        seq: Seq,
        cancel: &CancelToken,
    ) -> Result<EventTrace, QueryError> {
        let session = self.read(id, cancel).await?;
        let event = session.event(seq)?;
        Ok(session.surface()?.trace(&session.log, event))
    }
}

impl SessionLog {
    pub(super) fn surface(&self) -> Result<SurfaceFold, QueryError> {
        SurfaceFold::of(&self.header.id, &self.log)
    }

    fn event(&self, seq: Seq) -> Result<&SharedEvent, QueryError> {
        let missing =
            || QueryError::EventNotFound { id: self.header.id.clone(), seq, len: self.len() };
        self.log.get(seq).ok_or_else(missing)
    }
}

/// Lets others run now and then during long work, and notices that it is not wanted any more.
pub(super) async fn breathe(seq: Seq, cancel: &CancelToken) -> Result<(), QueryError> {
    if seq % 256 == 255 {
        super::corpus::race(cancel, tokio::task::yield_now()).await?;
    }
    Ok(())
}
