//! What a power cut could have left of a recorded run.
//!
//! A file has what was synced, and operations since, of which a cut keeps none, a prefix, or any
//! subset, the last write torn at a sector. Names become durable with the next sync of anything, as
//! on a journaling file system, or, strictly, with the next sync of a directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use fastrand::Rng;

/// A recorded run.
pub struct History(Vec<Record>);

struct Record {
    op: u8,
    inode: u64,
    at: u64,
    len: u64,
    data: Vec<u8>,
}

impl History {
    /// Reads what the recorder wrote; the last record may be half.
    pub fn parse(mut log: &[u8]) -> Self {
        fn number(bytes: &[u8]) -> u64 {
            bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        }
        let mut records = Vec::new();
        while log.len() >= 29 {
            let size = number(&log[25..29]) as usize;
            let Some(data) = log.get(29..29 + size) else { break };
            records.push(Record {
                op: log[0],
                inode: number(&log[1..9]),
                at: number(&log[9..17]),
                len: number(&log[17..25]),
                data: data.to_vec(),
            });
            log = &log[29 + size..];
        }
        Self(records)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a file was ever made whose name ends so.
    pub fn creates(&self, end: &str) -> bool {
        self.0.iter().any(|record| record.op == b'C' && record.data.ends_with(end.as_bytes()))
    }

    pub fn syncs(&self) -> usize {
        self.0.iter().filter(|record| matches!(record.op, b'S' | b'D')).count()
    }
}

/// How a cut leaves what was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Nothing of it is there.
    Nothing,
    /// Of each file the first operations are there, the next write torn.
    Prefix,
    /// Of each file any operations are there, some of them torn.
    Subset,
}

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Truncate(u64),
    Allocate { mode: u32, at: u64, len: u64 },
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, data) => {
                let (at, end) = (*at as usize, *at as usize + data.len());
                bytes.resize(bytes.len().max(end), 0);
                bytes[at..end].copy_from_slice(data);
            }
            Self::Truncate(len) => bytes.resize(*len as usize, 0),
            Self::Allocate { mode, at, len } => {
                const KEEP_SIZE: u32 = 1;
                const PUNCH_HOLE_OR_ZERO: u32 = 2 | 16;
                let (at, end) = (*at as usize, (*at + *len) as usize);
                if mode & PUNCH_HOLE_OR_ZERO != 0 {
                    let within = bytes.len().min(end);
                    bytes[at.min(within)..within].fill(0);
                }
                if mode & KEEP_SIZE == 0 {
                    bytes.resize(bytes.len().max(end), 0);
                }
            }
        }
    }

    /// What is left of a write that was going on.
    fn torn(&self, rng: &mut Rng) -> Option<Self> {
        let Self::Write(at, data) = self else { return None };
        let sectors = rng.usize(0..=data.len()) / 512 * 512;
        Some(Self::Write(*at, data[..sectors].to_vec()))
    }
}

#[derive(Default)]
struct File {
    synced: Vec<u8>,
    since: Vec<Change>,
}

type Names = BTreeMap<String, usize>;

/// A directory while a history is replayed.
pub struct Disk {
    files: Vec<File>,
    by_inode: BTreeMap<u64, usize>,
    names: Names,
    /// With names made durable by any sync, and by a directory's only.
    durable: [Names; 2],
    dirs: BTreeSet<String>,
    told: Vec<u8>,
    /// Whether it says that it has synced, and has not.
    pub lies: bool,
}

impl Disk {
    /// A directory as it is now, all of it durable.
    pub fn of(dir: &Path) -> Self {
        let mut disk = Self {
            files: Vec::new(),
            by_inode: BTreeMap::new(),
            names: Names::new(),
            durable: Default::default(),
            dirs: BTreeSet::new(),
            told: Vec::new(),
            lies: false,
        };
        disk.load(dir, "");
        disk.durable = [disk.names.clone(), disk.names.clone()];
        disk
    }

    fn load(&mut self, dir: &Path, below: &str) {
        use std::os::unix::fs::MetadataExt;
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{below}/{}", entry.file_name().to_str().unwrap());
            if entry.path().is_dir() {
                self.load(&entry.path(), &name);
                self.dirs.insert(name);
            } else {
                let inode = entry.metadata().unwrap().ino();
                let file = *self.by_inode.entry(inode).or_insert_with(|| {
                    let synced = fs::read(entry.path()).unwrap();
                    self.files.push(File { synced, since: Vec::new() });
                    self.files.len() - 1
                });
                self.names.insert(name, file);
            }
        }
    }

    fn change(&mut self, inode: u64, change: Change) {
        if let Some(file) = self.by_inode.get(&inode) {
            self.files[*file].since.push(change);
        }
    }

    /// Replays the record with this number.
    pub fn replay(&mut self, history: &History, number: usize) {
        let Record { op, inode, at, len, data } = &history.0[number];
        let text = || String::from_utf8(data.clone()).unwrap();
        let two = || {
            let text = text();
            let (from, to) = text.split_once('\0').unwrap();
            (from.to_owned(), to.to_owned())
        };
        match op {
            b'C' => {
                self.files.push(File::default());
                self.by_inode.insert(*inode, self.files.len() - 1);
                self.names.insert(text(), self.files.len() - 1);
            }
            b'W' => self.change(*inode, Change::Write(*at, data.clone())),
            b'T' => self.change(*inode, Change::Truncate(*at)),
            b'A' => {
                let mode = u32::from_le_bytes(data[..4].try_into().unwrap());
                self.change(*inode, Change::Allocate { mode, at: *at, len: *len });
            }
            b'S' | b'D' if self.lies => {}
            b'S' => {
                if let Some(file) = self.by_inode.get(inode) {
                    let File { synced, since } = &mut self.files[*file];
                    since.drain(..).for_each(|change| change.apply(synced));
                }
                self.durable[0] = self.names.clone();
            }
            b'D' => self.durable = [self.names.clone(), self.names.clone()],
            b'R' => {
                let (from, to) = two();
                if let Some(file) = self.names.remove(&from) {
                    self.names.insert(to, file);
                }
            }
            b'L' => {
                let (from, to) = two();
                if let Some(file) = self.names.get(&from) {
                    self.names.insert(to, *file);
                }
            }
            b'U' => drop(self.names.remove(&text())),
            b'M' => drop(self.dirs.insert(text())),
            b'K' => self.told.extend(data),
            _ => {}
        }
    }

    /// What the process has told since the last call, in whole lines.
    pub fn told(&mut self) -> Vec<String> {
        let end = self.told.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let rest = self.told.split_off(end);
        let told = std::mem::replace(&mut self.told, rest);
        String::from_utf8(told).unwrap().lines().map(str::to_owned).collect()
    }

    /// Makes a directory as a power cut at this moment could leave it.
    pub fn cut(&self, into: &Path, cut: Cut, rng: &mut Rng) {
        let strict = usize::from(rng.bool());
        // Names that were not made durable may be there all the same.
        let names =
            if cut != Cut::Nothing && rng.bool() { &self.names } else { &self.durable[strict] };
        for dir in &self.dirs {
            fs::create_dir_all(into.join(&dir[1..])).unwrap();
        }
        for (name, file) in names {
            let File { synced, since } = &self.files[*file];
            let mut bytes = synced.clone();
            match cut {
                Cut::Nothing => {}
                Cut::Prefix => {
                    let kept = rng.usize(0..=since.len());
                    since[..kept].iter().for_each(|change| change.apply(&mut bytes));
                    let next = since.get(kept).and_then(|change| change.torn(rng));
                    next.into_iter().for_each(|change| change.apply(&mut bytes));
                }
                Cut::Subset => {
                    for change in since {
                        if rng.bool() {
                            let torn = (rng.u8(0..10) < 3).then(|| change.torn(rng)).flatten();
                            torn.as_ref().unwrap_or(change).apply(&mut bytes);
                        }
                    }
                }
            }
            let path = into.join(&name[1..]);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
}
