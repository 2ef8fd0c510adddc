//! Playhouse's own exports, format version 1: taken as they are, or refused.

use playhouse_messages::header::FORMAT_VERSION;
use playhouse_plugin_api::{attachment::digest, store::StoredTail};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value};

use crate::{
    error::{ImportError, ImportFault},
    import::{Imported, ImportedAttachment, Placed, checked, header_of},
    lines::Line,
    record::{self, Record},
    report::{Report, SourceFormat},
};

/// What tells records and events apart: only events have a seq.
#[derive(Deserialize)]
struct Probe<'a> {
    #[serde(rename = "type", borrow)]
    kind: std::borrow::Cow<'a, str>,
    #[serde(default)]
    seq: Option<IgnoredAny>,
}

pub(crate) fn import(
    first: &Line,
    mut header: Map<String, Value>,
    rest: &[Line],
) -> Result<Imported, ImportError> {
    let announced = record::announced(&mut header)
        .map_err(|text| ImportError::new(first.number, ImportFault::Header(text)))?;
    let header = header_of(first.number, header)?;
    let is_record = |line: &Line| {
        // An event's own text is not read for this: its type comes first.
        line.text.starts_with("{\"type\":\"session/")
            && serde_json::from_str::<Probe>(&line.text)
                .is_ok_and(|it| it.seq.is_none() && Record::is_kind(&it.kind))
    };
    let count = rest.iter().position(is_record).unwrap_or(rest.len());
    let (events, records) = rest.split_at(count);
    let placed = (0..).zip(events).map(|(seq, line)| Placed {
        line: line.number,
        old: Some(seq),
        text: line.text.clone().into(),
    });
    let report = Report::new(SourceFormat::Playhouse(u64::from(FORMAT_VERSION)));
    let placed = placed.collect();
    let mut imported = checked(first.number, header, announced.inherited, placed, true, report)?;
    for line in records {
        take(&mut imported, line)?;
    }
    let parts = imported.tail.as_ref().map_or(0, |tail| tail.parts.len());
    for (what, announced, found) in [
        ("events", announced.events, imported.events.len()),
        ("tail parts", announced.tail_parts, parts),
        ("attachments", announced.attachments, imported.attachments.len()),
    ] {
        let found = found as u64;
        if let Some(announced) = announced.filter(|announced| *announced != found) {
            let last = rest.last().unwrap_or(first).number;
            return Err(ImportError::new(last, ImportFault::Incomplete { what, announced, found }));
        }
    }
    Ok(imported)
}

fn take(imported: &mut Imported, line: &Line) -> Result<(), ImportError> {
    let refused = |text: String| ImportError::new(line.number, ImportFault::Record(text));
    let record =
        serde_json::from_str(&line.text).map_err(|fault| refused(format!("a record: {fault}")))?;
    match record {
        Record::Tail { attempt, parts } if imported.tail.is_none() && !parts.is_empty() => {
            let parts = parts.into_iter().map(|part| part.into_bytes());
            let parts = parts.collect::<Result<_, _>>();
            let parts = parts.map_err(|fault| refused(format!("a tail: {fault}")))?;
            imported.tail = Some(StoredTail { attempt, parts });
        }
        Record::Tail { .. } => return Err(refused("an empty tail, or a second one".to_owned())),
        Record::Attachment { attachment_id: id, base64 } => {
            let bytes =
                record::decode(&base64).map_err(|fault| refused(format!("{id}: {fault}")))?;
            if digest(&bytes) != id {
                return Err(refused(format!("the bytes are not those of {id}")));
            }
            imported.attachments.push(ImportedAttachment { id, bytes });
        }
    }
    Ok(())
}
