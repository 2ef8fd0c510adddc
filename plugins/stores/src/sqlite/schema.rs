//! The database: its tables, what marks it as ours, and connections to it.

use std::path::Path;
use std::time::Duration;

use playhouse_plugin_api::store::StoreError;
use rusqlite::{Connection, OpenFlags};

use super::failure::Fault;
use super::rows::StoreRow;

/// The database's file in the store's directory.
pub(crate) use crate::kind::SQLITE_FILE as FILE;

/// "PLHS" in the file's header, where tools look for the kind of a database.
const APPLICATION_ID: i64 = 0x504c_4853;

/// Of the tables and of what is in them.
const SCHEMA_VERSION: i64 = 1;

/// The tables, as `sqlite_schema` must show them.
///
/// A `place` is a session's number times 2^32, plus a seq or the number of a part. Ids and keys lie in
/// tables without rowids, so that one scan of the rows also walks all that a search would.
const TABLES: [(&str, &str); 5] = [
    (
        "store",
        "CREATE TABLE store (one INTEGER PRIMARY KEY, id BLOB NOT NULL, commits INTEGER NOT NULL, \
         last_session INTEGER NOT NULL, sessions INTEGER NOT NULL, sessions_sum INTEGER NOT NULL, \
         kv INTEGER NOT NULL, kv_sum INTEGER NOT NULL, crc INTEGER NOT NULL) STRICT",
    ),
    (
        "sessions",
        "CREATE TABLE sessions (id TEXT PRIMARY KEY, number INTEGER NOT NULL, inherited INTEGER NOT \
         NULL, next_seq INTEGER NOT NULL, size_bytes INTEGER NOT NULL, tail_attempt INTEGER NOT \
         NULL, tail_parts INTEGER NOT NULL, header BLOB NOT NULL, crc INTEGER NOT NULL) STRICT, \
         WITHOUT ROWID",
    ),
    (
        "events",
        "CREATE TABLE events (place INTEGER PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL) \
         STRICT",
    ),
    (
        "tails",
        "CREATE TABLE tails (place INTEGER PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL) \
         STRICT",
    ),
    (
        "kv",
        "CREATE TABLE kv (key TEXT PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL) STRICT, \
         WITHOUT ROWID",
    ),
];

/// A connection to a database that is there; changes nothing unless `write`.
pub(crate) fn connect(file: &Path, write: bool, busy: Duration) -> rusqlite::Result<Connection> {
    let access =
        if write { OpenFlags::SQLITE_OPEN_READ_WRITE } else { OpenFlags::SQLITE_OPEN_READ_ONLY };
    let connection = Connection::open_with_flags(file, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(busy)?;
    // Pages are looked at before they are believed, and nothing in the schema may run code.
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // Frames in the log are those of commits, and of nothing that was taken back.
    connection.pragma_update(None, "cache_spill", false)?;
    Ok(connection)
}

/// A connection that only reads, also what is left of a database that is cut short. SQLite would refuse
/// all of that, unless it is told that the schema may be damaged; a page behind the cut is refused.
pub(crate) fn connect_to_wreck(file: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    let connection = connect(file, false, busy)?;
    connection.pragma_update(None, "writable_schema", true)?;
    Ok(connection)
}

/// Makes the tables in an empty file.
pub(crate) fn create(file: &Path, page_bytes: u32, id: [u8; 16]) -> Result<(), Fault> {
    let mut connection = connect(file, true, Duration::ZERO)?;
    connection.pragma_update(None, "page_size", page_bytes)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // A draft that is half made is thrown away, not rolled back, and leaves no second file.
    connection.pragma_update(None, "journal_mode", "off")?;
    let transaction = connection.transaction()?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    for (_, sql) in TABLES {
        transaction.execute(sql, [])?;
    }
    StoreRow::new(id).write(&transaction)?;
    transaction.commit()?;
    connection.close().map_err(|(_, error)| error.into())
}

/// Whether the database is one of ours, of this version, with the tables that it should have.
pub(crate) fn check(connection: &Connection, dir: &Path) -> Result<(), Fault> {
    let number = |pragma| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    if number("PRAGMA application_id")? != APPLICATION_ID {
        return Err(Fault::Refused(StoreError::Argument(format!(
            "{} is a database, but no Playhouse store; name another directory",
            dir.join(FILE).display()
        ))));
    }
    let version = number("PRAGMA user_version")?;
    if version != SCHEMA_VERSION {
        return Err(Fault::Refused(StoreError::FormatUnsupported {
            what: format!("the store at {}", dir.display()),
            cause: format!(
                "{FILE} has schema version {version}, and this version knows {SCHEMA_VERSION}; \
                 upgrade Playhouse"
            ),
        }));
    }
    if number("PRAGMA auto_vacuum")? != 0 {
        return Err(Fault::damaged("file header", "it is not vacuumed by itself, but says so"));
    }
    let encoding: String = connection.query_row("PRAGMA encoding", [], |row| row.get(0))?;
    if encoding != "UTF-8" {
        return Err(Fault::damaged("file header", format!("texts are said to be {encoding}")));
    }
    let mut statement =
        connection.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid")?;
    let mut rows = statement.query([])?;
    let mut expected = TABLES.iter();
    while let Some(row) = rows.next()? {
        let text = |at| -> rusqlite::Result<&[u8]> { Ok(row.get_ref(at)?.as_bytes()?) };
        let is_right = expected.next().is_some_and(|(name, sql)| {
            [text(0), text(1), text(2), text(3)]
                .into_iter()
                .zip(["table", name, name, sql])
                .all(|(found, right)| found.is_ok_and(|found| found == right.as_bytes()))
        });
        if !is_right {
            let name = String::from_utf8_lossy(text(1).unwrap_or_default()).into_owned();
            return Err(Fault::damaged("schema", format!("`{name}` is not as it was made")));
        }
    }
    match expected.next() {
        Some((name, _)) => Err(Fault::damaged("schema", format!("the table `{name}` is missing"))),
        None => Ok(()),
    }
}
