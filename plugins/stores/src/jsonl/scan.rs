//! Reading a session's log: its valid prefix, or where it is damaged. Pure.
//!
//! Each line says how many of the session's events were durable when it was written. A log whose good
//! lines reach that far, and no further, was torn by a crash: nothing was promised of the rest. One
//! that does not is damaged. So a cut or a bad line inside of what was durable is never taken for a
//! torn end, and what a power cut makes of the unsynced end is never taken for damage.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::{event::Seq, header::SessionHeader, id::SessionId};
use playhouse_plugin_api::store::{Revision, SessionStat, StoreError, StoredTail};
use serde::{Deserialize, Serialize};

use super::line::{self, Kind, Stand, TailLine};
use crate::journal_store::core::parse_header;

/// A log, read.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) header: Arc<SessionHeader>,
    pub(super) inherited: u64,
    /// The checksum of the header's line.
    pub(super) salt: u32,
    pub(super) events: Vec<Bytes>,
    /// The checksums of all events, folded.
    pub(super) print: u32,
    /// How many events are known to be durable, and the bytes up to there.
    pub(super) durable: u64,
    pub(super) durable_len: usize,
    /// The bytes of all good lines.
    pub(super) len: usize,
    /// What is behind them, if anything is.
    pub(super) torn: Option<String>,
}

/// The header's line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HeaderLine<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    header: &'a SessionHeader,
    inherited_event_count: u64,
}

/// Writes the header's line. Returns its checksum.
pub(super) fn encode_header(
    out: &mut Vec<u8>,
    header: &SessionHeader,
    inherited: u64,
) -> Result<u32, serde_json::Error> {
    let line = HeaderLine { r#type: "session", header, inherited_event_count: inherited };
    line::encode_object(out, &line, Kind::Header, Stand::default())
}

/// Another event's checksum into the print of a log.
pub(super) fn fold_print(print: u32, crc: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(print);
    hasher.update(&crc.to_le_bytes());
    hasher.finalize()
}

/// What the catalog says of a log. A revision is a digest of what the log holds.
pub(super) fn stat(
    header: &Arc<SessionHeader>,
    salt: u32,
    print: u32,
    event_count: u64,
    size_bytes: u64,
) -> SessionStat {
    let life = u64::from(salt) << 32 | u64::from(print);
    let (header, revision) = (Arc::clone(header), Revision::new(life, event_count));
    SessionStat { header, event_count, size_bytes, revision }
}

impl Scan {
    pub(super) fn size_bytes(&self) -> u64 {
        self.events.iter().map(|event| event.len() as u64).sum()
    }

    pub(super) fn stat(&self) -> SessionStat {
        let count = self.events.len() as u64;
        stat(&self.header, self.salt, self.print, count, self.size_bytes())
    }
}

/// The header that a log's bytes begin with, whoever's it is.
pub(super) fn id_of_header(bytes: &[u8]) -> Option<SessionId> {
    #[derive(Deserialize)]
    struct Named {
        id: SessionId,
    }
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    let (json, _) = line::decode_object(line, Kind::Header, Stand::default())?;
    serde_json::from_slice::<Named>(&json).ok().map(|named| named.id)
}

struct Head {
    header: SessionHeader,
    inherited: u64,
    salt: u32,
}

fn read_head(id: &SessionId, line: &[u8]) -> Result<Head, Result<StoreError, String>> {
    let bad = |cause: &str| Err(cause.to_owned());
    let whole = line.strip_suffix(b"\n").ok_or_else(|| bad("the header's line has no end"))?;
    let (json, salt) = line::decode_object(whole, Kind::Header, Stand::default())
        .ok_or_else(|| bad("the header's checksum does not hold"))?;
    let mut members: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&json).map_err(|error| Err(format!("its header: {error}")))?;
    if members.remove("type").is_none_or(|kind| kind != "session") {
        return Err(bad("its first line is no header"));
    }
    let inherited = members.remove("inheritedEventCount").and_then(|count| count.as_u64());
    let json = serde_json::Value::Object(members).to_string();
    let header = parse_header(id, json.as_bytes())?;
    if header.id != *id {
        return Err(Err(format!("it is the log of session `{}`, not of `{id}`", header.id)));
    }
    let inherited = inherited.ok_or_else(|| bad("its header has no `inheritedEventCount`"))?;
    Ok(Head { header, inherited, salt })
}

/// Reads the log of a session; `file` names it in errors.
///
/// # Errors
///
/// [`StoreError::Corrupt`] that names the place; [`StoreError::FormatUnsupported`] for a header of
/// another version.
pub(super) fn scan(id: &SessionId, file: &str, bytes: &[u8]) -> Result<Scan, StoreError> {
    match beginning(id, file, bytes)? {
        (scan, None) => Ok(scan),
        (_, Some(damage)) => Err(damage),
    }
}

/// As [`scan`], also of a log that is damaged behind its header: what it begins with, and the damage.
///
/// # Errors
///
/// As [`scan`], of the header alone.
pub(super) fn beginning(
    id: &SessionId,
    file: &str,
    bytes: &[u8],
) -> Result<(Scan, Option<StoreError>), StoreError> {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let Head { header, inherited, salt } = read_head(id, first).map_err(|refused| {
        let place = format!("{file} line 1 byte 0");
        refused.unwrap_or_else(|cause| StoreError::Corrupt { id: id.clone(), place, cause })
    })?;
    let mut events = Vec::new();
    let mut ends = vec![first.len()];
    let mut print = 0;
    let mut durable = 0;
    let mut bad = None;
    for (seq, line) in (0..).zip(lines) {
        let whole = line.strip_suffix(b"\n");
        let in_place = whole.filter(|_| bad.is_none());
        match in_place.and_then(|line| line::decode_event(line, Stand { salt, seq })) {
            Some(read) => {
                durable = durable.max(read.durable);
                events.push(read.event);
                print = fold_print(print, read.crc);
                ends.push(ends[ends.len() - 1] + line.len());
            }
            None => {
                // What it says of durability counts, wherever it belongs.
                let elsewhere = whole.and_then(|line| decode_anywhere(line, salt, seq));
                durable = durable.max(elsewhere.map_or(0, |read| read.durable));
                bad.get_or_insert_with(|| cause_of(line, salt, seq));
            }
        }
    }
    let count = events.len() as u64;
    let len = ends[ends.len() - 1];
    let place = format!("{file} line {} byte {len} (event {count})", count + 2);
    let damage = (count < durable).then(|| {
        let cause = bad.clone().unwrap_or_else(|| "the file ends here".to_owned());
        let cause = format!("{cause}, and {durable} events were durable");
        StoreError::Corrupt { id: id.clone(), place: place.clone(), cause }
    });
    let durable_len = usize::try_from(durable).ok().and_then(|at| ends.get(at)).copied();
    let scan = Scan {
        header: Arc::new(header),
        inherited,
        salt,
        events,
        print,
        durable,
        // `durable <= count` unless it is damaged, and there is an end for each event.
        durable_len: durable_len.unwrap_or(len),
        len,
        torn: bad.map(|cause| format!("{place}: {cause}")),
    };
    Ok((scan, damage))
}

/// Those events of `range` that a log has, by its end alone; `None` if it takes a [`scan`] to say.
///
/// Lines before the range are not looked at where a line that is read says that they were durable:
/// nothing there can be torn, and so end the log earlier.
pub(super) fn suffix(id: &SessionId, bytes: &[u8], range: Range<Seq>) -> Option<Vec<Bytes>> {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let salt = read_head(id, lines.next()?).ok()?.salt;
    let lines: Vec<&[u8]> = lines.collect();
    let read = |at: usize| {
        let stand = Stand { salt, seq: at as u64 };
        lines[at].strip_suffix(b"\n").and_then(|line| line::decode_event(line, stand))
    };
    // At least the last line, which knows best what was durable.
    let start =
        usize::try_from(range.start).unwrap_or(usize::MAX).min(lines.len().saturating_sub(1));
    let mut events = Vec::new();
    let mut durable = 0;
    for at in start..lines.len() {
        let line = read(at)?;
        durable = durable.max(line.durable);
        if range.contains(&(at as u64)) {
            events.push(line.event);
        }
    }
    let durable = usize::try_from(durable).ok().filter(|durable| *durable <= lines.len())?;
    (durable..start).all(|at| read(at).is_some()).then_some(events)
}

/// Which event a line says that it is.
fn stated_seq(line: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Numbered {
        seq: u64,
    }
    serde_json::from_slice::<Numbered>(line).ok().map(|numbered| numbered.seq)
}

/// Reads a line behind a bad one, where lines may be missing or doubled.
fn decode_anywhere(line: &[u8], salt: u32, seq: u64) -> Option<line::EventLine> {
    let at = |seq| line::decode_event(line, Stand { salt, seq });
    at(seq).or_else(|| stated_seq(line).and_then(at))
}

fn cause_of(line: &[u8], salt: u32, seq: u64) -> String {
    let Some(whole) = line.strip_suffix(b"\n") else {
        return "the line has no end".to_owned();
    };
    match stated_seq(whole) {
        Some(other) if line::decode_event(whole, Stand { salt, seq: other }).is_some() => {
            format!("the line is event {other}, where event {seq} should be")
        }
        _ => "the line's checksum does not hold".to_owned(),
    }
}

/// A tail's file, read.
#[derive(Debug, Default)]
pub(super) struct TailScan {
    pub(super) tail: Option<StoredTail>,
    /// The bytes of all good lines.
    pub(super) len: usize,
    /// Where they end, if something is behind them.
    pub(super) torn: Option<String>,
}

/// Reads a session's tail: the good lines that its file begins with, as far as the log has the events
/// that they are behind. It is no log, so what is behind a bad line is not asked for.
pub(super) fn scan_tail(file: &str, bytes: &[u8], salt: u32, events: u64) -> TailScan {
    let mut scan = TailScan::default();
    for (seq, line) in (0..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        let read = line
            .strip_suffix(b"\n")
            .and_then(|line| line::decode_object(line, Kind::Tail, Stand { salt, seq }))
            .and_then(|(json, _)| serde_json::from_slice::<TailLine>(&json).ok())
            .and_then(|line| Some((line.attempt, line.after, line.part()?)));
        let fits = |attempt, after| {
            after <= events && scan.tail.as_ref().is_none_or(|tail| tail.attempt == attempt)
        };
        let Some((attempt, _, part)) = read.filter(|(attempt, after, _)| fits(*attempt, *after))
        else {
            scan.torn = Some(format!("{file} line {} byte {}", seq + 1, scan.len));
            break;
        };
        scan.len += line.len();
        let tail = scan.tail.get_or_insert(StoredTail { attempt, parts: Vec::new() });
        tail.parts.push(part);
    }
    scan
}
