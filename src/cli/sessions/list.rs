//! `sessions list`.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use playhouse_messages::{chunk::Failure, id::SessionId};
use playhouse_plugin_api::{
    cancel::CancelToken,
    scope::Scope,
    store::{SessionStat, StoreReader},
};
use playhouse_sessions::{
    ProjectionError, Projections, QueryError, SESSION_STATS, SessionQuery, SessionStats, Stats,
    TitleProjection,
    query::{EventHit, Phrase, SearchRequest, SessionFilter, SessionHit, SessionRecord},
};
use serde_json::{Value, json};

use super::{Common, progress, stat_json, stat_line};
use crate::cli::{
    exit::{CliError, Exit},
    output::{Format, Out, brief, note},
};

/// How much of a title and of a snippet is shown.
const TITLE: usize = 80;
const SNIPPET: usize = 240;

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// Only sessions with this phrase in what was said and done in them: literal, in any case, with
    /// any whitespace where it has some. Those that fit best come first, 20 unless --limit says more.
    #[arg(long, value_name = "TEXT")]
    query: Option<String>,
    /// Only sessions of this working directory.
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Only sessions with this parent; `none` for those without one.
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// Only sessions created since then: a date (its beginning in UTC), a time like
    /// 2026-01-31T12:00:00Z, or how long ago, like 3h or 2days.
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<u64>,
    /// Only sessions created until then.
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<u64>,
    /// The most sessions to list; with --query at most 100.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Shows also how many turns and steps there were, and what took the time.
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    common: Common,
}

impl From<QueryError> for CliError {
    fn from(error: QueryError) -> Self {
        Failure::from(error).into()
    }
}

impl From<ProjectionError> for CliError {
    fn from(error: ProjectionError) -> Self {
        Failure::from(error).into()
    }
}

/// A point in time as epoch milliseconds.
fn time(text: &str) -> Result<u64, String> {
    let date = text.len() == 10 && text.as_bytes().get(4) == Some(&b'-');
    let full = if date { format!("{text}T00:00:00Z") } else { text.to_owned() };
    let time = match humantime::parse_rfc3339_weak(&full) {
        Ok(time) => Some(time),
        Err(_) => {
            humantime::parse_duration(text).ok().and_then(|ago| SystemTime::now().checked_sub(ago))
        }
    };
    let millis = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let millis = millis.and_then(|since| u64::try_from(since.as_millis()).ok());
    millis.ok_or_else(|| {
        "give a date like 2026-01-31, a time like 2026-01-31T12:00:00Z, or how long ago, like 3h"
            .to_owned()
    })
}

impl List {
    fn filters(&self) -> Vec<SessionFilter> {
        let mut filters = Vec::new();
        if let Some(dir) = &self.cwd {
            // Sessions have it in this form; a directory that is gone may be meant too.
            let dir = dir.canonicalize().or_else(|_| std::path::absolute(dir));
            let dir = dir.unwrap_or_default().to_string_lossy().into_owned();
            filters.push(SessionFilter::Cwd(vec![Some(dir)]));
        }
        if let Some(parent) = &self.parent {
            let parent = (parent != "none").then(|| SessionId::from(parent.as_str()));
            filters.push(SessionFilter::Parent(vec![parent]));
        }
        if self.since.is_some() || self.until.is_some() {
            filters.push(SessionFilter::CreatedAt { from: self.since, to: self.until });
        }
        filters
    }
}

pub(super) async fn run(list: &List) -> Result<Exit, CliError> {
    let store = list.common.open().await?;
    let query = SessionQuery::new(None, Some(store.clone()));
    let never = CancelToken::new();
    let limit = list.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let found: Vec<(SessionRecord, Option<EventHit>)> = match &list.query {
        None => {
            let records = query.list(&list.filters(), &never).await?;
            let shown = records.into_iter().take(limit.unwrap_or(usize::MAX));
            shown.map(|record| (record, None)).collect()
        }
        Some(text) => {
            let mut request = SearchRequest::new(Phrase::new(text)?);
            request.filters = list.filters();
            request.limit = limit.unwrap_or(request.limit);
            let bar = progress(0);
            let tell = |done: usize, total: usize| {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
            };
            let page = query.search(&request, tell, &never).await;
            bar.finish_and_clear();
            let page = page?;
            for (id, error) in &page.unreadable {
                note(&format!("session {id} was not searched: {error}"));
            }
            if page.next.is_some() {
                note(&format!("the best {} are shown; there are more", page.hits.len()));
            }
            let hits = page.hits.into_iter();
            hits.map(|SessionHit { record, best }| (record, Some(best))).collect()
        }
    };
    if found.is_empty() {
        let narrowed = list.query.is_some() || !list.filters().is_empty();
        note(if narrowed { "nothing found" } else { "no sessions" });
        return Ok(Exit::Completed);
    }
    let shown = Shown::new(store, list.stats)?;
    let mut out = Out::new();
    for (record, hit) in &found {
        let Some(stat) = record.stat() else { continue };
        let known = shown.of(&record.header.id).await;
        match list.common.format {
            Format::Jsonl => out.line(&line_json(&stat, &known, hit.as_ref()).to_string())?,
            Format::Text => {
                for line in lines(&stat, &known, hit.as_ref()) {
                    out.line(&line)?;
                }
            }
        }
    }
    out.flush()?;
    Ok(Exit::Completed)
}

/// Reads what is shown of a session beside the catalog's facts, one session at a time.
struct Shown {
    store: Arc<dyn StoreReader>,
    projections: Projections,
}

#[derive(Default)]
struct Known {
    title: Option<String>,
    stats: Option<Stats>,
}

impl Shown {
    fn new(store: Arc<dyn StoreReader>, stats: bool) -> Result<Self, CliError> {
        let (projections, scope) = (Projections::new(), Scope::root("sessions list"));
        projections.register(&scope, TitleProjection)?;
        if stats {
            projections.register(&scope, SessionStats)?;
        }
        Ok(Self { store, projections })
    }

    async fn of(&self, id: &SessionId) -> Known {
        // The store is another process's to write: nothing is kept of what is read.
        match self.projections.stored_snapshot(&*self.store, None, id).await {
            Ok(mut snapshot) => {
                let mut value = |key: &str| snapshot.values.remove(key).unwrap_or_default();
                Known {
                    title: value(TitleProjection::KEY).as_str().map(str::to_owned),
                    stats: serde_json::from_value(value(SESSION_STATS)).ok(),
                }
            }
            Err(error) => {
                note(&format!("session {id} cannot be read: {error}"));
                Known::default()
            }
        }
    }
}

fn line_json(stat: &SessionStat, known: &Known, hit: Option<&EventHit>) -> Value {
    let mut value = stat_json(stat);
    value["title"] = json!(known.title);
    if let Some(stats) = &known.stats {
        value["stats"] = json!(stats);
    }
    if let Some(hit) = hit {
        value["hit"] = hit_json(hit);
    }
    value
}

/// A hit for programs.
pub(crate) fn hit_json(hit: &EventHit) -> Value {
    let mut value = json!({
        "seq": hit.seq,
        "time": hit.time,
        "type": hit.kind,
        "matches": hit.matches,
        "snippet": hit.snippet,
    });
    if let Some(class) = hit.class {
        value["surface"] = json!(class);
    }
    value
}

fn lines(stat: &SessionStat, known: &Known, hit: Option<&EventHit>) -> Vec<String> {
    let mut first = stat_line(stat);
    if let Some(title) = &known.title {
        first = format!("{first}  {}", brief(title, TITLE));
    }
    let mut lines = vec![first];
    if let Some(stats) = &known.stats {
        let seconds = |millis: u64| format!("{}.{} s", millis / 1000, millis % 1000 / 100);
        lines.push(format!(
            "    {} turns, {} steps, models {}, tools {}",
            stats.turns,
            stats.steps,
            seconds(stats.llm_ms),
            seconds(stats.tool_ms)
        ));
    }
    if let Some(hit) = hit {
        lines.push(format!("    {}: {}", hit.seq, brief(&hit.snippet, SNIPPET)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_instants_or_how_long_ago() {
        assert_eq!(time("2000-02-29"), Ok(951_782_400_000));
        assert_eq!(time("2000-02-29T00:00:01Z"), Ok(951_782_401_000));
        assert!(time("1h").unwrap() > time("2days").unwrap());
        for bad in ["", "yesterday", "2000-02", "-1"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
