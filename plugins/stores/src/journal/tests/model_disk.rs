//! A disk in memory that logs every operation, refuses some, and can be rebuilt as a power cut
//! would have left it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::journal::disk::{Disk, DiskFile, Held, LockOutcome};

/// A small deterministic generator (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// The seed of a test: `PLAYHOUSE_SEED`, or the given one. It is printed.
pub fn seed(default: u64) -> u64 {
    let given = std::env::var("PLAYHOUSE_SEED").ok();
    let seed = given.and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("seed {seed} (set PLAYHOUSE_SEED to change it)");
    seed
}

#[derive(Debug, Clone)]
pub enum Op {
    Create(PathBuf, usize),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
    SyncDir(PathBuf),
    Write(usize, u64, Vec<u8>),
    SetLen(usize, u64),
    Sync(usize),
    /// Refused; what was unsynced then is never made durable by a later sync of the same file.
    FailedSync(usize),
}

/// What the next operations do instead of working.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The next sync fails with EIO.
    FailSync,
    /// The next write takes only this many bytes.
    ShortWrite(usize),
    /// The next write fails with EIO.
    FailWrite,
    /// The next write panics, before or after it took place.
    Panic,
    PanicAfter,
    /// Creating the next file fails with EIO.
    FailCreate,
    /// Cutting the next file fails with EIO.
    FailSetLen,
    /// Giving the next file a second name fails with EIO.
    FailLink,
}

impl Fault {
    fn is_of_writes(&self) -> bool {
        use Fault::{FailWrite, Panic, PanicAfter, ShortWrite};
        matches!(self, ShortWrite(_) | FailWrite | Panic | PanicAfter)
    }
}

#[derive(Default)]
pub struct State {
    pub names: BTreeMap<PathBuf, usize>,
    pub inodes: Vec<Vec<u8>>,
    pub log: Vec<Op>,
    pub faults: Vec<Fault>,
    /// How many bytes were asked for.
    pub read_bytes: usize,
    /// How many bytes all files may have together.
    pub capacity: Option<u64>,
    locked: BTreeSet<PathBuf>,
}

#[derive(Clone, Default)]
pub struct ModelDisk(pub Arc<Mutex<State>>);

/// How unsynced operations fare when the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// They are all lost.
    None,
    /// They survive in order up to one that is torn at a sector.
    Prefix,
    /// Any of them survive, some torn.
    Subset,
}

impl ModelDisk {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn from_files(files: &BTreeMap<PathBuf, Vec<u8>>) -> Self {
        let disk = Self::default();
        {
            let mut state = disk.state();
            for (path, bytes) in files {
                let inode = state.inodes.len();
                state.inodes.push(bytes.clone());
                state.names.insert(path.clone(), inode);
            }
        }
        disk
    }

    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let state = self.state();
        let read = |(path, inode): (&PathBuf, &usize)| (path.clone(), state.inodes[*inode].clone());
        state.names.iter().map(read).collect()
    }

    pub fn fault(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    pub fn at(&self) -> usize {
        self.state().log.len()
    }

    /// The files as a power cut before operation `at` leaves them. `start` is what was there,
    /// durable, before the log began.
    pub fn after_power_cut(
        &self,
        start: &BTreeMap<PathBuf, Vec<u8>>,
        at: usize,
        cut: Cut,
        dice: &mut Dice,
    ) -> BTreeMap<PathBuf, Vec<u8>> {
        let state = self.state();
        let ops = &state.log[..at];
        let mut unsynced = Vec::new();
        let mut durable = vec![false; ops.len()];
        let mut tainted = BTreeSet::new();
        for (index, op) in ops.iter().enumerate() {
            match op {
                Op::Sync(inode) => {
                    for &before in &unsynced {
                        let hit = matches!(&ops[before], Op::Write(i, ..) | Op::SetLen(i, _) if i == inode);
                        durable[before] |= hit && !tainted.contains(&before);
                    }
                }
                Op::FailedSync(inode) => {
                    let hits = unsynced.iter().copied().filter(|&before| {
                        matches!(&ops[before], Op::Write(i, ..) | Op::SetLen(i, _) if i == inode)
                    });
                    tainted.extend(hits);
                }
                Op::SyncDir(dir) => {
                    for &before in &unsynced {
                        durable[before] |= match &ops[before] {
                            Op::Create(path, _) | Op::Remove(path) | Op::Rename(_, path) => {
                                path.parent() == Some(dir)
                            }
                            _ => false,
                        };
                    }
                }
                _ => unsynced.push(index),
            }
            unsynced.retain(|&before| !durable[before]);
        }
        let keep = dice.below(unsynced.len() + 1);
        let mut names: BTreeMap<PathBuf, usize> = BTreeMap::new();
        let mut inodes: Vec<Vec<u8>> = state.inodes.iter().map(|_| Vec::new()).collect();
        for (inode, (path, bytes)) in start.iter().enumerate() {
            names.insert(path.clone(), inode);
            inodes[inode].clone_from(bytes);
        }
        for (index, op) in ops.iter().enumerate() {
            let (lives, torn) = if durable[index] {
                (true, false)
            } else {
                let place = unsynced.iter().position(|&before| before == index);
                match (cut, place) {
                    (Cut::None, _) | (_, None) => (false, false),
                    (Cut::Prefix, Some(place)) => (place <= keep, place == keep),
                    (Cut::Subset, _) => (dice.chance(50), dice.chance(30)),
                }
            };
            if !lives {
                continue;
            }
            match op {
                Op::Create(path, inode) => {
                    names.insert(path.clone(), *inode);
                }
                Op::Remove(path) => {
                    names.remove(path);
                }
                Op::Rename(from, to) => {
                    if let Some(inode) = names.remove(from) {
                        names.insert(to.clone(), inode);
                    }
                }
                Op::Write(inode, offset, bytes) => {
                    put(&mut inodes[*inode], *offset, bytes, torn.then_some(&mut *dice));
                }
                Op::SetLen(inode, len) => inodes[*inode].resize(*len as usize, 0),
                Op::SyncDir(_) | Op::Sync(_) | Op::FailedSync(_) => {}
            }
        }
        let read = |(path, inode): (PathBuf, usize)| (path, inodes[inode].clone());
        names.into_iter().map(read).collect()
    }
}

/// Puts bytes at an offset; torn, only some of their 512-byte sectors arrive.
fn put(file: &mut Vec<u8>, offset: u64, bytes: &[u8], torn: Option<&mut Dice>) {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let sector_end = (offset as usize + at) / 512 * 512 + 512;
        let end = bytes.len().min(sector_end - offset as usize);
        pieces.push((at, end));
        at = end;
    }
    let mut length = offset as usize + bytes.len();
    if let Some(dice) = torn {
        let whole = pieces.len();
        if dice.chance(50) {
            // The first sectors arrive, and the length with them.
            pieces.truncate(dice.below(whole));
            length = offset as usize + pieces.last().map_or(0, |piece| piece.1);
        } else {
            // The length arrives, and any sectors; the others are zero.
            pieces.retain(|_| dice.chance(50));
        }
    }
    if file.len() < length {
        file.resize(length, 0);
    }
    for (start, end) in pieces {
        let to = offset as usize + start;
        file[to..to + end - start].copy_from_slice(&bytes[start..end]);
    }
}

struct ModelFile {
    disk: ModelDisk,
    inode: usize,
    at: u64,
}

struct ModelLock(ModelDisk, PathBuf);

impl Held for ModelLock {}

impl Drop for ModelLock {
    fn drop(&mut self) {
        self.0.state().locked.remove(&self.1);
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl State {
    fn take_fault(&mut self, is_it: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let at = self.faults.iter().position(is_it)?;
        Some(self.faults.remove(at))
    }

    fn room(&self) -> u64 {
        let used: usize = self.names.values().map(|&inode| self.inodes[inode].len()).sum();
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(used as u64))
    }
}

impl Disk for ModelDisk {
    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.state().log.push(Op::SyncDir(dir.to_path_buf()));
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.state();
        let inside = state.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if state.take_fault(|fault| *fault == Fault::FailCreate).is_some() {
            return Err(eio());
        }
        let inode = state.inodes.len();
        state.inodes.push(Vec::new());
        state.names.insert(path.to_path_buf(), inode);
        state.log.push(Op::Create(path.to_path_buf(), inode));
        drop(state);
        let disk = self.clone();
        Ok(Box::new(ModelFile { disk, inode, at: 0 }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let state = self.state();
        let inode = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        let at = state.inodes[inode].len() as u64;
        drop(state);
        let disk = self.clone();
        Ok(Box::new(ModelFile { disk, inode, at }))
    }

    fn open_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        state.log.push(Op::Remove(path.to_path_buf()));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let inode = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_path_buf(), inode);
        state.log.push(Op::Rename(from.to_path_buf(), to.to_path_buf()));
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        if state.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if state.take_fault(|fault| *fault == Fault::FailLink).is_some() {
            return Err(eio());
        }
        let inode = *state.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_path_buf(), inode);
        // After a power cut a second name is as good as a first one.
        state.log.push(Op::Create(to.to_path_buf(), inode));
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<LockOutcome> {
        let fresh = self.state().locked.insert(path.to_path_buf());
        let lock = || LockOutcome::Held(Box::new(ModelLock(self.clone(), path.to_path_buf())));
        Ok(if fresh { lock() } else { LockOutcome::Busy(Some(7)) })
    }
}

impl DiskFile for ModelFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        let mut count = bytes.len();
        let fault = state.take_fault(Fault::is_of_writes);
        match fault {
            Some(Fault::FailWrite) => return Err(eio()),
            Some(Fault::Panic) => {
                drop(state);
                panic!("a disk that panics");
            }
            Some(Fault::ShortWrite(limit)) => count = count.min(limit),
            _ => {}
        }
        let room = usize::try_from(state.room()).unwrap_or(usize::MAX);
        if room == 0 && count > 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = bytes[..count.min(room)].to_vec();
        put(&mut state.inodes[self.inode], self.at, &taken, None);
        let count = taken.len();
        state.log.push(Op::Write(self.inode, self.at, taken));
        self.at += count as u64;
        drop(state);
        assert!(fault != Some(Fault::PanicAfter), "a disk that panics when it is done");
        Ok(count)
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state();
        if state.take_fault(|fault| *fault == Fault::FailSync).is_some() {
            state.log.push(Op::FailedSync(self.inode));
            return Err(eio());
        }
        state.log.push(Op::Sync(self.inode));
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        if state.take_fault(|fault| *fault == Fault::FailSetLen).is_some() {
            return Err(eio());
        }
        state.inodes[self.inode].resize(len as usize, 0);
        state.log.push(Op::SetLen(self.inode, len));
        self.at = len;
        Ok(())
    }

    fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.at = offset;
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.state().inodes[self.inode].len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.read_bytes += buf.len();
        let start = offset as usize;
        let bytes = state.inodes[self.inode].get(start..start + buf.len());
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
