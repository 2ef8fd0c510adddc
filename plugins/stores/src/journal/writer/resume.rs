//! Going on where an earlier writer ended.

use std::path::PathBuf;

use bytes::Bytes as Buffer;

use super::super::entry::Entry;
use super::super::error::JournalError;
use super::super::recovery::{Depth, LastBatch, Recovered, recover_with};
use super::super::scan::records_at;
use super::super::segments::{SegmentProgress, segment_path, segments_dir};
use super::{Unsynced, Writer};

impl Writer {
    /// Reads the journal and gets ready to write behind it: a torn tail is cut off, and the last
    /// batch of an unsealed segment is written again into a new one and synced. (A process before
    /// this one may have seen its sync fail, after which the file looks whole from here and is not.)
    ///
    /// The map that it returns knows of the move.
    ///
    /// # Errors
    ///
    /// I/O errors and a full disk. Damage is no error: see [`Recovered::damages`].
    pub fn resume(&mut self, depth: Depth) -> Result<Recovered, JournalError> {
        self.resume_with(depth, &mut |_, _| ())
    }

    /// As [`Writer::resume`], and tells how far the reading has got.
    ///
    /// # Errors
    ///
    /// As [`Writer::resume`].
    pub fn resume_with(
        &mut self,
        depth: Depth,
        progress: &mut SegmentProgress<'_>,
    ) -> Result<Recovered, JournalError> {
        let mut found = recover_with(self.disk.as_ref(), &self.dir, &self.store, depth, progress)?;
        self.next_batch = found.next_batch;
        self.next_segment = found.next_segment;
        for number in &found.empty {
            let path = segment_path(&self.dir, *number);
            self.disk.remove(&path).map_err(|error| JournalError::io("remove", path, error))?;
        }
        self.clear_away(&found)?;
        // Cutting is only tidiness, and it must not touch what is damaged.
        if let (Some((segment, end)), true) = (found.torn, found.damages.is_empty()) {
            let path = segment_path(&self.dir, segment);
            let fail = |error| JournalError::io("cut", &path, error);
            let mut file = self.disk.open_write(&path).map_err(fail)?;
            file.set_len(end).map_err(fail)?;
            file.sync().map_err(fail)?;
        }
        if let Some(last) = found.last
            && last.number + 1 == found.next_batch
        {
            self.rewrite(last)?;
            for moved in self.take_moved() {
                let (from, to) = (moved.offset, moved.to_offset);
                found.map.relocate(moved.segment, from, moved.to_segment, to);
            }
        }
        Ok(found)
    }

    /// Removes what a compaction left: drafts of one that did not end, and segments that do not
    /// count any more.
    fn clear_away(&self, found: &Recovered) -> Result<(), JournalError> {
        let journal = segments_dir(&self.dir);
        let names = self.disk.list(&journal);
        let names = names.map_err(|error| JournalError::io("list", &journal, error))?;
        let drafts = names.iter().filter(|name| name.ends_with(".draft"));
        let mut gone: Vec<PathBuf> = drafts.map(|name| journal.join(name)).collect();
        gone.extend(found.superseded.iter().map(|number| segment_path(&self.dir, *number)));
        for path in gone {
            self.disk.remove(&path).map_err(|error| JournalError::io("remove", path, error))?;
        }
        Ok(())
    }

    /// Gets ready to write behind a journal that is known to be sealed, without reading it.
    pub fn resume_at(&mut self, next_segment: u64, next_batch: u64) {
        (self.next_segment, self.next_batch) = (next_segment, next_batch);
    }

    /// Writes the last batch of an unsealed segment again, into a new one.
    fn rewrite(&mut self, last: LastBatch) -> Result<(), JournalError> {
        let path = segment_path(&self.dir, last.segment);
        let fail = |error| JournalError::io("read", &path, error);
        let file = self.disk.open(&path).map_err(fail)?;
        let length = usize::try_from(last.end - last.offset).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        file.read_at(&mut bytes, last.offset).map_err(fail)?;
        let whole = Buffer::from(bytes);
        let Some(records) = records_at(&whole, 0, self.checksum) else {
            // Understood a moment ago, or a batch that is damaged: nothing to carry over.
            return Ok(());
        };
        let entries: Vec<Entry> = records.into_iter().map(|(entry, _)| entry).collect();
        self.trail.clone_from(&entries);
        self.unsynced = Some(Unsynced {
            number: last.number,
            segment: last.segment,
            offset: last.offset,
            bytes: whole.to_vec(),
            entries,
        });
        self.rescue()
    }
}
