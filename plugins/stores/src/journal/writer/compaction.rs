//! Compaction: the journal written anew without what is deleted, superseded or doubled.
//!
//! The new segments continue the old ones' numbers and are drafts until they are complete and
//! synced. The last one's header says where the journal begins from then on; its renaming is the one
//! moment at which the old segments stop to count. A crash before leaves the old journal (and at
//! worst equal duplicates of it), a crash after leaves old files for the next writer to remove.

use std::path::PathBuf;

use super::super::disk::DiskFile;
use super::super::entry::Entry;
use super::super::error::JournalError;
use super::super::format::{FORMAT_VERSION, Footer, MAX_BODY, SegmentHeader, encode_batch};
use super::super::map::Map;
use super::super::reader::Reader;
use super::super::record::{Record, encode_body};
use super::super::segments::{list_segments, segment_path, segments_dir};
use super::{Writer, write_once};

/// Payload at which a batch of the new journal is complete, in bytes.
const BATCH_BYTES: usize = 1 << 20;

/// The new journal while it is written.
struct Draft {
    files: Vec<(PathBuf, PathBuf)>,
    open: Option<Open>,
    trail: Vec<Entry>,
    next_batch: u64,
    next_segment: u64,
}

struct Open {
    file: Box<dyn DiskFile>,
    length: u64,
    first_batch: u64,
    entries: Vec<Entry>,
}

impl Writer {
    /// Writes everything that the map knows into new segments and removes the old ones. The map
    /// must be of the whole journal, without damage.
    ///
    /// # Errors
    ///
    /// I/O errors and a full disk; the journal is as it was then.
    pub fn compact(&mut self, map: &Map, reader: &Reader) -> Result<(), JournalError> {
        self.seal()?;
        let old = list_segments(self.disk.as_ref(), &self.dir)?;
        let mut draft = Draft {
            files: Vec::new(),
            open: None,
            trail: Vec::new(),
            next_batch: self.next_batch,
            next_segment: self.next_segment,
        };
        let written = self.write_draft(&mut draft, map, reader);
        if let Err(error) = written {
            for (path, _) in &draft.files {
                let _ = self.disk.remove(path);
            }
            return Err(error);
        }
        let journal = segments_dir(&self.dir);
        let fail = |error| JournalError::io("rename", &journal, error);
        if let Some(((last, as_last), others)) = draft.files.split_last() {
            for (path, to) in others {
                self.disk.rename(path, to).map_err(fail)?;
                // From here on the numbers are taken, whatever happens.
                self.next_segment += 1;
                // One by one: of several, a power cut could keep a later one alone, and leave a gap.
                self.disk.sync_dir(&journal).map_err(fail)?;
            }
            self.disk.rename(last, as_last).map_err(fail)?;
            self.disk.sync_dir(&journal).map_err(fail)?;
        }
        self.next_segment = draft.next_segment;
        self.next_batch = draft.next_batch;
        self.trail = draft.trail;
        for number in old {
            // What cannot be removed now is removed by the next writer.
            let _ = self.disk.remove(&segment_path(&self.dir, number));
        }
        Ok(())
    }

    fn write_draft(
        &self,
        draft: &mut Draft,
        map: &Map,
        reader: &Reader,
    ) -> Result<(), JournalError> {
        for (&number, session) in &map.sessions {
            let Some(place) = session.place else { continue };
            let (id, header, inherited) = reader.session(number, place)?;
            let mut records = vec![Record::Session { session: number, id, inherited, header }];
            let (mut first_seq, mut run, mut run_bytes) = (0, Vec::new(), 0);
            for event in reader.events(number, session, 0..u64::MAX)? {
                run_bytes += event.len();
                run.push(event);
                if run_bytes >= BATCH_BYTES {
                    let next = first_seq + run.len() as u64;
                    let events = std::mem::take(&mut run);
                    records.push(Record::Events { session: number, first_seq, events });
                    (first_seq, run_bytes) = (next, 0);
                    self.put_draft(draft, &std::mem::take(&mut records), 0)?;
                }
            }
            if !run.is_empty() {
                records.push(Record::Events { session: number, first_seq, events: run });
            }
            if let Some(tail) = &session.tail {
                let attempt = tail.attempt;
                for (part, &(serial, _)) in reader.tail(number, tail)?.into_iter().zip(&tail.parts)
                {
                    records.push(Record::Tail { session: number, attempt, serial, part });
                }
            }
            // A batch is read whole or not at all, so what damages one must cost one session alone.
            if !records.is_empty() {
                self.put_draft(draft, &records, 0)?;
            }
        }
        let (mut records, mut bytes) = (Vec::new(), 0);
        for &place in map.kv.values() {
            let record = reader.record(place, 0)?;
            if matches!(record, Record::Kv { value: Some(_), .. }) {
                bytes += record.size();
                records.push(record);
            }
            if bytes >= BATCH_BYTES {
                self.put_draft(draft, &std::mem::take(&mut records), 0)?;
                bytes = 0;
            }
        }
        if !records.is_empty() {
            self.put_draft(draft, &records, 0)?;
        }
        self.seal_draft(draft)?;
        // The segment that makes the others count: it removes a key that nobody can have.
        let nothing = Record::Kv { key: bytes::Bytes::new(), value: None };
        let base =
            u16::try_from(draft.files.len() + 1).map_err(|_| JournalError::BatchTooLarge {
                bytes: draft.files.len() as u64,
                limit: u64::from(u16::MAX),
            })?;
        self.put_draft(draft, &[nothing], base)?;
        self.seal_draft(draft)
    }

    fn put_draft(
        &self,
        draft: &mut Draft,
        records: &[Record],
        base: u16,
    ) -> Result<(), JournalError> {
        let (body, entries) = encode_body(&draft.trail, records, self.checksum);
        let number = draft.next_batch;
        let bytes = encode_batch(number, &body, self.checksum)
            .ok_or(JournalError::BatchTooLarge { bytes: body.len() as u64, limit: MAX_BODY })?;
        let full = draft
            .open
            .as_ref()
            .is_some_and(|open| open.length + bytes.len() as u64 > self.config.segment_bytes);
        if full {
            self.seal_draft(draft)?;
        }
        let path = segment_path(&self.dir, draft.next_segment);
        let fail = |error| JournalError::io("write", &path, error);
        let open = match &mut draft.open {
            Some(open) => open,
            None => {
                let header = SegmentHeader {
                    version: FORMAT_VERSION,
                    base,
                    store: self.store,
                    segment: draft.next_segment,
                    first_batch: number,
                };
                let as_draft = path.with_extension("draft");
                let _ = self.disk.remove(&as_draft);
                let mut file = self.disk.create(&as_draft).map_err(fail)?;
                draft.files.push((as_draft, path.clone()));
                let header = header.encode();
                write_once(file.as_mut(), &header).map_err(fail)?;
                let length = header.len() as u64;
                let entries = Vec::new();
                draft.open.insert(Open { file, length, first_batch: number, entries })
            }
        };
        write_once(open.file.as_mut(), &bytes).map_err(fail)?;
        let start = open.length;
        let absolute = |entry: &Entry| Entry { offset: entry.offset + start, ..entry.clone() };
        open.entries.extend(entries.iter().map(absolute));
        open.length += bytes.len() as u64;
        draft.trail = entries;
        draft.next_batch += 1;
        Ok(())
    }

    fn seal_draft(&self, draft: &mut Draft) -> Result<(), JournalError> {
        let Some(mut open) = draft.open.take() else { return Ok(()) };
        let path = segment_path(&self.dir, draft.next_segment);
        let fail = |error| JournalError::io("write", &path, error);
        let footer = Footer {
            first_batch: open.first_batch,
            last_batch: draft.next_batch - 1,
            entries: open.entries,
        };
        if let Some(bytes) = footer.encode(open.length, self.checksum) {
            write_once(open.file.as_mut(), &bytes).map_err(fail)?;
        }
        open.file.sync().map_err(fail)?;
        draft.next_segment += 1;
        Ok(())
    }
}
