//! The write-ahead log, looked at before SQLite does.
//!
//! SQLite takes the log for ended at the first frame that does not match its checksum. That is right
//! for the last commit, which a crash may have torn, and wrong for all others: each commit is synced
//! before the next one is begun, so a bad frame with another commit behind it is damage, and what
//! lies behind would be lost without a word.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::schema::FILE;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// With checksums over little-endian words; one more for big-endian.
const MAGIC: u32 = 0x377f_0682;
/// A log that its writer begins anew while it is read is read again, so often.
const READINGS: usize = 20;

/// The log's file.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(format!("{FILE}-wal"))
}

/// Where a log is damaged before its last commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WalDamage {
    pub(crate) offset: u64,
    pub(crate) cause: &'static str,
}

/// Looks for damage; a log that is not there has none. Safe beside a writer: `-wal` is the one file
/// of a database that SQLite holds no locks on, which closing it here would let go of.
pub(crate) fn damage(dir: &Path) -> io::Result<Option<WalDamage>> {
    let mut file = match File::open(path(dir)) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for _ in 0..READINGS {
        let before = header(&mut file)?;
        let found = scan(&mut file)?;
        // A writer that begins the log anew writes the header before any frame.
        if header(&mut file)? == before {
            return Ok(found);
        }
    }
    Ok(None)
}

fn header(file: &mut File) -> io::Result<Option<[u8; HEADER]>> {
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = [0; HEADER];
    Ok(fill(file, &mut bytes)?.then_some(bytes))
}

/// Whether there were bytes enough.
fn fill(from: &mut impl io::Read, bytes: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// The log's running checksum.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Chain {
    big_endian: bool,
    sums: [u32; 2],
}

impl Chain {
    fn over(mut self, bytes: &[u8]) -> Self {
        let number = if self.big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
        let (words, _) = bytes.as_chunks::<4>();
        let (pairs, _) = words.as_chunks::<2>();
        let [a, b] = &mut self.sums;
        for [first, second] in pairs {
            *a = a.wrapping_add(number(*first)).wrapping_add(*b);
            *b = b.wrapping_add(number(*second)).wrapping_add(*a);
        }
        self
    }

    fn is_at(self, bytes: &[u8], at: usize) -> bool {
        self.sums == [word(bytes, at), word(bytes, at + 4)]
    }
}

fn scan(file: &mut File) -> io::Result<Option<WalDamage>> {
    let Some(header) = header(file)? else { return Ok(None) };
    let mut file = BufReader::with_capacity(1 << 16, file);
    let magic = word(&header, 0);
    let page_bytes = word(&header, 8) as usize;
    let mut chain = Chain { big_endian: magic == MAGIC + 1, sums: [0; 2] }.over(&header[..24]);
    let is_sound = magic & !1 == MAGIC
        && chain.is_at(&header, 24)
        && page_bytes.is_power_of_two()
        && page_bytes <= 1 << 16;
    if !is_sound {
        // The header was synced before the first frame was written.
        let has_frames = file.read(&mut [0])? > 0;
        let cause = "its header does not match its checksum";
        return Ok(has_frames.then_some(WalDamage { offset: 0, cause }));
    }
    let mut frame = vec![0; FRAME_HEADER + page_bytes];
    let mut offset = HEADER as u64;
    let mut bad: Option<u64> = None;
    // Of the commit that the scan is in: each changes a page once, and all change one page.
    let mut pages = HashSet::new();
    let mut commit_ended = false;
    while fill(&mut file, &mut frame)? {
        let here = offset;
        offset += frame.len() as u64;
        let (head, page) = frame.split_at(FRAME_HEADER);
        let is_of_this_log = head[8..16] == header[16..24];
        let next = chain.over(&head[..8]).over(page);
        if bad.is_none() && is_of_this_log && next.is_at(head, 16) {
            chain = next;
        } else {
            bad.get_or_insert(here);
            if !is_of_this_log {
                // Left from before the log was begun anew, or bad itself.
                continue;
            }
        }
        let another_commit = commit_ended || !pages.insert(word(head, 0));
        if another_commit && let Some(offset) = bad.filter(|bad| *bad < here) {
            let cause = "a frame does not match its checksum, and later commits lie behind it";
            return Ok(Some(WalDamage { offset, cause }));
        }
        commit_ended = word(head, 4) != 0;
        if commit_ended && bad.is_none() {
            pages.clear();
            commit_ended = false;
        }
    }
    Ok(None)
}
