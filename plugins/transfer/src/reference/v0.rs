//! Format version 0: a log event a chunk, prompts in request headers, tool results as user messages,
//! `seedLength` in the header.

use serde_json::{Map, Value, json};

use super::{
    chunks::Attempts, drafts::Drafts, envelope, finished, header, prompt::Prompt, refused, seq,
    shapes,
};
use crate::{
    error::ImportError,
    import::Imported,
    lines::Line,
    report::{Note, Report, SourceFormat},
};

pub(crate) fn import(
    first: &Line,
    fields: Map<String, Value>,
    rest: &[Line],
) -> Result<Imported, ImportError> {
    let mut report = Report::new(SourceFormat::Reference(0));
    let mut events = envelope::read(rest, true)?;
    let cut = match fields.get("seedLength") {
        None => None,
        Some(length) => {
            let length = seq(length).and_then(|length| usize::try_from(length).ok());
            let length = length.filter(|length| *length <= events.len());
            let length = length
                .ok_or_else(|| refused(first, "`seedLength` is no count of the log's events"))?;
            report.rewrote("`seedLength` as `isSeeded` and a marked cut");
            (length > 0).then_some(length)
        }
    };
    if let Some(cut) = cut {
        match events.get_mut(cut) {
            Some(marker) if marker.kind() == "session/end-seed" => {
                marker.event.insert("data".to_owned(), json!({"inherited": true}));
            }
            _ => {
                let marker = events[cut - 1].beside("session/end-seed", json!({"inherited": true}));
                events.insert(cut, marker);
                report.note(Note::Added("`session/end-seed` at the cut of the fork".to_owned()));
            }
        }
    }
    let mut out = Drafts::default();
    let mut attempts = Attempts::default();
    let mut prompt = Prompt::default();
    for (at, mut draft) in events.into_iter().enumerate() {
        if cut == Some(at) {
            out.mark_cut();
        }
        if draft.kind() != "assistant/chunk" {
            shapes::modernize(&mut draft, &mut report)?;
        }
        if draft.kind() == "request/header" {
            prompt.take(&mut draft, &mut out, &mut report);
        }
        attempts.take(draft, &mut out, &mut report)?;
    }
    let tail = attempts.finish(&mut out, &mut report)?;
    let fields = header(fields, cut.is_some(), &mut report);
    finished(first, fields, out, tail, report)
}
