//! Logs of the reference harness. What a version spelled otherwise is put into today's shapes; events of
//! plugins that Playhouse does not know are kept and marked.
//!
//! A module a generation ([`v0`], [`v4`]); what they share: the envelope, the messages, the numbers.

mod chunks;
mod drafts;
mod envelope;
mod prompt;
mod shapes;
pub(crate) mod v0;
pub(crate) mod v4;

use playhouse_messages::{event::Seq, header::FORMAT_VERSION};
use playhouse_plugin_api::store::StoredTail;
use serde_json::{Map, Value};

use crate::{
    error::{ImportError, ImportFault},
    import::{Imported, checked, header_of},
    lines::Line,
    report::{Note, Report},
};
use drafts::{Draft, Drafts};

/// What every header may say. Anything else was retired, or is unknown.
const HEADER_KEYS: [&str; 8] = [
    "id",
    "createdAt",
    "cwd",
    "parentSession",
    "isSeeded",
    "origin",
    "delegationDepth",
    "agentPreset",
];

/// The header's fields in today's shape.
fn header(mut old: Map<String, Value>, is_seeded: bool, report: &mut Report) -> Map<String, Value> {
    old.shift_remove("version");
    old.shift_remove("seedLength");
    let mut header = Map::from_iter([("version".to_owned(), FORMAT_VERSION.into())]);
    old.insert("isSeeded".to_owned(), is_seeded.into());
    for (key, value) in old {
        let foreign = key == "cwd"
            && value.as_str().is_some_and(|cwd| !std::path::Path::new(cwd).is_absolute());
        if foreign || !HEADER_KEYS.contains(&key.as_str()) {
            report.note(Note::Dropped(format!("header key `{key}`")));
        } else {
            header.insert(key, value);
        }
    }
    header
}

fn refused(line: &Line, text: impl Into<String>) -> ImportError {
    ImportError::new(line.number, ImportFault::Header(text.into()))
}

/// Numbers the events anew where that is due, and loads them.
fn finished(
    first: &Line,
    fields: Map<String, Value>,
    drafts: Drafts,
    tail: Option<StoredTail>,
    mut report: Report,
) -> Result<Imported, ImportError> {
    let header = header_of(first.number, fields)?;
    let inherited = drafts.cut().unwrap_or_default();
    let placed = drafts.placed(&mut report);
    let mut imported = checked(first.number, header, inherited, placed, false, report)?;
    imported.tail = tail;
    Ok(imported)
}

/// The place of the event that ends what a fork inherited: the last marker that says so, since an
/// inherited history may hold its own ancestors' markers.
fn last_cut(events: &[Draft]) -> Option<usize> {
    events.iter().rposition(|draft| {
        draft.kind() == "session/end-seed" && draft.data("inherited") == Some(&Value::Bool(true))
    })
}

/// A seq that a header may name.
fn seq(value: &Value) -> Option<Seq> {
    value.as_u64()
}
