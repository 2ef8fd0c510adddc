//! The one thread that touches sled, and that contains its panics.

use std::fs::{self, File, TryLockError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The least cache that sled is given, in bytes.
const CACHE_BYTES_MIN: u64 = 64 << 10;
/// Pages over a quarter of this go to files that sled never syncs; our values stay far below.
const SEGMENT_BYTES: usize = 4 << 20;

/// How often, and how far apart, a closed index is asked whether its lock is gone: 2 s in all.
const UNLOCK_CHECKS_MAX: u32 = 400;
const UNLOCK_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The index could not do what was asked. It is a cache, so the journal still can.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// sled returned an error.
    #[error("the index failed: {0}")]
    Failed(String),
    /// sled panicked, which is how it mostly says that its files are damaged.
    #[error("the index panicked: {0}")]
    Panicked(String),
    /// Somebody has it open.
    #[error("the index is open elsewhere")]
    Locked,
    /// Its thread is gone.
    #[error("the index is closed")]
    Closed,
}

type Task = Box<dyn FnOnce(&Open) + Send>;

struct Open {
    db: sled::Db,
    /// Our own descriptor of sled's file, for the sync that sled leaves out.
    file: File,
}

pub struct SledThread {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    /// Makes every call fail as a damaged index does.
    #[cfg(test)]
    pub broken: std::sync::atomic::AtomicBool,
}

impl SledThread {
    pub fn start(path: &Path, cache_bytes: u64) -> Result<Self, IndexError> {
        let (tasks, inbox) = channel::<Task>();
        let (opened, is_open) = channel();
        let path = path.to_path_buf();
        let thread = std::thread::Builder::new()
            .name("playhouse-index".to_owned())
            .spawn(move || {
                let open = match contained(|| open(&path, cache_bytes)) {
                    Ok(open) => open,
                    Err(error) => {
                        let _ = opened.send(Err(error));
                        return;
                    }
                };
                let _ = opened.send(Ok(()));
                for task in inbox {
                    task(&open);
                }
                // Its drop joins threads of its own and may panic like the rest.
                let _ = contained(move || {
                    drop(open);
                    Ok(())
                });
                await_unlock(&path);
            })
            .map_err(|error| IndexError::Failed(error.to_string()))?;
        is_open.recv().unwrap_or(Err(IndexError::Closed))?;
        Ok(Self {
            tasks: Some(tasks),
            thread: Some(thread),
            #[cfg(test)]
            broken: Default::default(),
        })
    }

    /// Runs a task on the thread and waits for it.
    pub fn call<T: Send + 'static>(
        &self,
        task: impl FnOnce(&sled::Tree) -> Result<T, sled::Error> + Send + 'static,
    ) -> Result<T, IndexError> {
        self.run(move |open| task(&open.db).map_err(failed))
    }

    /// Makes all that was written durable.
    pub fn sync(&self) -> Result<(), IndexError> {
        self.run(|open| {
            open.db.flush().map_err(failed)?;
            open.file.sync_data().map_err(|error| IndexError::Failed(error.to_string()))
        })
    }

    fn run<T: Send + 'static>(
        &self,
        task: impl FnOnce(&Open) -> Result<T, IndexError> + Send + 'static,
    ) -> Result<T, IndexError> {
        #[cfg(test)]
        if self.broken.load(std::sync::atomic::Ordering::Relaxed) {
            return self.send(|_| panic!("a page that cannot be read"));
        }
        self.send(task)
    }

    fn send<T: Send + 'static>(
        &self,
        task: impl FnOnce(&Open) -> Result<T, IndexError> + Send + 'static,
    ) -> Result<T, IndexError> {
        let (reply, answer) = channel();
        let task: Task = Box::new(move |open| {
            let _ = reply.send(contained(|| task(open)));
        });
        let tasks = self.tasks.as_ref().ok_or(IndexError::Closed)?;
        tasks.send(task).map_err(|_| IndexError::Closed)?;
        answer.recv().unwrap_or(Err(IndexError::Closed))
    }
}

impl Drop for SledThread {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // sled's own lock is gone only when the thread is.
            let _ = thread.join();
        }
    }
}

/// Waits until sled's threads have let go of its file lock, which they may hold for a moment after
/// the database is dropped: what is closed can be opened again. Not for long; whoever opens it then
/// finds it locked and goes on without.
fn await_unlock(path: &Path) {
    for _ in 0..UNLOCK_CHECKS_MAX {
        let locked = File::open(path.join("db"))
            .is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
        if !locked {
            return;
        }
        std::thread::sleep(UNLOCK_CHECK_INTERVAL);
    }
    tracing::warn!(path = %path.display(), "the lock of a closed index is still held");
}

fn failed(error: sled::Error) -> IndexError {
    IndexError::Failed(error.to_string())
}

fn contained<T>(task: impl FnOnce() -> Result<T, IndexError>) -> Result<T, IndexError> {
    catch_unwind(AssertUnwindSafe(task)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(IndexError::Panicked(text.to_owned()))
    })
}

fn open(path: &PathBuf, cache_bytes: u64) -> Result<Open, IndexError> {
    let io = |error: std::io::Error| IndexError::Failed(error.to_string());
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(io)?;
    let db = sled::Config::new()
        .path(path)
        .segment_size(SEGMENT_BYTES)
        .cache_capacity(cache_bytes.max(CACHE_BYTES_MIN))
        .flush_every_ms(None)
        .open()
        .map_err(|error| match error {
            // sled has no better sign of this.
            sled::Error::Io(error) if error.to_string().contains("acquire lock") => {
                IndexError::Locked
            }
            other => failed(other),
        })?;
    private(path).map_err(io)?;
    // sled never syncs its configuration or directories; without this, an index that lost power
    // soon after its creation cannot be opened again.
    for name in ["conf", "db", "blobs"] {
        if let Ok(file) = File::open(path.join(name)) {
            file.sync_all().map_err(io)?;
        }
    }
    for dir in [Some(path.as_path()), path.parent()].into_iter().flatten() {
        if cfg!(unix) {
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(io)?;
        }
    }
    let file = File::options().read(true).write(true).open(path.join("db")).map_err(io)?;
    Ok(Open { db, file })
}

/// sled creates its files with the umask's mode; ids and keys are nobody else's business.
#[cfg(unix)]
fn private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let mode = if entry.file_type()?.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn private(_: &Path) -> std::io::Result<()> {
    Ok(())
}
