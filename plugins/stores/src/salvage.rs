//! Salvaging a damaged store: everything that can be read, written into a fresh one.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, ready};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{
    EventBatch, Store, StoreError, StoreReader, StoredSession, all_sessions, all_values,
};

use crate::journal_store::{blocking, open_wreck};
use crate::kind::{StoreConfig, StoreKind, open_reader};
use crate::verify::{Progress, counted, sound_events, verify};

/// Events of one append: enough to make a write worth it, few enough to bound its memory.
const BATCH_EVENTS_MAX: usize = 1024;

/// A damaged store as its kind lays it open.
pub(crate) struct Wreck {
    /// Sessions whose ids are known.
    pub(crate) ids: Vec<SessionId>,
    /// What is there and has lost its name.
    pub(crate) nameless: Vec<(SessionId, StoreError)>,
    /// Keys of values.
    pub(crate) keys: Vec<String>,
    /// Every damaged place.
    pub(crate) damages: Vec<String>,
    /// Whether more may be lost than can be named.
    pub(crate) is_more_lost: bool,
    /// Where a crash has left something half written.
    pub(crate) torn: Option<String>,
    pub(crate) source: Box<dyn Source>,
}

/// What of a session can be read.
pub(crate) enum Found {
    Whole(StoredSession),
    /// Its first events, and why there are no more.
    Prefix(StoredSession, StoreError),
    Nothing(StoreError),
}

/// Reads what is left.
pub(crate) trait Source: Send + Sync {
    fn session<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Found>;
    fn value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>>;
}

/// A session of which only the first events came over.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Partial {
    /// The session.
    pub id: SessionId,
    /// How many events came over.
    pub events: u64,
    /// Where and why it ends there.
    pub cause: StoreError,
}

/// What [`salvage`] did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SalvageReport {
    /// The damaged store.
    pub from: PathBuf,
    /// The fresh one.
    pub into: PathBuf,
    /// How many sessions came over whole.
    pub whole: u64,
    /// Those that came over in part: the log's valid prefix, which an agent can go on from. What was
    /// streamed of an unsettled answer behind it is left out.
    pub partial: Vec<Partial>,
    /// Those of which nothing came over, and why. One whose id is lost is called by its number.
    pub lost: Vec<(SessionId, StoreError)>,
    /// Events that came over, of whole and partial sessions.
    pub events: u64,
    /// How many values came over.
    pub values: u64,
    /// Keys of values that did not, and why.
    pub lost_values: Vec<(String, StoreError)>,
    /// Every damaged place.
    pub damages: Vec<String>,
    /// Whether more may be lost than can be named.
    pub is_more_lost: bool,
    /// Where a crash has left something half written, which is left out. No damage.
    pub torn: Option<String>,
}

impl SalvageReport {
    /// Whether all came over.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.partial.is_empty()
            && self.lost.is_empty()
            && self.lost_values.is_empty()
            && !self.is_more_lost
    }
}

impl fmt::Display for SalvageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, into) = (self.from.display(), self.into.display());
        writeln!(
            f,
            "{from} -> {into}: {} whole, {} in part, {} lost; {} and {}",
            counted(self.whole, "sessions"),
            self.partial.len(),
            self.lost.len(),
            counted(self.events, "events"),
            counted(self.values, "values"),
        )?;
        if let Some(place) = &self.torn {
            writeln!(f, "torn: {place}: a crash left it, and it is left out")?;
        }
        for damage in &self.damages {
            writeln!(f, "damaged: {damage}")?;
        }
        for Partial { id, events, cause } in &self.partial {
            writeln!(f, "in part: session {id}, {}: {cause}", counted(*events, "events"))?;
        }
        for (id, error) in &self.lost {
            writeln!(f, "lost: session {id}: {error}")?;
        }
        for (key, error) in &self.lost_values {
            writeln!(f, "lost: value {key}: {error}")?;
        }
        if self.is_more_lost {
            writeln!(f, "more may be lost than can be named")?;
        }
        Ok(())
    }
}

/// Writes everything that can be read of the store at `from` into a fresh one at `into`, of the kind
/// that `config` names: whole sessions byte for byte, the valid prefix of damaged ones, values. Takes
/// no lock on `from`, and never changes it. `progress` is called after each session. **Durable** when
/// this resolves; dropped before, it leaves an `into` that is of no use.
///
/// # Errors
///
/// [`StoreError::Argument`] if `into` is not empty, or `from` is no store; [`StoreError::Full`] and
/// [`StoreError::Io`] of `into`. What cannot be read is no error: it is in the report.
pub async fn salvage(
    from: &Path,
    into: &Path,
    config: StoreConfig,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<SalvageReport, StoreError> {
    if std::fs::read_dir(into).is_ok_and(|mut entries| entries.next().is_some()) {
        let text =
            format!("{} is not empty; name a directory that is, or is not there", into.display());
        return Err(StoreError::Argument(text));
    }
    if config.kind() == StoreKind::Memory {
        return Err(StoreError::Argument("memory keeps no files; name another kind".to_owned()));
    }
    let wreck = match StoreKind::detect(from)? {
        StoreKind::Journal => open_wreck(from).await?,
        _ => Listed::wreck(from).await?,
    };
    let target = config.open(into).await?;
    let mut report = SalvageReport {
        from: from.to_path_buf(),
        into: into.to_path_buf(),
        whole: 0,
        partial: Vec::new(),
        lost: wreck.nameless,
        events: 0,
        values: 0,
        lost_values: Vec::new(),
        damages: wreck.damages,
        is_more_lost: wreck.is_more_lost,
        torn: wreck.torn,
    };
    let all = wreck.ids.len() as u64;
    for (done, id) in (1..).zip(&wreck.ids) {
        match sound(wreck.source.session(id).await) {
            Found::Whole(session) => {
                write(&*target, &session).await?;
                report.whole += 1;
                report.events += session.events.len() as u64;
            }
            Found::Prefix(session, cause) => {
                write(&*target, &session).await?;
                let events = session.events.len() as u64;
                report.events += events;
                report.partial.push(Partial { id: id.clone(), events, cause });
            }
            Found::Nothing(error) => report.lost.push((id.clone(), error)),
        }
        progress(Progress { done, all });
    }
    for key in &wreck.keys {
        match wreck.source.value(key).await {
            Ok(Some(value)) => {
                target.put_value(key, value).await?;
                report.values += 1;
            }
            Ok(None) => {}
            Err(error) => report.lost_values.push((key.clone(), error)),
        }
    }
    target.close().await?;
    Ok(report)
}

/// What reads well may still say something else than it should: only events that are JSON and say
/// their own place come over.
fn sound(found: Found) -> Found {
    let (mut session, cause) = match found {
        Found::Whole(session) => (session, None),
        Found::Prefix(session, cause) => (session, Some(cause)),
        nothing @ Found::Nothing(_) => return nothing,
    };
    let (sound, fault) = sound_events(&session.header.id, &session);
    session.events.truncate(sound);
    match fault.or(cause) {
        None => Found::Whole(session),
        Some(cause) => {
            session.inherited_event_count = session.inherited_event_count.min(sound as u64);
            session.tail = None;
            Found::Prefix(session, cause)
        }
    }
}

async fn write(target: &dyn Store, session: &StoredSession) -> Result<(), StoreError> {
    let writer = target.create(&session.header, session.inherited_event_count).await?;
    for (first_seq, events) in
        (0..).step_by(BATCH_EVENTS_MAX).zip(session.events.chunks(BATCH_EVENTS_MAX))
    {
        writer.append(EventBatch { first_seq, events: events.to_vec() }).await?;
    }
    if let Some(tail) = &session.tail {
        for part in &tail.parts {
            writer.tail(tail.attempt, part.clone()).await?;
        }
    }
    writer.flush().await?;
    writer.close().await
}

/// How many events a fork has inherited, by what it says itself: those before its last marker of them,
/// or all, if the marker is not among them.
fn inherited(events: &[Bytes]) -> u64 {
    let is_marker = |event: &Bytes| {
        let event: serde_json::Value = serde_json::from_slice(event).unwrap_or_default();
        event["type"] == "session/end-seed" && event["data"]["inherited"] == true
    };
    events.iter().rposition(is_marker).unwrap_or(events.len()) as u64
}

/// A store of a kind that needs no more than what every reader can do.
struct Listed(Arc<dyn StoreReader>);

impl Listed {
    async fn wreck(from: &Path) -> Result<Wreck, StoreError> {
        let reader = open_reader(from).await?;
        let dir = from.to_path_buf();
        let report = blocking(move || verify(dir, |_| ())).await?;
        // What cannot even be listed is named by the verification.
        let unreadable = report.unreadable.into_iter().map(|(id, _)| id);
        let mut ids: BTreeSet<SessionId> = unreadable.collect();
        let listed = all_sessions(&*reader).map_ok(|stat| stat.header.id.clone());
        ids.extend(listed.try_collect::<Vec<_>>().await?);
        // A list that breaks off is damage, which the verification has named.
        let keys = all_values(&*reader).scan((), |(), key| ready(key.ok())).collect().await;
        Ok(Wreck {
            ids: ids.into_iter().collect(),
            nameless: Vec::new(),
            keys,
            is_more_lost: !report.damages.is_empty(),
            damages: report.damages,
            torn: report.torn,
            source: Box::new(Self(reader)),
        })
    }

    /// The most events from the beginning that can be read: each look halves what is in question.
    async fn prefix(&self, id: &SessionId, count: u64) -> Vec<Bytes> {
        let (mut good, mut bad) = (Vec::new(), count + 1);
        while good.len() as u64 + 1 < bad {
            let middle = (good.len() as u64).midpoint(bad);
            match self.0.read_events(id, 0..middle).await {
                Ok(events) if events.len() as u64 == middle => good = events,
                _ => bad = middle,
            }
        }
        good
    }
}

impl Source for Listed {
    fn session<'a>(&'a self, id: &'a SessionId) -> BoxFuture<'a, Found> {
        async move {
            let cause = match self.0.read(id).await {
                Ok(session) => return Found::Whole(session),
                Err(cause) => cause,
            };
            let Ok(Some(stat)) = self.0.stat(id).await else { return Found::Nothing(cause) };
            let events = self.prefix(id, stat.event_count).await;
            let header = stat.header;
            let inherited_event_count = if header.is_seeded { inherited(&events) } else { 0 };
            let session = StoredSession { header, inherited_event_count, events, tail: None };
            Found::Prefix(session, cause)
        }
        .boxed()
    }

    fn value<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.0.get_value(key)
    }
}

#[cfg(test)]
mod tests;
