//! Reading the database: every row checked, every gap noticed.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use playhouse_messages::event::Seq;
use playhouse_messages::header::SessionHeader;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{
    Revision, SessionStat, StoredSession, StoredTail, ValuePage, ValueQuery,
};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::failure::Fault;
use super::rows::{Seal, SessionRow, StoreRow, Sum, blob, place};
use crate::journal_store::parse_header;

/// A connection, and what the store's rows are sealed with.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) seal: Seal,
}

/// A page of session rows.
pub(crate) struct RowPage {
    pub(crate) rows: Vec<SessionRow>,
    /// Whether more lie behind.
    pub(crate) more: bool,
}

impl View<'_> {
    pub(crate) fn row(self, id: &SessionId) -> Result<Option<SessionRow>, Fault> {
        SessionRow::find(self.connection, self.seal, id.as_str()).or_else(|fault| {
            // A search may pass through a damaged page that a walk from the other side stops before.
            let rows = if fault.is_damage() { self.page("", usize::MAX - 1).rows } else { vec![] };
            rows.into_iter().find(|row| row.id == id.as_str()).map(Some).ok_or(fault)
        })
    }

    /// The events of `range` that are stored.
    pub(crate) fn events(self, row: &SessionRow, range: Range<Seq>) -> Result<Vec<Bytes>, Fault> {
        let range = range.start..range.end.min(row.next_seq);
        let seal = self.seal;
        let whole = self.bodies("events", row.number, range, |place, body| seal.event(place, body));
        // What lies behind the end shows only here, and costs a look at one place.
        match whole {
            Ok(_) if self.has_event(row.number, row.next_seq)? => {
                let place = format!("event {}", row.next_seq);
                Err(Fault::damaged(place, "it lies behind the session's end"))
            }
            whole => whole,
        }
    }

    fn has_event(self, number: u32, seq: u64) -> Result<bool, Fault> {
        let Ok(place) = place(number, seq) else { return Ok(false) };
        let mut statement =
            self.connection.prepare_cached("SELECT 1 FROM events WHERE place = ?1")?;
        Ok(statement.query_row([place], |_| Ok(())).optional()?.is_some())
    }

    fn tail(self, row: &SessionRow) -> Result<Option<StoredTail>, Fault> {
        if row.tail_parts == 0 {
            return Ok(None);
        }
        let (attempt, seal) = (row.tail_attempt, self.seal);
        let parts = self.bodies("tails", row.number, 0..row.tail_parts, |place, body| {
            seal.part(place, attempt, body)
        })?;
        Ok(Some(StoredTail { attempt, parts }))
    }

    /// The bodies at `range`, all of which must be there.
    fn bodies(
        self,
        table: &str,
        number: u32,
        range: Range<u64>,
        crc: impl Fn(i64, &[u8]) -> i64,
    ) -> Result<Vec<Bytes>, Fault> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let what = if table == "events" { "event" } else { "part of the tail" };
        let sql = format!(
            "SELECT place, crc, body FROM {table} WHERE place BETWEEN ?1 AND ?2 ORDER BY place"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let (first, last) = (place(number, range.start)?, place(number, range.end - 1)?);
        let mut rows = statement.query([first, last])?;
        let mut bodies = Vec::new();
        for index in range {
            let damaged = |cause| Fault::damaged(format!("{what} {index}"), cause);
            let Some(row) = rows.next()? else { return Err(damaged("it is missing")) };
            if row.get::<_, i64>(0)? != place(number, index)? {
                return Err(damaged("it is missing"));
            }
            let body = blob(row, 2)?;
            if row.get::<_, i64>(1)? != crc(place(number, index)?, &body) {
                return Err(damaged("its checksum does not match"));
            }
            bodies.push(body);
        }
        match rows.next()? {
            Some(_) => Err(Fault::damaged(format!("table {table}"), "rows are there twice")),
            None => Ok(bodies),
        }
    }

    /// A row's header, checked.
    pub(crate) fn header(self, row: &SessionRow) -> Result<Arc<SessionHeader>, Fault> {
        let id = SessionId::from(row.id.as_str());
        let corrupt = |cause| Fault::damaged("its header", cause);
        let header = parse_header(&id, &row.header)
            .map_err(|refused| refused.map_or_else(corrupt, Fault::Refused))?;
        if header.id != id {
            return Err(corrupt(format!("it says that it is session `{}`", header.id)));
        }
        Ok(Arc::new(header))
    }

    pub(crate) fn session(self, row: &SessionRow) -> Result<StoredSession, Fault> {
        Ok(StoredSession {
            header: self.header(row)?,
            inherited_event_count: row.inherited,
            events: self.events(row, 0..row.next_seq)?,
            tail: self.tail(row)?,
        })
    }

    pub(crate) fn stat(self, row: &SessionRow) -> Result<SessionStat, Fault> {
        Ok(SessionStat {
            header: self.header(row)?,
            event_count: row.next_seq,
            size_bytes: row.size_bytes,
            revision: Revision::new(u64::from(row.number), row.next_seq),
        })
    }

    /// Up to `limit` rows behind `after`. Rows that are damaged are left out, and where the table
    /// cannot be walked on, the walk goes back from its end to there.
    pub(crate) fn page(self, after: &str, limit: usize) -> RowPage {
        let mut seen = 0;
        let mut rows = Vec::new();
        let walk = SessionRow::scan(self.connection, self.seal, after, limit + 1, false, |row| {
            seen += 1;
            rows.extend(row.ok());
        });
        if walk.is_err() {
            let behind = rows.last().map_or(after, |row: &SessionRow| row.id.as_str()).to_owned();
            let mut rest = Vec::new();
            let back =
                SessionRow::scan(self.connection, self.seal, &behind, usize::MAX, true, |row| {
                    rest.extend(row.ok())
                });
            if let Err(fault) = back {
                tracing::debug!(?fault, "the catalog cannot be walked through");
            }
            seen = rows.len() + rest.len();
            rest.reverse();
            rows.append(&mut rest);
        }
        rows.truncate(limit);
        RowPage { rows, more: seen > limit }
    }

    pub(crate) fn value(self, key: &str) -> Result<Option<Bytes>, Fault> {
        let mut statement =
            self.connection.prepare_cached("SELECT crc, body FROM kv WHERE key = ?1")?;
        let mut rows = statement.query([key])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let body = blob(row, 1)?;
        if row.get::<_, i64>(0)? != self.seal.value(key, &body) {
            let place = format!("table kv, key `{}`", key.escape_debug());
            return Err(Fault::damaged(place, "its checksum does not match"));
        }
        Ok(Some(body))
    }

    pub(crate) fn values(self, query: &ValueQuery) -> Result<ValuePage, Fault> {
        let sql = "SELECT key FROM kv WHERE key > ?1 ORDER BY key LIMIT ?2";
        let after = query.after.as_deref().unwrap_or_default();
        let limit = query.limit.max(1).saturating_add(1);
        let mut statement = self.connection.prepare_cached(sql)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let keys = statement.query_map(params![after, limit], |row| row.get::<_, String>(0))?;
        Ok(ValuePage::of(query, keys.collect::<Result<Vec<_>, _>>()?))
    }

    /// Whether the tables of sessions and keys hold what the store says that they hold, each row
    /// whole and in order, so that a lookup misses nothing. Returns all damage.
    pub(crate) fn catalog_damages(self, store: &StoreRow) -> Vec<Fault> {
        let mut damages = Vec::new();
        let mut sum = Sum::default();
        let mut last = String::new();
        let walk =
            SessionRow::scan(self.connection, self.seal, "", usize::MAX, false, |row| match row {
                Ok(row) if row.id > last => {
                    sum.add(self.seal.name(&row.id, row.number));
                    last = row.id;
                }
                Ok(_) => damages.push(Fault::damaged("table sessions", "rows are out of order")),
                Err(fault) => damages.push(fault),
            });
        damages.extend(walk.err());
        if damages.is_empty() && sum != store.sessions {
            damages.push(missing("sessions", sum, store.sessions));
        }
        match self.keys() {
            Err(fault) => damages.push(fault),
            Ok(sum) if sum != store.kv => damages.push(missing("kv", sum, store.kv)),
            Ok(_) => {}
        }
        damages
    }

    fn keys(self) -> Result<Sum, Fault> {
        let mut statement = self.connection.prepare("SELECT key, crc FROM kv ORDER BY key")?;
        let mut rows = statement.query([])?;
        let (mut sum, mut last) = (Sum::default(), String::new());
        while let Some(row) = rows.next()? {
            let key = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
            if key <= last.as_str() {
                return Err(Fault::damaged("table kv", "rows are out of order"));
            }
            last = key.to_owned();
            sum.add(self.seal.key(&last, row.get(1)?));
        }
        Ok(sum)
    }
}

fn missing(table: &str, found: Sum, said: Sum) -> Fault {
    let cause = format!("it has {} rows, not the {} that were stored", found.rows, said.rows);
    Fault::damaged(format!("table {table}"), cause)
}
