//! From a directory to a database that can be written, and back.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::iter;
use std::path::Path;

use playhouse_plugin_api::store::StoreError;
use rusqlite::Connection;

use super::SqliteConfig;
use super::failure::{Fault, io_error};
use super::rows::StoreRow;
use super::schema::{FILE, check, connect, create};
use super::view::View;
use super::wal;
use crate::journal::{Disk as _, Held, LockOutcome, RealDisk};
use crate::journal_store::fresh_id;

/// Locked by the process that writes.
const LOCK: &str = "lock";
/// A database that is being made.
const DRAFT: &str = "sessions.sqlite.draft";

/// Takes the store's lock.
pub(crate) fn lock(dir: &Path) -> Result<Box<dyn Held>, StoreError> {
    let path = dir.join(LOCK);
    match RealDisk.lock(&path).map_err(|error| io_error("lock", &path, &error))? {
        LockOutcome::Held(held) => Ok(held),
        LockOutcome::Busy(pid) => Err(StoreError::InUse {
            path: dir.display().to_string(),
            owner: pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}")),
        }),
    }
}

/// Makes the directory if it is not there, takes its lock, and makes the database if there is none.
pub(crate) fn prepare(dir: &Path, config: &SqliteConfig) -> Result<Box<dyn Held>, StoreError> {
    RealDisk.create_dir_all(dir).map_err(|error| io_error("create", dir, &error))?;
    let held = lock(dir)?;
    let file = dir.join(FILE);
    match std::fs::symlink_metadata(&file) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => make(dir, &file, config)?,
        Err(error) => return Err(io_error("open", &file, &error)),
    }
    // Each time: who made these names may have died before they were durable.
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    for dir in iter::once(dir).chain(parent) {
        RealDisk.sync_dir(dir).map_err(|error| io_error("sync", dir, &error))?;
    }
    Ok(held)
}

/// Makes the database under another name until it is whole: a `sessions.sqlite` without tables is
/// damaged.
fn make(dir: &Path, file: &Path, config: &SqliteConfig) -> Result<(), StoreError> {
    let log = wal::path(dir);
    if log.exists() {
        return Err(StoreError::Io {
            what: format!("opening the store at {}", dir.display()),
            cause: format!(
                "{} is there without its {FILE}; bring that back, or move it aside",
                log.display()
            ),
        });
    }
    let draft = dir.join(DRAFT);
    let failed = |what, error| io_error(what, &draft, &error);
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("remove", error)),
        _ => {}
    }
    RealDisk.create(&draft).map_err(|error| failed("create", error))?;
    create(&draft, config.page_bytes, fresh_id()).map_err(|fault| fault.of_store(dir))?;
    sync(&draft)?;
    std::fs::rename(&draft, file).map_err(|error| failed("rename", error))
}

fn sync(path: &Path) -> Result<(), StoreError> {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| File::sync_all(&file)).map_err(|error| io_error("sync", path, &error))
}

/// The damage of files that SQLite would not notice, before it opens them.
pub(crate) fn check_files(dir: &Path) -> Result<(), StoreError> {
    let file = dir.join(FILE);
    let found =
        std::fs::symlink_metadata(&file).map_err(|error| io_error("open", &file, &error))?;
    if !found.is_file() {
        let text = format!("{} is no regular file; a store's database must be one", file.display());
        return Err(StoreError::Argument(text));
    }
    if found.len() == 0 {
        // SQLite would take it for one that is yet to be made.
        return Err(Fault::damaged("file header", "the file is empty").of_store(dir));
    }
    let log = wal::path(dir);
    match wal::damage(dir).map_err(|error| io_error("read", &log, &error))? {
        None => Ok(()),
        Some(damage) => Err(StoreError::Io {
            what: format!("reading the store at {}", dir.display()),
            cause: format!(
                "{FILE}-wal is damaged at offset {}: {}; move it aside to go on with what was in the \
                 store before it was begun",
                damage.offset, damage.cause
            ),
        }),
    }
}

/// A connection that may write; what lies in the log is durable and the log is empty, unless a reader
/// holds it. The lock must be held.
pub(crate) fn begin_writing(dir: &Path, config: &SqliteConfig) -> Result<Connection, Fault> {
    check_files(dir)?;
    // A writer that was killed may have left commits that it never synced. Nobody who finds them
    // again may call them durable before they are.
    if wal::path(dir).exists() {
        sync(&wal::path(dir))?;
    }
    let connection = connect(&dir.join(FILE), true, config.busy_timeout)?;
    check(&connection, dir)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // No effect but on macOS, where a sync is none without it.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    let mode = begin_log(&connection)?;
    let synchronous: i64 = connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?;
    if mode != "wal" || synchronous != 2 {
        return Err(Fault::Refused(StoreError::Io {
            what: format!("using {}", dir.join(FILE).display()),
            cause: format!("SQLite gives journal mode {mode}, synchronous {synchronous}"),
        }));
    }
    checkpoint(&connection)?;
    #[cfg(test)]
    if let Some(pages) = config.pages_max {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    Ok(connection)
}

/// Turns the log on. The file's header says whether there is one, and SQLite would change it under a
/// rollback journal; a reader that finds that journal after a crash can read nothing, since it may not
/// roll back. Without one the change is one write to the header's sector, which a crash leaves done or
/// not done, and either is right.
fn begin_log(connection: &Connection) -> Result<String, Fault> {
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if mode != "wal" {
        set_journal_mode(connection, "off")?;
    }
    set_journal_mode(connection, "wal")
}

fn set_journal_mode(connection: &Connection, mode: &str) -> Result<String, Fault> {
    Ok(connection.pragma_update_and_check(None, "journal_mode", mode, |row| row.get(0))?)
}

/// Copies the log into the database, and empties it unless a reader holds it.
fn checkpoint(connection: &Connection) -> Result<(), Fault> {
    Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
}

/// Leaves one file, unless another process reads it just now.
pub(crate) fn end_writing(connection: Connection) -> Result<(), Fault> {
    checkpoint(&connection)?;
    // Not to "delete": see `begin_log`.
    if let Err(fault) = set_journal_mode(&connection, "off") {
        tracing::debug!(?fault, "the log stays, since somebody reads the store");
    }
    connection.close().map_err(|(_, error)| error.into())
}

/// The store's row, and that its catalog is whole.
pub(crate) fn check_catalog(connection: &Connection) -> Result<StoreRow, Fault> {
    let snapshot = connection.unchecked_transaction()?;
    let store = StoreRow::read(&snapshot)?;
    let view = View { connection: &snapshot, seal: store.seal() };
    match view.catalog_damages(&store).into_iter().next() {
        Some(fault) => Err(fault),
        None => Ok(store),
    }
}
