//! Verifying a store: every page by SQLite, every row by its checksum.

use std::path::Path;

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::StoreError;
use rusqlite::Connection;

use super::SqliteConfig;
use super::failure::Fault;
use super::reader::{connect_to_read, look};
use super::rows::SessionRow;
use super::view::View;
use crate::kind::StoreKind;
use crate::verify::{Progress, VerifyReport, check_events};

/// Reads everything of the store in `dir`.
pub(crate) fn verify_sqlite(
    dir: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<VerifyReport, StoreError> {
    let fail = |fault: Fault| fault.of_store(dir);
    let busy = SqliteConfig::default().busy_timeout;
    let connection = connect_to_read(dir, busy).map_err(fail)?;
    let snapshot = connection.unchecked_transaction().map_err(|error| fail(error.into()))?;
    let (store, damages) = look(dir, &snapshot, busy).map_err(fail)?;
    let view = View { connection: &snapshot, seal: store.seal() };
    let mut report = VerifyReport::new(StoreKind::Sqlite, dir);
    report.damages = damages;
    let mut note = |fault: Fault| report.damages.push(fault.words(dir));
    let pages = snapshot.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0));
    let pages = pages.unwrap_or_else(|error| {
        note(error.into());
        0
    });
    if let Err(fault) = check_pages(&snapshot, &mut |damage| {
        note(Fault::damaged("pages", damage));
    }) {
        note(fault);
    }
    report.parts = vec![("pages", pages.cast_unsigned())];
    let mut rows = Vec::new();
    let walk = SessionRow::scan(&snapshot, view.seal, "", usize::MAX, false, |row| {
        rows.extend(row.ok());
    });
    if walk.is_err() {
        // The catalog's damage has said so; its other end may be readable.
        rows = view.page("", usize::MAX - 1).rows;
    }
    report.sessions = rows.len() as u64;
    let (mut events, mut parts) = (0, 0);
    for (done, row) in (1..).zip(&rows) {
        let id = SessionId::from(row.id.as_str());
        (events, parts) = (events + row.next_seq, parts + row.tail_parts);
        let read = view.session(row).map_err(|fault| fault.of_session(dir, &id));
        match read.and_then(|stored| check_events(&id, &stored)) {
            Ok(events) => report.events += events,
            Err(error) => report.unreadable.push((id, error)),
        }
        progress(Progress { done, all: report.sessions });
    }
    let mut note = |fault: Fault| report.damages.push(fault.words(dir));
    for (table, expected) in [("events", events), ("tails", parts)] {
        match count(&snapshot, table) {
            Ok(found) if found == expected => {}
            Ok(found) => {
                let cause = format!("it has {found} rows, and the sessions have {expected}");
                note(Fault::damaged(format!("table {table}"), cause));
            }
            Err(fault) => note(fault),
        }
    }
    for fault in value_faults(view) {
        note(fault);
    }
    Ok(report)
}

/// What SQLite itself finds: pages that are used twice or never, cells that overlap, keys that are
/// out of order.
pub(super) fn check_pages(
    connection: &Connection,
    note: &mut dyn FnMut(String),
) -> Result<(), Fault> {
    let mut statement = connection.prepare("PRAGMA integrity_check")?;
    let mut lines = statement.query([])?;
    while let Some(line) = lines.next()? {
        let line: String = line.get(0)?;
        if line != "ok" {
            note(line);
        }
    }
    Ok(())
}

fn count(connection: &Connection, table: &str) -> Result<u64, Fault> {
    let count: i64 =
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

fn value_faults(view: View<'_>) -> Vec<Fault> {
    let keys = || -> Result<Vec<String>, Fault> {
        let mut statement = view.connection.prepare("SELECT key FROM kv ORDER BY key")?;
        let keys = statement.query_map([], |row| row.get(0))?;
        Ok(keys.collect::<Result<_, _>>()?)
    };
    match keys() {
        Ok(keys) => keys.iter().filter_map(|key| view.value(key).err()).collect(),
        Err(fault) => vec![fault],
    }
}
