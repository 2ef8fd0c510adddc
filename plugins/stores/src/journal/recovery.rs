//! Putting a journal together from its segments: what is whole, what is torn, what is damaged.

use std::collections::HashMap;
use std::path::Path;

use super::disk::Disk;
use super::entry::Entry;
use super::error::{Damage, DamageKind, JournalError};
use super::format::{Checksum, StoreId};
use super::map::Map;
use super::scan::{Batch, SegmentScan};
use super::segments::{
    Contents, Part, SegmentProgress, drop_superseded, footers_fit, list_segments, read_parts,
};

/// How much of the journal to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The footers of sealed segments, and the others whole. Falls back to all if they do not fit.
    Footers,
    /// Every byte.
    Full,
}

/// Where the last batch stands, if its segment is not sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastBatch {
    /// The segment's number.
    pub segment: u64,
    /// Where its header starts, in bytes.
    pub offset: u64,
    /// Where it ends, in bytes.
    pub end: u64,
    /// Its number.
    pub number: u64,
}

/// A journal as it was found.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Where everything is.
    pub map: Map,
    /// Every damaged place, in journal order.
    pub damages: Vec<Damage>,
    /// The number that the next batch gets.
    pub next_batch: u64,
    /// The number that the next segment gets.
    pub next_segment: u64,
    /// How many segments were found.
    pub segments: usize,
    /// The last batch, if its segment is not sealed.
    pub last: Option<LastBatch>,
    /// A torn tail: the segment and where its good part ends.
    pub torn: Option<(u64, u64)>,
    /// Segments at the end that hold no batch at all.
    pub empty: Vec<u64>,
    /// Segments that do not count any more, because a compaction has replaced them.
    pub superseded: Vec<u64>,
}

/// Reads a journal. Takes no lock and changes nothing, so it may run beside a live writer: it then
/// sees a prefix of what is being written.
pub fn recover(
    disk: &dyn Disk,
    dir: &Path,
    store: &StoreId,
    depth: Depth,
) -> Result<Recovered, JournalError> {
    recover_with(disk, dir, store, depth, &mut |_, _| ())
}

/// As [`recover`], and tells how far it has got.
pub fn recover_with(
    disk: &dyn Disk,
    dir: &Path,
    store: &StoreId,
    depth: Depth,
    progress: &mut SegmentProgress<'_>,
) -> Result<Recovered, JournalError> {
    let mut numbers = list_segments(disk, dir)?;
    let checksum = Checksum::of_store(store);
    let mut parts = read_parts(disk, dir, &numbers, checksum, depth, progress)?;
    for _ in 0..3 {
        if parts.len() == numbers.len() {
            break;
        }
        // A writer or a compaction beside us has removed some: look again at what there is now.
        numbers = list_segments(disk, dir)?;
        parts = read_parts(disk, dir, &numbers, checksum, depth, progress)?;
    }
    let (mut superseded, mut first) = drop_superseded(&mut parts);
    if depth == Depth::Footers && !footers_fit(&parts, first) {
        parts = read_parts(disk, dir, &numbers, checksum, Depth::Full, progress)?;
        (superseded, first) = drop_superseded(&mut parts);
    }
    let mut found = assemble(parts, first);
    found.superseded = superseded;
    Ok(found)
}

/// What [`assemble`] carries from one segment to the next.
struct Assembly {
    out: Recovered,
    expected: u64,
    /// Length and checksum of each batch taken, to tell equal duplicates from differing ones.
    taken: HashMap<u64, (u64, u32)>,
    /// Where the first unreadable bytes since the last good batch are.
    bad: Option<(u64, u64, DamageKind)>,
    /// What the footer of a segment with missing batches says that they held.
    lost: Option<Vec<Entry>>,
}

/// Puts the parts together; `first` is the number of the journal's first batch. Pure.
pub(crate) fn assemble(mut parts: Vec<Part>, first: u64) -> Recovered {
    let mut empty = Vec::new();
    while parts.last().is_some_and(Part::is_empty) {
        empty.extend(parts.pop().map(|part| part.number));
    }
    let limits: Vec<Option<u64>> = (0..parts.len())
        .map(|at| parts[at + 1..].iter().find(|part| !part.is_empty()))
        .map(|next| next.and_then(Part::supersedes_from))
        .collect();
    let mut assembly = Assembly {
        out: Recovered::default(),
        expected: first,
        taken: HashMap::new(),
        bad: None,
        lost: None,
    };
    assembly.out.segments = parts.len() + empty.len();
    let last = parts.len().saturating_sub(1);
    for (at, (part, limit)) in parts.iter().zip(limits).enumerate() {
        assembly.take_part(part, limit, at == last, &parts);
    }
    let mut out = assembly.finish();
    // Empty segments are removed by the next writer, so their numbers are free again.
    out.next_segment = parts.last().map_or(1, |part| part.number + 1);
    out.empty = empty;
    out
}

impl Assembly {
    fn take_part(&mut self, part: &Part, limit: Option<u64>, is_last: bool, all: &[Part]) {
        if part.is_empty() {
            // Abandoned before anything in it was synced, or wiped. If batches are missing, the
            // next one shows it.
            self.bad.get_or_insert((part.number, 0, DamageKind::MissingBatches));
            return;
        }
        let named = part.header().is_some_and(|header| header.segment == part.number);
        if !named {
            let mut lost = Vec::new();
            if part.header().is_some() {
                // Everything in a segment that stands under another's name is in the wrong place.
                lost = part_entries(part);
            }
            self.report(DamageKind::SegmentHeader, (part.number, 0), 0..0, &lost, true);
        }
        match &part.contents {
            Contents::Sealed(_, footer) => {
                for entry in &footer.entries {
                    self.out.map.apply(part.number, entry);
                }
                self.expected = footer.last_batch + 1;
            }
            Contents::Scanned(scan) => self.take_scan(part.number, scan, limit, is_last, all),
        }
    }

    fn take_scan(
        &mut self,
        segment: u64,
        scan: &SegmentScan,
        limit: Option<u64>,
        is_last: bool,
        all: &[Part],
    ) {
        self.lost = None;
        let (lost, extra) = match &scan.footer {
            Some(footer) => {
                let (lost, extra) = compare(&footer.entries, &scan.batches);
                (Some(lost), extra)
            }
            None => (None, false),
        };
        if extra {
            self.report(DamageKind::Footer, (segment, scan.data_end), 0..0, &[], true);
        }
        // Only the last batch of an abandoned segment can have been written again elsewhere.
        let last_number = scan.batches.last().map(|batch| batch.number);
        let superseded = limit.filter(|&limit| scan.footer.is_none() && Some(limit) == last_number);
        let mut stretches = scan.bad.iter().peekable();
        for batch in &scan.batches {
            while let Some(bad) = stretches.next_if(|bad| bad.end <= batch.offset) {
                self.bad.get_or_insert((segment, bad.offset, DamageKind::BadBatch));
            }
            if Some(batch.number) != superseded {
                let inside = scan.footer.as_ref().is_some_and(|f| f.first_batch <= self.expected);
                if inside {
                    self.lost.clone_from(&lost);
                }
                self.take_batch(segment, batch, all);
            }
        }
        if let Some(footer) = &scan.footer
            && footer.last_batch >= self.expected
        {
            let place = stretches.next().map_or(scan.end, |bad| bad.offset);
            stretches = [].iter().peekable();
            let (segment, offset, kind) =
                self.bad.take().unwrap_or((segment, place, DamageKind::BadBatch));
            let missing = self.expected..footer.last_batch + 1;
            self.expected = missing.end;
            self.lost = None;
            let lost = lost.unwrap_or_default();
            self.report(kind, (segment, offset), missing, &lost, true);
        }
        if let Some(bad) = stretches.next() {
            self.bad.get_or_insert((segment, bad.offset, DamageKind::BadBatch));
        }
        if scan.is_torn() && scan.footer.is_none() {
            if is_last {
                self.out.torn = Some((segment, scan.end));
            } else {
                self.bad.get_or_insert((segment, scan.end, DamageKind::MissingBatches));
            }
        }
        self.out.last = None;
        if scan.footer.is_none()
            && let Some(batch) = scan.batches.last()
        {
            self.out.last = Some(LastBatch {
                segment,
                offset: batch.offset,
                end: batch.end,
                number: batch.number,
            });
        }
    }

    fn take_batch(&mut self, segment: u64, batch: &Batch, all: &[Part]) {
        let shape = (batch.end - batch.offset, batch.body_crc);
        if batch.number < self.expected {
            match self.taken.get(&batch.number) {
                Some(taken) if *taken == shape => {}
                Some(_) => {
                    let mut lost = batch.entries.clone();
                    lost.extend(entries_of_batch(all, batch.number));
                    let missing = batch.number..batch.number + 1;
                    let place = (segment, batch.offset);
                    self.report(DamageKind::DifferingBatch, place, missing, &lost, true);
                }
                None => {
                    let place = (segment, batch.offset);
                    self.report(DamageKind::OutOfOrder, place, 0..0, &batch.entries, true);
                }
            }
            return;
        }
        if !batch.understood {
            // Its number stays missing; the next batch's trail says what it held.
            self.bad.get_or_insert((segment, batch.offset, DamageKind::BadRecord));
            return;
        }
        let bad = self.bad.take();
        let missing = self.expected..batch.number;
        let here = (segment, batch.offset, DamageKind::MissingBatches);
        if !missing.is_empty() {
            let (segment, offset, kind) = bad.unwrap_or(here);
            let by_footer = self.lost.take();
            // A batch is never empty, so neither is a trail that tells of one.
            let by_trail = missing.end - missing.start == 1 && !batch.trail.is_empty();
            let known = by_footer.is_some() || by_trail;
            let mut lost = by_footer.unwrap_or_default();
            lost.extend(batch.trail.iter().cloned());
            self.report(kind, (segment, offset), missing, &lost, known);
        } else if let Some((segment, offset, kind @ DamageKind::BadBatch)) = bad {
            // Nothing is missing: the bytes are a surplus, and still not what was written.
            self.report(kind, (segment, offset), 0..0, &[], true);
        }
        for entry in &batch.entries {
            self.out.map.apply(segment, entry);
        }
        self.taken.insert(batch.number, shape);
        self.expected = batch.number + 1;
    }

    fn report(
        &mut self,
        kind: DamageKind,
        (segment, offset): (u64, u64),
        missing: std::ops::Range<u64>,
        lost: &[Entry],
        known: bool,
    ) {
        let mut sessions: Vec<u64> = lost.iter().map(|e| e.session).filter(|s| *s != 0).collect();
        sessions.sort_unstable();
        sessions.dedup();
        let mut keys: Vec<Vec<u8>> = lost
            .iter()
            .filter(|entry| entry.kind == super::Kind::Kv)
            .map(|entry| entry.key.clone())
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let damage = Damage { segment, offset, kind, missing, sessions, keys, known };
        self.out.map.apply_damage(&damage, lost);
        self.out.damages.push(damage);
    }

    fn finish(mut self) -> Recovered {
        if let Some((segment, offset, kind @ (DamageKind::BadRecord | DamageKind::BadBatch))) =
            self.bad.take()
        {
            // No good batch follows to tell how many are missing, or what they held.
            let missing = self.expected..self.expected + 1;
            self.expected += 1;
            self.report(kind, (segment, offset), missing, &[], false);
        }
        let mut out = self.out;
        out.next_batch = self.expected;
        for (&number, session) in &mut out.map.sessions {
            if session.place.is_none() && session.damage.is_none() {
                let place = session.blocks.first().map(|block| block.place);
                session.damage = Some(Damage {
                    segment: place.map_or(0, |place| place.segment),
                    offset: place.map_or(0, |place| place.offset),
                    kind: DamageKind::UnknownSession,
                    missing: 0..0,
                    sessions: vec![number],
                    keys: Vec::new(),
                    known: true,
                });
            }
            if let Some(damage) = &session.damage
                && matches!(damage.kind, DamageKind::EventGap | DamageKind::UnknownSession)
            {
                out.damages.push(damage.clone());
            }
        }
        out
    }
}

fn part_entries(part: &Part) -> Vec<Entry> {
    match &part.contents {
        Contents::Sealed(_, footer) => footer.entries.clone(),
        Contents::Scanned(scan) => {
            let batches = scan.batches.iter();
            batches.flat_map(|batch| batch.entries.iter().cloned()).collect()
        }
    }
}

fn entries_of_batch(parts: &[Part], number: u64) -> Vec<Entry> {
    let mut found = Vec::new();
    for part in parts {
        if let Contents::Scanned(scan) = &part.contents {
            let same = scan.batches.iter().filter(|batch| batch.number == number);
            found.extend(same.flat_map(|batch| batch.entries.iter().cloned()));
        }
    }
    found
}

/// What the footer lists and the batches do not hold, and whether the batches hold more than it
/// lists. Offsets are left out: bytes cut from the middle of a file move all behind them.
fn compare(listed: &[Entry], batches: &[Batch]) -> (Vec<Entry>, bool) {
    let key = |entry: &Entry| {
        let Entry { kind, session, first_seq, count, length, key, .. } = entry.clone();
        (kind, session, first_seq, count, length, key)
    };
    let mut found: HashMap<_, i64> = HashMap::new();
    let mut seen = std::collections::HashSet::new();
    for batch in batches {
        // An equal duplicate of a batch is legal and listed once.
        if seen.insert((batch.number, batch.body_crc)) {
            for entry in &batch.entries {
                *found.entry(key(entry)).or_default() += 1;
            }
        }
    }
    let mut lost = Vec::new();
    for entry in listed {
        match found.get_mut(&key(entry)) {
            Some(count) if *count > 0 => *count -= 1,
            _ => lost.push(entry.clone()),
        }
    }
    (lost, found.values().any(|count| *count > 0))
}
