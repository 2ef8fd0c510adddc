//! What each job changes, inside a transaction.

use bytes::Bytes;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{EventBatch, StoreError};
use rusqlite::{Connection, params};

use super::claims::Claim;
use super::failure::Fault;
use super::queue::Job;
use super::rows::{SessionRow, StoreRow, place, value_crc};
use super::view::View;

/// The longest event, part or value: SQLite's bound on a row, less room for the rest of it.
const BODY_BYTES_MAX: usize = 999_000_000;

/// A transaction on its way.
pub(crate) struct Changes<'a> {
    connection: &'a Connection,
    pub(crate) store: StoreRow,
    /// Whether there is something to commit.
    pub(crate) any: bool,
}

impl<'a> Changes<'a> {
    pub(crate) fn begin(connection: &'a Connection) -> Result<Self, Fault> {
        Ok(Self { connection, store: StoreRow::read(connection)?, any: false })
    }

    fn view(&self) -> View<'a> {
        View { connection: self.connection, seal: self.store.seal() }
    }

    /// Does a job. One that is refused ([`Fault::Refused`]) has changed nothing; after any other
    /// fault the transaction must be taken back.
    pub(crate) fn apply(&mut self, job: &Job) -> Result<(), Fault> {
        match job {
            Job::Append { claim, batch } => self.append(claim, batch),
            Job::Tail { claim, attempt, part } => self.tail(claim, *attempt, part),
            Job::Materialize { claim } => match self.view().row(&claim.id)? {
                Some(_) => Ok(()),
                None => {
                    let row = self.new_row(claim)?;
                    self.put_row(&row)
                }
            },
            Job::Put { key, value } => self.put_value(key, value),
            Job::Remove { key } => self.remove_value(key),
            Job::Delete { id } => self.delete(id),
            Job::Barrier | Job::Close => Ok(()),
            #[cfg(test)]
            #[expect(clippy::panic, reason = "tests that panics are contained")]
            Job::Panic => panic!("a test asked for it"),
        }
    }

    fn append(&mut self, claim: &Claim, batch: &EventBatch) -> Result<(), Fault> {
        let stored = self.view().row(&claim.id)?;
        let expected = stored.as_ref().map_or(0, |row| row.next_seq);
        let (id, got) = (claim.id.clone(), batch.first_seq);
        if got > expected {
            return Err(StoreError::SequenceMismatch { id, expected, got }.into());
        }
        let known = usize::try_from(expected - got).unwrap_or(usize::MAX).min(batch.events.len());
        let (again, new) = batch.events.split_at(known);
        if let Some(row) = stored.as_ref().filter(|_| !again.is_empty()) {
            let held = self.view().events(row, got..got + again.len() as u64)?;
            let differs = |(held, again)| held != again;
            if let Some(at) = held.iter().zip(again).position(differs) {
                return Err(StoreError::Conflict { id, seq: got + at as u64 }.into());
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        for event in new {
            check_size(event)?;
        }
        // All places must exist before anything is changed.
        place(0, expected + new.len() as u64)?;
        let mut row = match stored {
            Some(row) => row,
            None => self.new_row(claim)?,
        };
        let seal = self.store.seal();
        for event in new {
            let place = place(row.number, row.next_seq)?;
            self.insert("events", place, seal.event(place, event), event)?;
            row.next_seq += 1;
            row.size_bytes += event.len() as u64;
        }
        self.put_row(&row)
    }

    fn tail(&mut self, claim: &Claim, attempt: u64, part: &Bytes) -> Result<(), Fault> {
        check_size(part)?;
        let mut row = match self.view().row(&claim.id)? {
            Some(row) => row,
            None => self.new_row(claim)?,
        };
        if row.tail_attempt != attempt || row.tail_parts == 0 {
            self.remove("tails", row.number)?;
            (row.tail_attempt, row.tail_parts) = (attempt, 0);
        }
        let place = place(row.number, row.tail_parts)?;
        self.insert("tails", place, self.store.seal().part(place, attempt, part), part)?;
        row.tail_parts += 1;
        self.put_row(&row)
    }

    fn put_value(&mut self, key: &str, value: &Bytes) -> Result<(), Fault> {
        check_size(value)?;
        let seal = self.store.seal();
        if let Some(old) = value_crc(self.connection, key)? {
            self.store.kv.take(seal.key(key, old));
        }
        let crc = seal.value(key, value);
        self.store.kv.add(seal.key(key, crc));
        self.any = true;
        self.connection
            .prepare_cached("REPLACE INTO kv VALUES (?1, ?2, ?3)")?
            .execute(params![key, crc, &**value])?;
        Ok(())
    }

    fn remove_value(&mut self, key: &str) -> Result<(), Fault> {
        let Some(old) = value_crc(self.connection, key)? else { return Ok(()) };
        self.store.kv.take(self.store.seal().key(key, old));
        self.any = true;
        self.connection.prepare_cached("DELETE FROM kv WHERE key = ?1")?.execute([key])?;
        Ok(())
    }

    fn delete(&mut self, id: &SessionId) -> Result<(), Fault> {
        let Some(row) = self.view().row(id)? else { return Ok(()) };
        self.any = true;
        self.remove("events", row.number)?;
        self.remove("tails", row.number)?;
        let gone = self
            .connection
            .prepare_cached("DELETE FROM sessions WHERE id = ?1")?
            .execute([&row.id])?;
        if gone != 1 {
            return Err(Fault::damaged("table sessions", "a row cannot be removed"));
        }
        self.store.sessions.take(self.store.seal().name(&row.id, row.number));
        Ok(())
    }

    /// The first row of a session, with a number of its own. Written with [`Self::put_row`].
    fn new_row(&mut self, claim: &Claim) -> Result<SessionRow, Fault> {
        if claim.is_stored() {
            return Err(Fault::damaged("table sessions", "the session's row is missing"));
        }
        let header = serde_json::to_vec(&*claim.header)
            .map_err(|error| StoreError::Argument(format!("header: {error}")))?;
        // A place's number has 31 bits.
        let number = self.store.last_session.checked_add(1).filter(|number| number >> 31 == 0);
        let number = number.ok_or_else(|| {
            StoreError::Argument("a SQLite store gives out at most 2^31 session numbers".to_owned())
        })?;
        self.store.last_session = number;
        self.store.sessions.add(self.store.seal().name(claim.id.as_str(), number));
        Ok(SessionRow {
            id: claim.id.as_str().to_owned(),
            number,
            inherited: claim.inherited,
            next_seq: 0,
            size_bytes: 0,
            tail_attempt: 0,
            tail_parts: 0,
            header: header.into(),
        })
    }

    fn put_row(&mut self, row: &SessionRow) -> Result<(), Fault> {
        self.any = true;
        row.write(self.connection, self.store.seal())
    }

    fn insert(&mut self, table: &str, place: i64, crc: i64, body: &Bytes) -> Result<(), Fault> {
        self.any = true;
        self.connection
            .prepare_cached(&format!("INSERT INTO {table} VALUES (?1, ?2, ?3)"))?
            .execute(params![place, crc, &**body])?;
        Ok(())
    }

    /// Removes all that a session has in a table.
    fn remove(&mut self, table: &str, number: u32) -> Result<(), Fault> {
        self.any = true;
        self.connection
            .prepare_cached(&format!("DELETE FROM {table} WHERE place BETWEEN ?1 AND ?2"))?
            .execute([place(number, 0)?, place(number, u64::from(u32::MAX))?])?;
        Ok(())
    }
}

fn check_size(body: &Bytes) -> Result<(), StoreError> {
    if body.len() <= BODY_BYTES_MAX {
        return Ok(());
    }
    let text = format!("a SQLite store takes at most {BODY_BYTES_MAX} bytes at once");
    Err(StoreError::Argument(text))
}
