//! The few things a store asks of a file system, so that tests can refuse them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A lock that is held for as long as the value lives.
pub trait Held: Send + Sync {}

/// What asking for a lock came to.
pub enum LockOutcome {
    /// It is ours until the value is dropped.
    Held(Box<dyn Held>),
    /// Another holder has it; its process id, if the lock file says.
    Busy(Option<u32>),
}

/// A file system as the journal sees it. Every call blocks.
pub trait Disk: Send + Sync {
    /// Makes a directory and its parents, private to the owner (0700).
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Makes the directory's entries durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Names of the directory's entries, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Creates a new file (0600) for reading and writing; fails if it exists.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for reading and writing, positioned at its end.
    fn open_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames a file, replacing what has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name; fails with `AlreadyExists` if something has it.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Takes an exclusive lock on a file without waiting, and leaves our process id in it.
    fn lock(&self, path: &Path) -> io::Result<LockOutcome>;
}

/// An open file of a [`Disk`].
pub trait DiskFile: Send + Sync {
    /// One `write(2)` at the handle's position: behind what it wrote last. May write less than given.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Makes the file's bytes and length durable (`fdatasync`).
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts the file and moves the write position to its new end.
    fn set_len(&mut self, len: u64) -> io::Result<()>;
    /// Moves the write position, so that bytes are written over.
    fn seek(&mut self, offset: u64) -> io::Result<()>;
    /// Length in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`, or fails with `UnexpectedEof`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

/// The operating system's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

struct RealFile(File);

struct FileLock(#[expect(dead_code, reason = "dropping the file gives the lock back")] File);

impl Held for FileLock {}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

impl Disk for RealDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::DirBuilderExt;
            builder.mode(0o700);
        }
        builder.create(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // Windows has no handle for this; NTFS journals its directories.
        if cfg!(unix) {
            File::open(dir)?.sync_all()?;
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        Ok(Box::new(RealFile(private(&mut options).open(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(File::open(path)?)))
    }

    fn open_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Box::new(RealFile(file)))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn lock(&self, path: &Path) -> io::Result<LockOutcome> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = private(&mut options).open(path)?;
        match file.try_lock() {
            Ok(()) => {
                // The id is a courtesy to whoever finds the lock taken; the lock is what counts.
                file.set_len(0)?;
                file.write_all(std::process::id().to_string().as_bytes())?;
                Ok(LockOutcome::Held(Box::new(FileLock(file))))
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let read = file.read_to_string(&mut holder);
                Ok(LockOutcome::Busy(read.ok().and_then(|_| holder.trim().parse().ok())))
            }
            Err(TryLockError::Error(source)) => Err(source),
        }
    }
}

impl DiskFile for RealFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)?;
        self.0.seek(SeekFrom::Start(len)).map(|_| ())
    }

    fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.0.seek(SeekFrom::Start(offset)).map(|_| ())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    #[cfg(unix)]
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, buf, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            match std::os::windows::fs::FileExt::seek_read(&self.0, &mut buf[done..], at)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }
}
