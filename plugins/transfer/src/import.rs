//! From the lines of a session to what a store keeps of it: a pure mapping.

use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::{
    attachment::AttachmentId,
    event::{Event, EventBody, Seq},
    header::{FORMAT_VERSION, SessionHeader},
    invariants,
    log::Log,
    session::SessionCore,
    session_state::KnownKinds,
};
use playhouse_plugin_api::store::StoredTail;
use serde_json::{Map, Value};

use crate::{
    error::{ImportError, ImportFault},
    lines::Line,
    native, record, reference,
    report::Report,
};

/// A session that loads, as a store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The header, of the version that this build writes.
    pub header: Arc<SessionHeader>,
    /// How many leading events a fork inherited.
    pub inherited_event_count: u64,
    /// The JSON texts of all events.
    pub events: Vec<Bytes>,
    /// What was streamed of an attempt that has no settlement.
    pub tail: Option<StoredTail>,
    /// The images that came along.
    pub attachments: Vec<ImportedAttachment>,
    /// What was met and done.
    pub report: Report,
}

/// An image that came along. Its bytes are those that its id names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedAttachment {
    /// Its id.
    pub id: AttachmentId,
    /// Its bytes.
    pub bytes: Bytes,
}

/// Maps the lines of one session, whichever known format they are in.
///
/// Every event is checked as a resume would check it, so what is returned loads. What merely breaks an
/// invariant of Playhouse's own logs is told in [`Report::violation`].
///
/// # Errors
///
/// The first line that cannot be taken, and why. `FORMAT_UNSUPPORTED` for a version that is newer or
/// unknown.
pub fn import(lines: &[Line]) -> Result<Imported, ImportError> {
    let Some((first, rest)) = lines.split_first() else {
        return Err(ImportError::new(1, ImportFault::NoHeader));
    };
    let mut header = object(first)?;
    let refused = |text: &str| ImportError::new(first.number, ImportFault::Header(text.to_owned()));
    if header.shift_remove("type").as_ref().and_then(Value::as_str) != Some(record::SESSION) {
        return Err(ImportError::new(first.number, ImportFault::NoHeader));
    }
    // Before any other field: a newer header may look quite different.
    let version = header.get("version").ok_or_else(|| refused("it has no `version`"))?;
    let version = version.as_u64().ok_or_else(|| refused("`version` is no version number"))?;
    match version {
        v if v == u64::from(FORMAT_VERSION) => native::import(first, header, rest),
        0 => reference::v0::import(first, header, rest),
        4 | 5 => reference::v4::import(first, header, version, rest),
        other => {
            let text = format!(
                "format version {other} cannot be read: this build knows its own, {FORMAT_VERSION}, and \
                 those of the reference harness, 0, 4 and 5; a newer Playhouse may know more"
            );
            Err(ImportError::new(first.number, ImportFault::Unsupported(text)))
        }
    }
}

/// The line as a JSON object.
pub(crate) fn object(line: &Line) -> Result<Map<String, Value>, ImportError> {
    serde_json::from_str(&line.text)
        .map_err(|fault| ImportError::new(line.number, ImportFault::Json(fault.to_string())))
}

/// An event's text, where it came from, and its number there.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub line: u64,
    /// `None` for an event that the file does not have.
    pub old: Option<Seq>,
    pub text: Bytes,
}

/// The header of a line's remaining fields.
pub(crate) fn header_of(
    line: u64,
    fields: Map<String, Value>,
) -> Result<SessionHeader, ImportError> {
    let refused = |text: String| ImportError::new(line, ImportFault::Header(text));
    let header: SessionHeader = serde_json::from_value(Value::Object(fields))
        .map_err(|fault| refused(fault.to_string()))?;
    header.check().map_err(|fault| refused(fault.to_string()))?;
    Ok(header)
}

/// Loads the events as a resume would. `trusted` takes events of unknown kinds that are not marked as
/// given: whether they can be loaded depends on the build that resumes the session.
pub(crate) fn checked(
    line: u64,
    header: SessionHeader,
    inherited: u64,
    events: Vec<Placed>,
    trusted: bool,
    mut report: Report,
) -> Result<Imported, ImportError> {
    let refused = |text: &str| ImportError::new(line, ImportFault::Header(text.to_owned()));
    if inherited > 0 && !header.is_seeded {
        return Err(refused("it inherits events, and is no fork"));
    }
    if inherited > events.len() as u64 {
        return Err(refused("it inherits more events than there are"));
    }
    let mut log = Log::new();
    let mut known = KnownKinds::new();
    for (due, event) in (0..).zip(&events) {
        let seq = event.old.unwrap_or(due);
        let fault = |text: String| ImportError::at(event.line, seq, ImportFault::Event(text));
        let text = std::str::from_utf8(&event.text).map_err(|it| fault(it.to_string()))?;
        let parsed = Event::from_json(text).map_err(|it| fault(it.to_string()))?;
        if parsed.seq != due {
            let sequence = ImportFault::Sequence { due, found: parsed.seq };
            return Err(ImportError::at(event.line, parsed.seq, sequence));
        }
        if let EventBody::Custom { kind, .. } = &parsed.body
            && trusted
        {
            known.insert(kind.clone());
        }
        log.push(Arc::new(parsed));
    }
    let header = Arc::new(header);
    SessionCore::load(header.clone(), log.clone(), &known).map_err(|fault| {
        let at = usize::try_from(fault.seq()).ok().and_then(|at| events.get(at));
        let (line, seq) = at.map_or((line, None), |event| (event.line, event.old));
        ImportError { line, seq: seq.or(Some(fault.seq())), fault: fault.into() }
    })?;
    report.violation = invariants::check(&log).err();
    Ok(Imported {
        header,
        inherited_event_count: inherited,
        events: events.into_iter().map(|event| event.text).collect(),
        tail: None,
        attachments: Vec::new(),
        report,
    })
}
