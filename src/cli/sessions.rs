//! `playhouse sessions`: what a store holds. Nothing here takes the store's lock or changes it, so
//! all of it works beside a running harness.

mod transcript;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use playhouse_messages::{
    header::{Origin, SessionHeader},
    id::SessionId,
    invariants,
    log::Log,
    session::SessionCore,
    session_state::KnownKinds,
};
use playhouse_plugin_api::store::{ListQuery, SessionStat, StoreError};
use playhouse_stores::JournalReader;
use serde_json::{Value, json};

use super::{
    config::Config,
    exit::{CliError, EXIT_CODES, Exit},
    house::store_dir,
    output::{Format, Out, tame},
};

/// Lists, shows and verifies stored sessions; works beside a running harness.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct Sessions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lists the sessions of a store, by id.
    List(Common),
    /// Shows one session: a transcript, or with `--format jsonl` its events exactly as they are stored.
    Show {
        /// Which session.
        id: String,
        #[command(flatten)]
        common: Common,
    },
    /// Shows which session delegated to which.
    Tree(Common),
    /// Reads every byte, folds every log and holds it against the invariants; exits with 6 if anything
    /// is damaged.
    Verify(Common),
}

#[derive(Debug, clap::Args)]
struct Common {
    /// The store's directory [default: the config's, or .playhouse].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The config, as docs/config.md describes it [default: playhouse.toml if it is there].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How results are shown.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Common {
    fn dir(&self) -> Result<PathBuf, CliError> {
        Ok(store_dir(self.store.clone(), &Config::load(self.config.as_deref())?))
    }

    fn open(&self) -> Result<JournalReader, CliError> {
        let dir = self.dir()?;
        if !dir.is_dir() {
            let text = format!(
                "there is no store at {}; name one with --store, or make one with `playhouse run`",
                dir.display()
            );
            return Err(CliError::Usage(text));
        }
        Ok(JournalReader::open(dir)?)
    }
}

impl Sessions {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If the store or the session cannot be read.
    pub async fn run(self) -> Result<Exit, CliError> {
        // Reading blocks; nothing else runs in this process.
        match self.command {
            Command::List(common) => list(&common),
            Command::Show { id, common } => show(&SessionId::from(id), &common),
            Command::Tree(common) => tree(&common),
            Command::Verify(common) => verify(&common),
        }
    }
}

fn all(reader: &JournalReader) -> Result<Vec<SessionStat>, CliError> {
    let mut stats = Vec::new();
    let mut query = ListQuery::default();
    loop {
        let page = reader.list(&query)?;
        stats.extend(page.sessions);
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(stats),
        }
    }
}

fn stat_json(stat: &SessionStat) -> Value {
    let mut value = json!(*stat.header);
    value["events"] = stat.event_count.into();
    value["bytes"] = stat.size_bytes.into();
    value
}

fn list(common: &Common) -> Result<Exit, CliError> {
    let stats = all(&common.open()?)?;
    let mut out = Out::new();
    for stat in &stats {
        match common.format {
            Format::Jsonl => out.line(&stat_json(stat).to_string())?,
            Format::Text => out.line(&stat_line(stat))?,
        }
    }
    out.flush()?;
    Ok(Exit::Completed)
}

fn stat_line(stat: &SessionStat) -> String {
    let header = &stat.header;
    let kind = match (header.origin, &header.parent_session) {
        (Some(Origin::Subagent), Some(parent)) => format!("  sub-agent of {parent}"),
        (None, Some(parent)) => format!("  fork of {parent}"),
        (_, None) => String::new(),
    };
    let facts = format!(
        "{}  {}  {:>6} events  {:>9} bytes{kind}",
        header.id,
        utc(header.created_at),
        stat.event_count,
        stat.size_bytes
    );
    tame(&facts)
}

/// Epoch milliseconds as a date and a time.
fn utc(millis: u64) -> String {
    let (days, secs) = (millis / 86_400_000, millis / 1000 % 86_400);
    // Howard Hinnant's `civil_from_days`, for days from 1970 on.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (secs / 3600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn show(id: &SessionId, common: &Common) -> Result<Exit, CliError> {
    let stored = common.open()?.read(id)?;
    let mut out = Out::new();
    match common.format {
        Format::Jsonl => {
            for event in &stored.events {
                out.bytes(event)?;
                out.bytes(b"\n")?;
            }
        }
        Format::Text => {
            let log = stored.log()?;
            transcript::write(&stored.header, &log, &mut out)?;
        }
    }
    out.flush()?;
    Ok(Exit::Completed)
}

fn tree(common: &Common) -> Result<Exit, CliError> {
    let stats = all(&common.open()?)?;
    let ids: BTreeSet<_> = stats.iter().map(|stat| stat.header.id.clone()).collect();
    let mut below: BTreeMap<Option<SessionId>, Vec<&SessionStat>> = BTreeMap::new();
    for stat in &stats {
        // A session whose parent is not here stands at the top.
        let parent = stat.header.parent_session.clone().filter(|parent| ids.contains(parent));
        below.entry(parent).or_default().push(stat);
    }
    for children in below.values_mut() {
        children.sort_by_key(|stat| (stat.header.created_at, stat.header.id.clone()));
    }
    let mut out = Out::new();
    // Taken out as they are shown, so that records which form a cycle end; none is lost, since
    // what is left is shown from the top after.
    while let Some(mut stack) = next_tree(&mut below) {
        while let Some((stat, depth)) = stack.pop() {
            match common.format {
                Format::Text => {
                    out.line(&format!("{}{}", "  ".repeat(depth), stat_line(stat)))?;
                }
                Format::Jsonl => {
                    let mut value = stat_json(stat);
                    value["depth"] = depth.into();
                    out.line(&value.to_string())?;
                }
            }
            let children = below.remove(&Some(stat.header.id.clone())).unwrap_or_default();
            stack.extend(children.into_iter().rev().map(|child| (child, depth + 1)));
        }
    }
    out.flush()?;
    Ok(Exit::Completed)
}

type Below<'a> = BTreeMap<Option<SessionId>, Vec<&'a SessionStat>>;

fn next_tree<'a>(below: &mut Below<'a>) -> Option<Vec<(&'a SessionStat, usize)>> {
    let (_, top) = below.pop_first()?;
    Some(top.into_iter().rev().map(|stat| (stat, 0)).collect())
}

/// What is wrong with a session.
#[derive(Debug)]
struct Fault {
    session: String,
    code: &'static str,
    text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}: {} ({})", self.session, self.text, self.code)
    }
}

fn verify(common: &Common) -> Result<Exit, CliError> {
    let reader = common.open()?;
    let report = playhouse_stores::verify(common.dir()?)?;
    let mut faults: Vec<Fault> = report
        .unreadable
        .iter()
        .map(|(id, error)| Fault {
            session: id.clone(),
            code: error.code(),
            text: error.to_string(),
        })
        .collect();
    let stats = all(&reader)?;
    let bar = progress(stats.len() as u64);
    for stat in &stats {
        let id = stat.header.id.to_string();
        let known = faults.iter().any(|fault| fault.session == id);
        if !known && let Err((code, text)) = check(&reader, stat) {
            faults.push(Fault { session: id, code, text });
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let whole = report.damages.is_empty() && faults.is_empty();
    let mut out = Out::new();
    match common.format {
        Format::Text => {
            out.line(&format!(
                "{}: {} segments, {} batches, {} sessions, {} events",
                report.dir.display(),
                report.segments,
                report.batches,
                report.sessions,
                report.events
            ))?;
            if let Some((segment, offset)) = report.torn_tail {
                out.line(&format!(
                    "torn: segment {segment} offset {offset}: a crash left it, and the next writer \
                     cuts it off"
                ))?;
            }
            for damage in &report.damages {
                out.line(&format!("damaged: {}", tame(&damage.to_string())))?;
            }
            for fault in &faults {
                out.line(&format!("damaged: {}", tame(&fault.to_string())))?;
            }
            out.line(if whole { "no damage found" } else { "the store is damaged" })?;
        }
        Format::Jsonl => {
            for damage in &report.damages {
                out.line(&json!({"kind": "damage", "text": damage.to_string()}).to_string())?;
            }
            for Fault { session, code, text } in &faults {
                let line = json!({"kind": "fault", "session": session, "code": code, "text": text});
                out.line(&line.to_string())?;
            }
            let line = json!({
                "kind": "report",
                "whole": whole,
                "segments": report.segments,
                "batches": report.batches,
                "sessions": report.sessions,
                "events": report.events,
                "torn": report.torn_tail.map(|(segment, offset)| json!([segment, offset])),
            });
            out.line(&line.to_string())?;
        }
    }
    out.flush()?;
    Ok(if whole { Exit::Completed } else { Exit::Failed })
}

/// Folds a session as a resume would, and holds its log against the invariants.
fn check(reader: &JournalReader, stat: &SessionStat) -> Result<(), (&'static str, String)> {
    let store = |error: StoreError| (error.code(), error.to_string());
    let stored = reader.read(&stat.header.id).map_err(store)?;
    let log = stored.log().map_err(store)?;
    let known = known_kinds(&log);
    SessionCore::load(stored.header, log.clone(), &known)
        .map_err(|error| (error.code(), error.to_string()))?;
    invariants::check(&log).map_err(|violation| ("INVARIANT", violation.to_string()))
}

/// A plugin's event kinds are not damage: whether they can be loaded depends on the build that
/// opens the session, not on the store.
fn known_kinds(log: &Log) -> KnownKinds {
    let mut known = KnownKinds::new();
    for event in log.iter() {
        if let playhouse_messages::event::EventBody::Custom { kind, .. } = &event.body {
            known.insert(kind.clone());
        }
    }
    known
}

/// A bar on standard error, if that is a terminal.
fn progress(sessions: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(sessions), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} sessions, {eta} left");
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn title(header: &SessionHeader) -> String {
    let mut parts = vec![format!("session {}", header.id), utc(header.created_at)];
    if let Some(parent) = &header.parent_session {
        parts.push(format!("parent {parent}"));
    }
    if let Some(cwd) = &header.cwd {
        parts.push(format!("in {cwd}"));
    }
    tame(&parts.join("  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_767_225_599_999), "2025-12-31T23:59:59Z");
    }
}
