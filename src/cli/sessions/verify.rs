//! `sessions verify`.

use std::fmt;

use futures::TryStreamExt as _;
use playhouse_messages::{invariants, log::Log, session::SessionCore, session_state::KnownKinds};
use playhouse_plugin_api::store::{SessionStat, StoreError, StoreReader, all_sessions};
use playhouse_stores::counted;
use serde_json::json;

use super::{Common, progress};
use crate::cli::{
    exit::{CliError, Exit},
    output::{Format, Out, tame},
};

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

pub(super) async fn run(common: &Common) -> Result<Exit, CliError> {
    let reader = common.open().await?;
    let stats: Vec<_> = all_sessions(&*reader).try_collect().await?;
    // Every session is read twice: once for its bytes, once for what they say.
    let bar = progress(2 * stats.len() as u64);
    let (dir, reading) = (common.dir()?, bar.clone());
    // Nothing else runs in this process.
    let report = tokio::task::block_in_place(|| {
        playhouse_stores::verify(dir, |progress| reading.set_position(progress.done))
    })?;
    let mut faults: Vec<Fault> = report
        .unreadable
        .iter()
        .map(|(id, error)| Fault {
            session: id.to_string(),
            code: error.code(),
            text: error.to_string(),
        })
        .collect();
    for stat in &stats {
        let id = stat.header.id.to_string();
        let known = faults.iter().any(|fault| fault.session == id);
        if !known && let Err((code, text)) = check(&*reader, stat).await {
            faults.push(Fault { session: id, code, text });
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let whole = report.damages.is_empty() && faults.is_empty();
    let mut out = Out::new();
    match common.format {
        Format::Text => {
            let mut parts = report.parts.clone();
            parts.extend([("sessions", report.sessions), ("events", report.events)]);
            let parts: Vec<_> = parts.iter().map(|(name, n)| counted(*n, name)).collect();
            out.line(&format!("{}: {}", report.dir.display(), parts.join(", ")))?;
            if let Some(place) = &report.torn {
                out.line(&format!(
                    "torn: {place}: a crash left it, and the next writer cuts it off"
                ))?;
            }
            for damage in &report.damages {
                out.line(&format!("damaged: {}", tame(damage)))?;
            }
            for fault in &faults {
                out.line(&format!("damaged: {}", tame(&fault.to_string())))?;
            }
            out.line(if whole { "no damage found" } else { "the store is damaged" })?;
        }
        Format::Jsonl => {
            for damage in &report.damages {
                out.line(&json!({"kind": "damage", "text": damage}).to_string())?;
            }
            for Fault { session, code, text } in &faults {
                let line = json!({"kind": "fault", "session": session, "code": code, "text": text});
                out.line(&line.to_string())?;
            }
            let mut line = json!({
                "kind": "report",
                "store": report.kind.name(),
                "whole": whole,
                "sessions": report.sessions,
                "events": report.events,
                "torn": report.torn,
            });
            for (name, count) in &report.parts {
                line[*name] = (*count).into();
            }
            out.line(&line.to_string())?;
        }
    }
    out.flush()?;
    Ok(if whole { Exit::Completed } else { Exit::Failed })
}

/// Folds a session as a resume would, and holds its log against the invariants.
async fn check(reader: &dyn StoreReader, stat: &SessionStat) -> Result<(), (&'static str, String)> {
    let store = |error: StoreError| (error.code(), error.to_string());
    let stored = reader.read(&stat.header.id).await.map_err(store)?;
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
