//! Where a phrase stands: in which sessions, and in which events of one.

use std::{cmp::Reverse, collections::BTreeSet, hash::BuildHasher};

use playhouse_messages::{
    event::{Event, Seq},
    id::SessionId,
};
use playhouse_plugin_api::cancel::CancelToken;

use super::{
    EventFilter, Phrase, QueryError, SessionFilter, SessionQuery, SessionRecord, SurfaceClass,
    corpus::race,
    cursor::Cursor,
    events::breathe,
    filter,
    text::{SEARCHABLE, searchable},
};
use crate::stored::{kind_of, parse};

/// Hits of a page unless told otherwise.
pub(super) const LIMIT: usize = 20;
/// The most hits of a page.
const LIMIT_MAX: usize = 100;

/// What to look for, and where.
#[derive(Debug, Clone)]
pub struct SearchRequest<F> {
    /// The phrase.
    pub phrase: Phrase,
    /// Conditions, all of which must hold.
    pub filters: Vec<F>,
    /// Hits of a page, 1 to 100.
    pub limit: usize,
    /// Where to go on, from the page before of the same request.
    pub cursor: Option<String>,
}

impl<F> SearchRequest<F> {
    /// The first 20 hits of a phrase.
    pub fn new(phrase: Phrase) -> Self {
        Self { phrase, filters: Vec::new(), limit: LIMIT, cursor: None }
    }
}

/// An event with the phrase in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventHit {
    /// The event.
    pub seq: Seq,
    /// When it was committed, in epoch milliseconds.
    pub time: i64,
    /// Its kind.
    pub kind: String,
    /// How often the phrase stands in it.
    pub matches: usize,
    /// Up to 240 characters around the first place, on one line.
    pub snippet: String,
    /// Where it stands in what the model sees; `None` where that was not looked at.
    pub class: Option<SurfaceClass>,
}

/// A session with the phrase in it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionHit {
    /// The session.
    pub record: SessionRecord,
    /// The event that fits best.
    pub best: EventHit,
}

/// A page of hits, the best first: with more matches, then in shorter texts, then newer ones.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchPage<H> {
    /// The hits.
    pub hits: Vec<H>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<String>,
    /// Sessions that could not be read, which may have hits.
    pub unreadable: Vec<(SessionId, QueryError)>,
}

/// Smaller is better.
type Rank = (Reverse<usize>, usize, Reverse<i64>, SessionId, Seq);

struct Ranked<T> {
    rank: Rank,
    hit: T,
}

impl<T> PartialEq for Ranked<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl<T> Eq for Ranked<T> {}

impl<T> PartialOrd for Ranked<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Ranked<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}

/// The best so many hits.
struct Best<T> {
    most: usize,
    hits: BTreeSet<Ranked<T>>,
}

impl<T> Best<T> {
    fn new(most: usize) -> Self {
        Self { most, hits: BTreeSet::new() }
    }

    fn add(&mut self, rank: Rank, hit: T) {
        self.hits.insert(Ranked { rank, hit });
        if self.hits.len() > self.most {
            self.hits.pop_last();
        }
    }

    /// The page from `offset` on, and whether there is more.
    fn page(self, offset: usize, limit: usize) -> (Vec<T>, bool) {
        let more = self.hits.len() > offset + limit;
        let hits = self.hits.into_iter().skip(offset).take(limit);
        (hits.map(|ranked| ranked.hit).collect(), more)
    }
}

fn hit(phrase: &Phrase, id: &SessionId, event: &Event) -> Option<(Rank, EventHit)> {
    let text = searchable(event);
    let found = phrase.find(&text)?;
    let rank =
        (Reverse(found.count), text.chars().count(), Reverse(event.time), id.clone(), event.seq);
    let hit = EventHit {
        seq: event.seq,
        time: event.time,
        kind: event.body.kind().to_owned(),
        matches: found.count,
        snippet: found.snippet,
        class: None,
    };
    Some((rank, hit))
}

fn check_limit(limit: usize) -> Result<(), QueryError> {
    if (1..=LIMIT_MAX).contains(&limit) {
        return Ok(());
    }
    Err(QueryError::InvalidLimit { asked: limit, most: LIMIT_MAX })
}

impl SessionQuery {
    /// Sessions with the phrase in them, each by its best event. Reads them one after the other;
    /// `progress` is told how many of how many are read.
    ///
    /// A cursor is good until any of the sessions changes. A session that cannot be read is told, and
    /// leaves the others alone.
    ///
    /// # Errors
    ///
    /// As [`SessionQuery::list`]; [`QueryError::InvalidLimit`], [`QueryError::InvalidCursor`],
    /// [`QueryError::StaleCursor`].
    pub async fn search(
        &self,
        request: &SearchRequest<SessionFilter>,
        mut progress: impl FnMut(usize, usize),
        cancel: &CancelToken,
    ) -> Result<SearchPage<SessionHit>, QueryError> {
        let SearchRequest { phrase, filters, limit, cursor } = request;
        check_limit(*limit)?;
        let records = self.list(filters, cancel).await?;
        let (key, generation) =
            (self.keys.hash_one((phrase, filters, limit)), self.generation(&records));
        let offset = Cursor::offset(cursor.as_deref(), key, generation)?;
        let mut best = Best::new(offset.saturating_add(limit + 1));
        let (total, mut unreadable) = (records.len(), Vec::new());
        for (done, record) in records.into_iter().enumerate() {
            progress(done, total);
            match self.best(phrase, &record, cancel).await {
                Ok(Some((rank, hit))) => best.add(rank, SessionHit { record, best: hit }),
                // It was deleted meanwhile.
                Ok(None) | Err(QueryError::SessionNotFound { .. }) => {}
                Err(error @ QueryError::Aborted(_)) => return Err(error),
                Err(error) => unreadable.push((record.header.id.clone(), error)),
            }
        }
        progress(total, total);
        let (hits, more) = best.page(offset, *limit);
        let next = Cursor { offset: offset + limit, request: key, generation };
        Ok(SearchPage { hits, next: more.then(|| next.encode()), unreadable })
    }

    /// The best event of a session.
    async fn best(
        &self,
        phrase: &Phrase,
        record: &SessionRecord,
        cancel: &CancelToken,
    ) -> Result<Option<(Rank, EventHit)>, QueryError> {
        let id = &record.header.id;
        let mut best: Option<(Rank, EventHit)> = None;
        let mut take = |found: Option<(Rank, EventHit)>| {
            if let Some(found) = found
                && best.as_ref().is_none_or(|(rank, _)| found.0 < *rank)
            {
                best = Some(found);
            }
        };
        if let Some(session) = self.live(id) {
            for event in session.log().iter() {
                take(hit(phrase, id, event));
                breathe(event.seq, cancel).await?;
            }
            return Ok(best);
        }
        let Some(store) = &self.store else { return Ok(None) };
        let events = race(cancel, store.read_events(id, 0..Seq::MAX)).await?;
        for (seq, bytes) in (0..).zip(events.map_err(QueryError::of)?) {
            if kind_of(&bytes).is_none_or(|kind| SEARCHABLE.contains(&kind)) {
                take(hit(phrase, id, &parse(id, seq, &bytes).map_err(QueryError::of)?));
            }
            breathe(seq, cancel).await?;
        }
        Ok(best)
    }

    /// Events of one session with the phrase in them. A cursor is good until the session changes,
    /// whatever others do.
    ///
    /// # Errors
    ///
    /// As [`SessionQuery::events`] and [`SessionQuery::search`].
    pub async fn search_events(
        &self,
        id: &SessionId,
        request: &SearchRequest<EventFilter>,
        cancel: &CancelToken,
    ) -> Result<SearchPage<EventHit>, QueryError> {
        let SearchRequest { phrase, filters, limit, cursor } = request;
        check_limit(*limit)?;
        filter::check_events(filters)?;
        let record = self.record(id, cancel).await?;
        let generation = self.generation(std::slice::from_ref(&record));
        let key = self.keys.hash_one((id, phrase, filters, limit));
        let offset = Cursor::offset(cursor.as_deref(), key, generation)?;
        let session = self.read(id, cancel).await?;
        let surface = session.surface()?;
        let mut best = Best::new(offset.saturating_add(limit + 1));
        for event in session.log.iter() {
            let class = surface.class(event);
            if filters.iter().all(|filter| filter.admits(event, class))
                && let Some((rank, hit)) = hit(phrase, id, event)
            {
                best.add(rank, EventHit { class: Some(class), ..hit });
            }
            breathe(event.seq, cancel).await?;
        }
        let (hits, more) = best.page(offset, *limit);
        let next = Cursor { offset: offset + limit, request: key, generation };
        Ok(SearchPage { hits, next: more.then(|| next.encode()), unreadable: Vec::new() })
    }
}
