//! Rows and their checksums: SQLite does not notice a flipped bit in a page, so each row says what
//! it is and that it is whole.

use bytes::Bytes;
use crc32fast::Hasher;
use playhouse_plugin_api::store::StoreError;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::failure::Fault;

/// Checksums that hold in one store only, so that a page of another one's file is no row of this.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seal(u32);

impl Seal {
    pub(crate) fn of(store: &[u8]) -> Self {
        Self(crc32fast::hash(store))
    }

    /// Over the table, then each field with its length.
    fn over(self, table: &str, fields: &[&[u8]]) -> i64 {
        let mut hasher = Hasher::new_with_initial(self.0);
        for field in [table.as_bytes()].iter().chain(fields) {
            hasher.update(&(field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
        i64::from(hasher.finalize())
    }

    pub(crate) fn event(self, place: i64, body: &[u8]) -> i64 {
        self.over("events", &[&place.to_le_bytes(), body])
    }

    pub(crate) fn part(self, place: i64, attempt: u64, body: &[u8]) -> i64 {
        self.over("tails", &[&place.to_le_bytes(), &attempt.to_le_bytes(), body])
    }

    pub(crate) fn value(self, key: &str, body: &[u8]) -> i64 {
        self.over("kv", &[key.as_bytes(), body])
    }

    /// What a key and its value's checksum add to the sum over all: a key that has turned into
    /// another one must show too.
    pub(crate) fn key(self, key: &str, crc: i64) -> i64 {
        self.over("keys", &[key.as_bytes(), &crc.to_le_bytes()])
    }

    /// What a session adds to the sum over all.
    pub(crate) fn name(self, id: &str, number: u32) -> i64 {
        self.over("names", &[id.as_bytes(), &number.to_le_bytes()])
    }
}

/// Where a session's event or part lies.
pub(crate) fn place(number: u32, index: u64) -> Result<i64, StoreError> {
    match u32::try_from(index) {
        Ok(index) => Ok(i64::from(number) << 32 | i64::from(index)),
        Err(_) => {
            let text = "a session of a SQLite store holds at most 2^32 events or parts of a tail";
            Err(StoreError::Argument(text.to_owned()))
        }
    }
}

/// The one row of `store`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreRow {
    pub(crate) id: [u8; 16],
    /// Counts commits; also the row that every commit changes, by which two commits in the log are
    /// told apart if a frame between them is damaged.
    commits: i64,
    /// The highest number that was ever given.
    pub(crate) last_session: u32,
    pub(crate) sessions: Sum,
    pub(crate) kv: Sum,
}

/// How many rows a table has, and the sum over them: says whether one is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) rows: i64,
    total: i64,
}

impl Sum {
    pub(crate) fn add(&mut self, sum: i64) {
        self.rows += 1;
        self.total = self.total.wrapping_add(sum);
    }

    pub(crate) fn take(&mut self, sum: i64) {
        self.rows -= 1;
        self.total = self.total.wrapping_sub(sum);
    }
}

impl StoreRow {
    pub(crate) fn new(id: [u8; 16]) -> Self {
        let (sessions, kv) = (Sum::default(), Sum::default());
        Self { id, commits: 0, last_session: 0, sessions, kv }
    }

    pub(crate) fn seal(&self) -> Seal {
        Seal::of(&self.id)
    }

    fn numbers(&self) -> [i64; 6] {
        let Self { commits, last_session, sessions, kv, .. } = self;
        [*commits, i64::from(*last_session), sessions.rows, sessions.total, kv.rows, kv.total]
    }

    fn crc(&self) -> i64 {
        let numbers = self.numbers().map(i64::to_le_bytes);
        self.seal().over("store", &[numbers.as_flattened()])
    }

    pub(crate) fn read(connection: &Connection) -> Result<Self, Fault> {
        let mut statement = connection.prepare_cached(
            "SELECT id, commits, last_session, sessions, sessions_sum, kv, kv_sum, crc FROM store \
             WHERE one = 1",
        )?;
        let mut rows = statement.query([])?;
        let Some(row) = rows.next()? else {
            return Err(Fault::damaged("table store", "its row is missing"));
        };
        let found = Self {
            id: row.get(0)?,
            commits: row.get(1)?,
            last_session: row.get(2)?,
            sessions: Sum { rows: row.get(3)?, total: row.get(4)? },
            kv: Sum { rows: row.get(5)?, total: row.get(6)? },
        };
        match row.get::<_, i64>(7)? == found.crc() {
            true => Ok(found),
            false => Err(Fault::damaged("table store", "its checksum does not match")),
        }
    }

    /// Writes it with the next number of a commit.
    pub(crate) fn write(&mut self, connection: &Connection) -> Result<(), Fault> {
        self.commits += 1;
        let [commits, last, sessions, sessions_sum, kv, kv_sum] = self.numbers();
        connection
            .prepare_cached("REPLACE INTO store VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?
            .execute(params![
                self.id,
                commits,
                last,
                sessions,
                sessions_sum,
                kv,
                kv_sum,
                self.crc()
            ])?;
        Ok(())
    }
}

/// A row of `sessions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionRow {
    pub(crate) id: String,
    /// Never given twice.
    pub(crate) number: u32,
    pub(crate) inherited: u64,
    pub(crate) next_seq: u64,
    pub(crate) size_bytes: u64,
    pub(crate) tail_attempt: u64,
    /// 0 if there is no tail.
    pub(crate) tail_parts: u64,
    pub(crate) header: Bytes,
}

const SESSION_COLUMNS: &str =
    "id, number, inherited, next_seq, size_bytes, tail_attempt, tail_parts, header, crc";

impl SessionRow {
    fn crc(&self, seal: Seal) -> i64 {
        let Self { id, number, header, .. } = self;
        let numbers = [
            u64::from(*number),
            self.inherited,
            self.next_seq,
            self.size_bytes,
            self.tail_attempt,
            self.tail_parts,
        ]
        .map(u64::to_le_bytes);
        seal.over("sessions", &[id.as_bytes(), numbers.as_flattened(), header])
    }

    /// The row, or what is wrong with it, and the id that it seems to have.
    fn decode(row: &Row<'_>, seal: Seal) -> Result<Self, Fault> {
        let found = Self {
            id: row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?.to_owned(),
            number: row.get(1)?,
            inherited: row.get::<_, i64>(2)?.cast_unsigned(),
            next_seq: row.get::<_, i64>(3)?.cast_unsigned(),
            size_bytes: row.get::<_, i64>(4)?.cast_unsigned(),
            tail_attempt: row.get::<_, i64>(5)?.cast_unsigned(),
            tail_parts: row.get::<_, i64>(6)?.cast_unsigned(),
            header: blob(row, 7)?,
        };
        match row.get::<_, i64>(8)? == found.crc(seal) {
            true => Ok(found),
            false => {
                let place = format!("table sessions, row `{}`", found.id.escape_debug());
                Err(Fault::damaged(place, "its checksum does not match"))
            }
        }
    }

    pub(crate) fn find(
        connection: &Connection,
        seal: Seal,
        id: &str,
    ) -> Result<Option<Self>, Fault> {
        let sql = format!("SELECT {SESSION_COLUMNS} FROM sessions WHERE id = ?1");
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query([id])?;
        rows.next()?.map(|row| Self::decode(row, seal)).transpose()
    }

    /// Up to `limit` rows with ids behind `after`, from the first on or from the `last` on; `each`
    /// gets a row or what is wrong with it.
    pub(crate) fn scan(
        connection: &Connection,
        seal: Seal,
        after: &str,
        limit: usize,
        last: bool,
        mut each: impl FnMut(Result<Self, Fault>),
    ) -> Result<(), Fault> {
        let order = if last { "DESC" } else { "ASC" };
        let sql = format!(
            "SELECT {SESSION_COLUMNS} FROM sessions WHERE id > ?1 ORDER BY id {order} LIMIT ?2"
        );
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![after, i64::try_from(limit).unwrap_or(i64::MAX)])?;
        while let Some(row) = rows.next()? {
            each(Self::decode(row, seal));
        }
        Ok(())
    }

    pub(crate) fn write(&self, connection: &Connection, seal: Seal) -> Result<(), Fault> {
        connection
            .prepare_cached("REPLACE INTO sessions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?
            .execute(params![
                self.id,
                self.number,
                self.inherited.cast_signed(),
                self.next_seq.cast_signed(),
                self.size_bytes.cast_signed(),
                self.tail_attempt.cast_signed(),
                self.tail_parts.cast_signed(),
                &*self.header,
                self.crc(seal)
            ])?;
        Ok(())
    }
}

/// The checksum of a key's value, if there is one.
pub(crate) fn value_crc(connection: &Connection, key: &str) -> Result<Option<i64>, Fault> {
    let mut statement = connection.prepare_cached("SELECT crc FROM kv WHERE key = ?1")?;
    Ok(statement.query_row([key], |row| row.get(0)).optional()?)
}

pub(crate) fn blob(row: &Row<'_>, at: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(at)?.as_blob()?))
}
