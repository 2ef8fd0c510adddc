//! Named points of a store's work at which its process dies: what `kill -9` does by luck, on purpose.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use playhouse_plugin_api::store::{Store, StoreError};

use crate::journal::{Disk, DiskFile, LockOutcome, RealDisk};
use crate::{JournalStore, JsonlStore, StoreConfig};

/// What a store is doing when its process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultOp {
    /// Writing to a file.
    Write,
    /// Syncing a file.
    Sync,
    /// Syncing a directory.
    SyncDir,
    /// Creating a file.
    Create,
    /// Renaming a file.
    Rename,
    /// Giving a file a second name.
    Link,
    /// Removing a file.
    Remove,
    /// Cutting a file.
    Cut,
}

/// Where in the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultMoment {
    /// Nothing of it is done.
    Before,
    /// Half of a write is done; of anything else, nothing.
    Half,
    /// It is done, and nobody has been told.
    After,
}

/// A point at which a store's process dies, such as `sync.after:3`: after its third sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultPoint {
    /// The operation.
    pub op: FaultOp,
    /// The moment.
    pub moment: FaultMoment,
    /// Which one of them, from 1.
    pub nth: u64,
}

impl FaultPoint {
    /// Every named point, without its number.
    pub const ALL: [(FaultOp, FaultMoment); 17] = {
        use FaultMoment::{After, Before, Half};
        [
            (FaultOp::Write, Before),
            (FaultOp::Write, Half),
            (FaultOp::Write, After),
            (FaultOp::Sync, Before),
            (FaultOp::Sync, After),
            (FaultOp::SyncDir, Before),
            (FaultOp::SyncDir, After),
            (FaultOp::Create, Before),
            (FaultOp::Create, After),
            (FaultOp::Rename, Before),
            (FaultOp::Rename, After),
            (FaultOp::Link, Before),
            (FaultOp::Link, After),
            (FaultOp::Remove, Before),
            (FaultOp::Remove, After),
            (FaultOp::Cut, Before),
            (FaultOp::Cut, After),
        ]
    };
}

const OPS: [(&str, FaultOp); 8] = [
    ("write", FaultOp::Write),
    ("sync", FaultOp::Sync),
    ("sync-dir", FaultOp::SyncDir),
    ("create", FaultOp::Create),
    ("rename", FaultOp::Rename),
    ("link", FaultOp::Link),
    ("remove", FaultOp::Remove),
    ("cut", FaultOp::Cut),
];

const MOMENTS: [(&str, FaultMoment); 3] =
    [("before", FaultMoment::Before), ("half", FaultMoment::Half), ("after", FaultMoment::After)];

fn name_of<T: PartialEq>(names: &[(&'static str, T)], of: &T) -> &'static str {
    names.iter().find(|(_, named)| named == of).map_or("", |(name, _)| name)
}

impl fmt::Display for FaultPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, moment) = (name_of(&OPS, &self.op), name_of(&MOMENTS, &self.moment));
        write!(f, "{op}.{moment}:{}", self.nth)
    }
}

impl FromStr for FaultPoint {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let parts = || {
            let (point, nth) = text.split_once(':')?;
            let (op, moment) = point.split_once('.')?;
            let op = OPS.iter().find(|(name, _)| *name == op)?.1;
            let moment = MOMENTS.iter().find(|(name, _)| *name == moment)?.1;
            Some(Self { op, moment, nth: nth.parse().ok()? })
        };
        parts().ok_or_else(|| {
            StoreError::Argument(format!(
                "no fault point is called \"{text}\"; one looks like `sync.after:3`"
            ))
        })
    }
}

/// A disk on which the process dies at a point.
pub(crate) struct DyingDisk<D> {
    inner: D,
    fate: Arc<Fate>,
}

struct Fate {
    point: FaultPoint,
    seen: AtomicU64,
}

impl<D> DyingDisk<D> {
    pub(crate) fn new(inner: D, point: FaultPoint) -> Self {
        Self { inner, fate: Arc::new(Fate { point, seen: AtomicU64::new(0) }) }
    }
}

impl Fate {
    /// Does something, unless the process dies of it. `half` is done first if it dies in the middle.
    fn meet<T>(
        &self,
        op: FaultOp,
        half: impl FnOnce(),
        done: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let dies =
            op == self.point.op && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == self.point.nth;
        match self.point.moment {
            FaultMoment::Before if dies => std::process::abort(),
            FaultMoment::Half if dies => {
                half();
                std::process::abort()
            }
            _ => {}
        }
        let done = done();
        if dies {
            std::process::abort();
        }
        done
    }
}

impl<D: Disk> Disk for DyingDisk<D> {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fate.meet(FaultOp::SyncDir, || (), || self.inner.sync_dir(dir))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.fate.meet(FaultOp::Create, || (), || self.inner.create(path))?;
        Ok(Box::new(DyingFile { inner: file, fate: Arc::clone(&self.fate) }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.inner.open(path)
    }

    fn open_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.inner.open_write(path)?;
        Ok(Box::new(DyingFile { inner: file, fate: Arc::clone(&self.fate) }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fate.meet(FaultOp::Remove, || (), || self.inner.remove(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fate.meet(FaultOp::Rename, || (), || self.inner.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fate.meet(FaultOp::Link, || (), || self.inner.link(from, to))
    }

    fn lock(&self, path: &Path) -> io::Result<LockOutcome> {
        self.inner.lock(path)
    }
}

struct DyingFile {
    inner: Box<dyn DiskFile>,
    fate: Arc<Fate>,
}

impl DiskFile for DyingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self { inner, fate } = self;
        // A short write is told as one, so the half is written by hand.
        let inner = std::cell::RefCell::new(inner);
        let half = || drop(inner.borrow_mut().write(&bytes[..bytes.len() / 2]));
        fate.meet(FaultOp::Write, half, || inner.borrow_mut().write(bytes))
    }

    fn sync(&mut self) -> io::Result<()> {
        let Self { inner, fate } = self;
        fate.meet(FaultOp::Sync, || (), || inner.sync())
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let Self { inner, fate } = self;
        fate.meet(FaultOp::Cut, || (), || inner.set_len(len))
    }

    fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.inner.seek(offset)
    }

    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)
    }
}

impl StoreConfig {
    /// As [`StoreConfig::open`], on a disk on which the process dies at `point`. SQLite has a disk of
    /// its own, and memory none: there the point is never met.
    ///
    /// # Errors
    ///
    /// Those of [`StoreConfig::open`].
    pub async fn open_dying(
        self,
        dir: &Path,
        point: FaultPoint,
    ) -> Result<Arc<dyn Store>, StoreError> {
        let disk = Arc::new(DyingDisk::new(RealDisk, point));
        match self {
            Self::Journal(config) => {
                Ok(Arc::new(JournalStore::open_on(disk, dir.to_path_buf(), config).await?))
            }
            Self::Jsonl(config) => {
                Ok(Arc::new(JsonlStore::open_on(disk, dir.to_path_buf(), config).await?))
            }
            other => other.open(dir).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read_as_they_are_written() {
        for (nth, (op, moment)) in (1..).zip(FaultPoint::ALL) {
            let point = FaultPoint { op, moment, nth };
            assert_eq!(point.to_string().parse(), Ok(point));
        }
        for bad in ["", "sync", "sync.after", "sync.after:x", "sink.after:1", "sync.later:1"] {
            let refused = bad.parse::<FaultPoint>().unwrap_err();
            assert_eq!(refused.code(), "INVALID_ARGUMENT", "{refused}");
        }
    }
}
