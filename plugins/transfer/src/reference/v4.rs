//! Format versions 4 and 5: today's shapes but for a few spellings, with the cut of a fork marked in the
//! log and `isSeeded` in the header.

use serde_json::{Map, Value};

use super::{drafts::Drafts, envelope, finished, header, last_cut, refused, shapes};
use crate::{
    error::{ImportError, ImportFault},
    import::Imported,
    lines::Line,
    report::{Note, Report, SourceFormat},
};

pub(crate) fn import(
    first: &Line,
    fields: Map<String, Value>,
    version: u64,
    rest: &[Line],
) -> Result<Imported, ImportError> {
    let mut report = Report::new(SourceFormat::Reference(version));
    let events = envelope::read(rest, false)?;
    let is_seeded = match fields.get("isSeeded") {
        Some(Value::Bool(is_seeded)) => *is_seeded,
        None => false,
        Some(_) => return Err(refused(first, "`isSeeded` is neither true nor false")),
    };
    let cut = last_cut(&events).filter(|_| is_seeded);
    if is_seeded && cut.is_none() {
        return Err(refused(first, "it is a fork, and no `session/end-seed` marks its cut"));
    }
    if fields.contains_key("seedLength") {
        report.note(Note::Dropped("header key `seedLength`, which the marked cut says".to_owned()));
    }
    let mut out = Drafts::default();
    for (at, mut draft) in events.into_iter().enumerate() {
        if cut == Some(at) {
            out.mark_cut();
        }
        if draft.kind() == "assistant/chunk" {
            let text = format!("`assistant/chunk` does not belong into format version {version}");
            let seq = draft.old.unwrap_or_default();
            return Err(ImportError::at(draft.line, seq, ImportFault::Unsupported(text)));
        }
        shapes::modernize(&mut draft, &mut report)?;
        out.push(draft);
    }
    let fields = header(fields, is_seeded, &mut report);
    finished(first, fields, out, None, report)
}
