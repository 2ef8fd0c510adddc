//! The index: a sled database that remembers where things are in the journal.
//!
//! It is a cache. What it holds can be rebuilt from the journal's footers, and is whenever the store
//! was not closed cleanly, or sled says (or panics) that its files are damaged. It is written when a
//! segment is sealed, when many records are not in it, and when the store is closed, never for a
//! single append.
//!
//! sled 0.34 is used with the settings that make it safe: one tree, small values, 4 MiB segments, a
//! set cache, no background flusher, never `flush_async`; `flush()` is followed by a sync of its
//! `db` file through a descriptor of our own, since sled's own flush does not reach the drive.

mod keys;
mod sled_thread;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::journal::{Block, Map, Place, SessionMap, StoreId};
use keys::Key;
pub use sled_thread::IndexError;
use sled_thread::SledThread;

/// Rows that are compared or written between two notes of progress.
const ROWS_A_STEP: u64 = 4096;

/// How far the index knows the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covered {
    /// The store it belongs to.
    pub store: StoreId,
    /// The number of the next batch when it was written.
    pub next_batch: u64,
    /// The number of the next segment when it was written.
    pub next_segment: u64,
    /// The highest session number in use.
    pub last_session: u64,
    /// Whether the store was closed right after. Only then is it believed unchecked.
    pub clean: bool,
}

/// A handle to the index and its thread. Every call blocks.
pub struct Index {
    thread: SledThread,
}

/// One entry of the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The session's number.
    pub number: u64,
    /// What the index knows of it, without its blocks.
    pub session: SessionMap,
}

impl Index {
    /// Opens or creates the index in `dir/index`, with a cache of so many bytes.
    ///
    /// # Errors
    ///
    /// When sled refuses or panics. [`Index::start_over`] then moves its directory aside.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<Self, IndexError> {
        Ok(Self { thread: SledThread::start(&dir.join("index"), cache_bytes)? })
    }

    /// Moves a damaged index aside and opens a new one. Returns where the old one went.
    ///
    /// # Errors
    ///
    /// When the directory cannot be moved, or a new one not be made.
    pub fn start_over(dir: &Path, cache_bytes: u64) -> Result<(Self, PathBuf), IndexError> {
        let from = dir.join("index");
        let aside = (1..)
            .map(|n| dir.join(format!("index.damaged-{n}")))
            .find(|path| !path.exists())
            .unwrap_or_else(|| dir.join("index.damaged"));
        if from.exists() {
            std::fs::rename(&from, &aside)
                .map_err(|error| IndexError::Failed(format!("moving it aside: {error}")))?;
        }
        Ok((Self::open(dir, cache_bytes)?, aside))
    }

    /// Removes an index, which must be closed, and makes a new one.
    ///
    /// # Errors
    ///
    /// When it cannot be removed, or a new one not be made.
    pub fn renew(dir: &Path, cache_bytes: u64) -> Result<Self, IndexError> {
        std::fs::remove_dir_all(dir.join("index"))
            .map_err(|error| IndexError::Failed(format!("removing it: {error}")))?;
        Self::open(dir, cache_bytes)
    }

    /// Makes every later call fail.
    #[cfg(test)]
    pub(crate) fn break_it(&self) {
        self.thread.broken.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// How far it knows the journal; `None` if it is new.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn covered(&self) -> Result<Option<Covered>, IndexError> {
        self.thread.call(|tree| {
            let value = tree.get(Key::Covered.encode())?;
            Ok(value.and_then(|value| serde_json::from_slice(&value).ok()))
        })
    }

    /// Adds what a map of the journal's newest part knows, and says how far it now goes. Durable
    /// when it returns; until then it may have a part of it, and says that it goes less far.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn add(&self, recent: &Arc<Map>, covered: &Covered) -> Result<(), IndexError> {
        let (recent, covered) = (Arc::clone(recent), covered.clone());
        self.thread.call(move |tree| {
            let mut batch = sled::Batch::default();
            // First, since a new session may have taken the id of a deleted one.
            for &number in &recent.deleted {
                remove_session(tree, number, &mut batch)?;
                batch.insert(Key::Deleted(number).encode(), &[]);
            }
            let tail = |(&number, session): (&u64, &SessionMap)| {
                Some((number, session.tail.as_ref()?.attempt))
            };
            for (number, attempt) in recent.sessions.iter().filter_map(tail) {
                for row in tree.scan_prefix(keys::tail_of(number)) {
                    let (key, value) = row?;
                    if keys::tail_part(&key, &value).is_none_or(|(other, ..)| other != attempt) {
                        batch.remove(key);
                    }
                }
            }
            tree.apply_batch(batch)?;
            // One by one: sled frees what an insertion replaces some insertions later, and a batch
            // counts as one. Fed by batches alone, it keeps every page that it ever had.
            for (key, value) in id_rows(&recent).chain(kv_rows(&recent)) {
                tree.insert(key, value)?;
            }
            for (&number, session) in &recent.sessions {
                let known = own_row(tree, number)?.map(|known| known.blocks).unwrap_or_default();
                for (key, value) in keys::session_rows(number, session, known) {
                    tree.insert(key, value)?;
                }
            }
            tree.insert(Key::Covered.encode(), to_json(&covered)).map(drop)
        })?;
        self.thread.sync()
    }

    /// Says how far it goes, and nothing else. Durable when it returns.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn mark(&self, covered: &Covered) -> Result<(), IndexError> {
        let value = to_json(covered);
        self.thread.call(move |tree| tree.insert(Key::Covered.encode(), value).map(|_| ()))?;
        self.thread.sync()
    }

    /// Compares it with a map of the whole journal and corrects what differs. Returns how many rows
    /// did. `progress` is told now and then how many rows were compared, and of about how many.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn reconcile(
        &self,
        whole: &Map,
        covered: &Covered,
        mut progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<usize, IndexError> {
        let mut wanted: BTreeMap<Vec<u8>, Vec<u8>> = rows(whole).collect();
        wanted.extend(whole.deleted.iter().map(|&n| (Key::Deleted(n).encode(), Vec::new())));
        let covered = to_json(covered);
        let corrected = self.thread.call(move |tree| {
            let mut batch = sled::Batch::default();
            let mut corrected = 0;
            let all = wanted.len() as u64;
            for (done, row) in (0_u64..).zip(tree) {
                let (key, value) = row?;
                if done.is_multiple_of(ROWS_A_STEP) {
                    progress(done.min(all), all);
                }
                match wanted.remove(&key[..]) {
                    Some(right) if value == right => {}
                    Some(right) => {
                        batch.insert(&key[..], right);
                        corrected += 1;
                    }
                    None if key[..] == Key::Covered.encode()[..] => {}
                    None => {
                        batch.remove(&key[..]);
                        corrected += 1;
                    }
                }
            }
            corrected += wanted.len();
            let mut done = all - wanted.len() as u64;
            tree.apply_batch(batch)?;
            // One by one, as in `add`.
            for (key, value) in wanted {
                tree.insert(key, value)?;
                done += 1;
                if done.is_multiple_of(ROWS_A_STEP) {
                    progress(done, all);
                }
            }
            tree.insert(Key::Covered.encode(), covered)?;
            Ok(corrected)
        })?;
        self.thread.sync()?;
        Ok(corrected)
    }

    /// The number of the session with this id.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn find(&self, id: &str) -> Result<Option<u64>, IndexError> {
        let key = Key::Id(id.as_bytes()).encode();
        self.thread.call(move |tree| Ok(tree.get(key)?.and_then(|value| keys::number(&value))))
    }

    /// What it knows of a session but its blocks, of which there may be many.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn head(&self, number: u64) -> Result<Option<SessionMap>, IndexError> {
        self.thread.call(move |tree| {
            let head = Self::head_in(tree, number)?;
            Ok(head.map(|head| SessionMap { blocks: Vec::new(), ..head }))
        })
    }

    fn head_in(tree: &sled::Tree, number: u64) -> Result<Option<SessionMap>, sled::Error> {
        let Some(mut session) = own_row(tree, number)? else { return Ok(None) };
        if let Some(tail) = &mut session.tail {
            for row in tree.scan_prefix(keys::tail_of(number)) {
                let (key, value) = row?;
                let part = keys::tail_part(&key, &value);
                let current = part.filter(|(attempt, ..)| *attempt == tail.attempt);
                tail.parts.extend(current.map(|(_, serial, place)| (serial, place)));
            }
        }
        Ok(Some(session))
    }

    /// As [`Index::head`], with the blocks.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn session(&self, number: u64) -> Result<Option<SessionMap>, IndexError> {
        self.thread.call(move |tree| {
            let Some(mut session) = Self::head_in(tree, number)? else { return Ok(None) };
            for row in tree.scan_prefix(keys::blocks_of(number)) {
                let (key, value) = row?;
                session.blocks.extend(keys::block(&key, &value));
            }
            Ok(Some(session))
        })
    }

    /// Catalog entries with ids after `after`, in order of id.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn page(&self, after: Option<&str>, limit: usize) -> Result<Vec<Listed>, IndexError> {
        use std::ops::Bound;
        let start = match after {
            Some(id) => Bound::Excluded(Key::Id(id.as_bytes()).encode()),
            None => Bound::Included(Key::Id(b"").encode()),
        };
        self.thread.call(move |tree| {
            let mut out = Vec::new();
            for row in tree.range((start, Bound::Excluded(keys::after_ids()))).take(limit) {
                let Some(number) = keys::number(&row?.1) else { continue };
                if let Some(session) = own_row(tree, number)? {
                    let session = SessionMap { blocks: Vec::new(), ..session };
                    out.push(Listed { number, session });
                }
            }
            Ok(out)
        })
    }

    /// Where the last record of a key stands.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn value(&self, key: &[u8]) -> Result<Option<Place>, IndexError> {
        let key = Key::Kv(key).encode();
        self.thread.call(move |tree| Ok(tree.get(key)?.and_then(|value| keys::place(&value))))
    }

    /// Up to `limit` keys behind `after` and where their last records stand, in order.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn keys(
        &self,
        after: &[u8],
        limit: usize,
    ) -> Result<BTreeMap<Vec<u8>, Option<Place>>, IndexError> {
        use std::ops::Bound;
        let start = Bound::Excluded(Key::Kv(after).encode());
        self.thread.call(move |tree| {
            let rows = tree.range((start, Bound::Excluded(keys::after_kv()))).take(limit);
            rows.map(|row| row.map(|(key, value)| (key[1..].to_vec(), keys::place(&value))))
                .collect()
        })
    }

    /// The blocks that it has in a segment, with their sessions: what a damaged segment held.
    ///
    /// # Errors
    ///
    /// When sled fails or panics.
    pub fn blocks_in(&self, segments: BTreeSet<u64>) -> Result<Vec<(u64, Block)>, IndexError> {
        self.thread.call(move |tree| {
            let mut out = Vec::new();
            for row in tree.scan_prefix(keys::all_sessions()) {
                let (key, value) = row?;
                if let (Some(number), Some(session)) =
                    (keys::session_of(&key), keys::session(&value))
                {
                    let hit = |block: &Block| segments.contains(&block.place.segment);
                    let blocks = session.blocks.into_iter().filter(hit);
                    out.extend(blocks.map(|block| (number, block)));
                }
            }
            for row in tree.scan_prefix(keys::all_blocks()) {
                let (key, value) = row?;
                if let (Some(number), Some(block)) =
                    (keys::session_of(&key), keys::block(&key, &value))
                    && segments.contains(&block.place.segment)
                {
                    out.push((number, block));
                }
            }
            Ok(out)
        })
    }
}

fn to_json(covered: &Covered) -> Vec<u8> {
    // Numbers, a bool and an array of bytes: this cannot fail.
    serde_json::to_vec(covered).unwrap_or_default()
}

/// The rows that a map of the whole journal asks for.
fn rows(map: &Map) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
    let rows = |(&number, session)| keys::session_rows(number, session, Vec::new());
    id_rows(map).chain(map.sessions.iter().flat_map(rows)).chain(kv_rows(map))
}

fn id_rows(map: &Map) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
    let row = |(id, number): (&String, &u64)| {
        (Key::Id(id.as_bytes()).encode(), number.to_be_bytes().to_vec())
    };
    map.ids.iter().map(row)
}

fn kv_rows(map: &Map) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
    map.kv.iter().map(|(key, place)| (Key::Kv(key).encode(), keys::place_bytes(*place).to_vec()))
}

/// What a session's own row says. One that cannot be read is a failure of the index.
fn own_row(tree: &sled::Tree, number: u64) -> Result<Option<SessionMap>, sled::Error> {
    let Some(value) = tree.get(Key::Session(number).encode())? else { return Ok(None) };
    let unreadable =
        || sled::Error::ReportableBug(format!("the row of session {number} is damaged"));
    keys::session(&value).map(Some).ok_or_else(unreadable)
}

fn remove_session(
    tree: &sled::Tree,
    number: u64,
    batch: &mut sled::Batch,
) -> Result<(), sled::Error> {
    if let Some(session) = own_row(tree, number)? {
        let key = Key::Id(session.id.as_bytes()).encode();
        // A new session may have taken the id meanwhile.
        if tree.get(&key)?.and_then(|value| keys::number(&value)) == Some(number) {
            batch.remove(key);
        }
        batch.remove(Key::Session(number).encode());
    }
    for prefix in [keys::blocks_of(number), keys::tail_of(number)] {
        for row in tree.scan_prefix(prefix) {
            batch.remove(row?.0);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
