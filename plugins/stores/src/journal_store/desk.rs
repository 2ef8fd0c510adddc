//! The desk: the thread that owns the journal's writer, and how it does a batch of jobs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use bytes::Bytes;
use playhouse_messages::{event::Seq, id::SessionId};
use playhouse_plugin_api::store::{EventBatch, StoreError};

use super::claim::Claim;
use super::core::{Core, Slot};
use super::failure::store_error;
use super::job::{Item, Job, Outcome};
use crate::journal::{Record, Urgency, Writer};

/// How many records the ledger tells of, beside the index, before it is folded: about a MiB.
const FRESH_RECORDS_MAX: usize = 8 << 10;

/// What the desk tells its committer after each batch of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    /// Whether something written is not durable yet.
    pub(crate) unsynced: bool,
}

/// Does jobs until the committer is gone, then leaves the writer to the next.
pub(crate) fn sit(core: Arc<Core>, inbox: Receiver<Vec<Item>>, tell: impl Fn(Report)) {
    let mut desk = Desk { core, writer: None };
    for items in inbox {
        let unsynced = desk.work(items);
        tell(Report { unsynced });
    }
}

struct Desk {
    core: Arc<Core>,
    writer: Option<Box<Writer>>,
}

impl Drop for Desk {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            if std::thread::panicking() {
                // It may have stopped anywhere; the next desk opens a new one.
                drop(writer);
                self.core.put_writer(Slot::Lost);
            } else {
                self.core.put_writer(Slot::Free(writer));
            }
        }
    }
}

/// What a set of jobs comes to: one batch for the journal.
#[derive(Default)]
struct Plan {
    records: Vec<Record>,
    /// One for each job: refused already, or waiting for the write.
    outcomes: Vec<Outcome>,
    sessions: HashMap<SessionId, Planned>,
    last_session: u64,
}

/// A session as it will be once the plan is written.
struct Planned {
    claim: Arc<Claim>,
    number: u64,
    next_seq: Seq,
    tail_serial: u32,
    /// The events that this plan adds, from `first_seq` on.
    first_seq: Seq,
    events: Vec<Bytes>,
}

impl Desk {
    /// Does the jobs: one write for all of them, then a sync if one asks for it.
    fn work(&mut self, items: Vec<Item>) -> bool {
        if self.writer.is_none() {
            match self.core.take_writer() {
                Ok(writer) => self.writer = Some(writer),
                Err(error) => {
                    answer(items, |_| Err(error.clone()));
                    return false;
                }
            }
        }
        let (writes, others): (Vec<Item>, Vec<Item>) = items
            .into_iter()
            .partition(|item| !matches!(item.job, Job::Barrier | Job::Sync | Job::Close));
        if !writes.is_empty() {
            self.write(writes);
        }
        let closing = others.iter().any(|item| matches!(item.job, Job::Close));
        let syncing = closing || others.iter().any(|item| matches!(item.job, Job::Sync));
        let mut outcome = if syncing { self.sync() } else { Ok(()) };
        if closing {
            let closed = self.close();
            outcome = outcome.and(closed);
        }
        answer(others, |job| match job {
            Job::Barrier => Ok(()),
            _ => outcome.clone(),
        });
        self.writer.as_ref().is_some_and(|writer| writer.is_unsynced())
    }

    fn write(&mut self, items: Vec<Item>) {
        let outcomes = self.write_all(&items, Urgency::Ordinary);
        let full = |outcome: &Outcome| matches!(outcome, Err(StoreError::Full { .. }));
        let closes = |item: &Item| item.job.closes();
        if !outcomes.iter().any(full) || !items.iter().any(closes) {
            for (item, outcome) in items.into_iter().zip(outcomes) {
                item.answer(outcome);
            }
            return;
        }
        // The disk is full: only what closes a turn gets the space that is set aside.
        let mut closers = Vec::new();
        for (item, outcome) in items.into_iter().zip(outcomes) {
            if full(&outcome) && item.job.closes() {
                closers.push(item);
            } else {
                item.answer(outcome);
            }
        }
        let outcomes = self.write_all(&closers, Urgency::Closing);
        for (item, outcome) in closers.into_iter().zip(outcomes) {
            item.answer(outcome);
        }
    }

    fn write_all(&mut self, items: &[Item], urgency: Urgency) -> Vec<Outcome> {
        let mut plan = Plan { last_session: self.core.ledger().last_session, ..Plan::default() };
        for item in items {
            let outcome = self.plan(&mut plan, &item.job);
            plan.outcomes.push(outcome);
        }
        if plan.records.is_empty() {
            return plan.outcomes;
        }
        // `work` has taken it.
        let Some(writer) = &mut self.writer else { return plan.outcomes };
        let written = writer.write(&plan.records, urgency);
        self.settle_moves();
        match written {
            Ok(written) => {
                let mut ledger = self.core.ledger();
                ledger.last_session = plan.last_session;
                ledger.fresh += written.entries.len();
                let recent = Arc::make_mut(&mut ledger.recent);
                for entry in &written.entries {
                    recent.apply(written.segment, entry);
                }
                drop(ledger);
                for planned in plan.sessions.into_values() {
                    let mut stored = planned.claim.stored();
                    (stored.number, stored.next_seq) = (Some(planned.number), planned.next_seq);
                    stored.tail_serial = planned.tail_serial;
                }
                plan.outcomes
            }
            Err(error) => {
                let error = store_error(&self.core.dir, error);
                let fail = |outcome: Outcome| outcome.and(Err(error.clone()));
                plan.outcomes.into_iter().map(fail).collect()
            }
        }
    }

    fn plan(&self, plan: &mut Plan, job: &Job) -> Outcome {
        match job {
            Job::Append { claim, batch } => self.plan_events(plan, claim, batch),
            Job::Tail { claim, attempt, serial, part } => {
                let (attempt, serial, part) = (*attempt, *serial, part.clone());
                let planned = self.planned(plan, claim)?;
                if serial > planned.tail_serial {
                    planned.tail_serial = serial;
                    let session = planned.number;
                    plan.records.push(Record::Tail { session, attempt, serial, part });
                }
                Ok(())
            }
            Job::Materialize { claim } => self.planned(plan, claim).map(|_| ()),
            Job::Put { key, value } => {
                let (key, value) = (key.clone(), value.clone());
                plan.records.push(Record::Kv { key, value });
                Ok(())
            }
            Job::Delete { number } => {
                plan.records.push(Record::Tombstone { session: *number });
                Ok(())
            }
            Job::Barrier | Job::Sync | Job::Close => Ok(()),
        }
    }

    /// The session in the plan; a new one gets its number and its record.
    fn planned<'a>(
        &self,
        plan: &'a mut Plan,
        claim: &Arc<Claim>,
    ) -> Result<&'a mut Planned, StoreError> {
        if !plan.sessions.contains_key(&claim.id) {
            let stored = *claim.stored();
            let number = match stored.number {
                Some(number) => {
                    self.core.stub(number)?;
                    number
                }
                None => {
                    let header = claim.header_json()?;
                    plan.last_session += 1;
                    plan.records.push(Record::Session {
                        session: plan.last_session,
                        id: claim.id.as_str().to_owned(),
                        inherited: claim.inherited,
                        header,
                    });
                    plan.last_session
                }
            };
            let planned = Planned {
                claim: Arc::clone(claim),
                number,
                next_seq: stored.next_seq,
                tail_serial: stored.tail_serial,
                first_seq: stored.next_seq,
                events: Vec::new(),
            };
            plan.sessions.insert(claim.id.clone(), planned);
        }
        plan.sessions.get_mut(&claim.id).ok_or(StoreError::Closed)
    }

    fn plan_events(&self, plan: &mut Plan, claim: &Arc<Claim>, batch: &EventBatch) -> Outcome {
        let expected = match plan.sessions.get(&claim.id) {
            Some(planned) => planned.next_seq,
            None => claim.stored().next_seq,
        };
        if batch.first_seq > expected {
            let (id, got) = (claim.id.clone(), batch.first_seq);
            return Err(StoreError::SequenceMismatch { id, expected, got });
        }
        let known = usize::try_from(expected - batch.first_seq).unwrap_or(usize::MAX);
        let known = known.min(batch.events.len());
        if known > 0 {
            self.compare(plan, claim, batch.first_seq, &batch.events[..known])?;
        }
        let new = &batch.events[known..];
        if new.is_empty() {
            return Ok(());
        }
        let planned = self.planned(plan, claim)?;
        let (session, first_seq) = (planned.number, planned.next_seq);
        planned.events.extend_from_slice(new);
        planned.next_seq += new.len() as u64;
        plan.records.push(Record::Events { session, first_seq, events: new.to_vec() });
        Ok(())
    }

    /// Events that are sent again must be the ones that are stored, or planned.
    fn compare(&self, plan: &Plan, claim: &Claim, first_seq: Seq, events: &[Bytes]) -> Outcome {
        let stored_next = claim.stored().next_seq;
        let stored = match claim.stored().number {
            Some(number) if first_seq < stored_next => {
                self.core.events(&claim.id, number, first_seq..first_seq + events.len() as u64)?
            }
            _ => Vec::new(),
        };
        let planned = plan.sessions.get(&claim.id);
        for (seq, event) in (first_seq..).zip(events) {
            let held = if seq < stored_next {
                stored.get(usize::try_from(seq - first_seq).unwrap_or(usize::MAX))
            } else {
                planned.and_then(|planned| {
                    planned.events.get(usize::try_from(seq - planned.first_seq).ok()?)
                })
            };
            if held != Some(event) {
                return Err(StoreError::Conflict { id: claim.id.clone(), seq });
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Outcome {
        let Some(writer) = &mut self.writer else { return Err(StoreError::Closed) };
        let synced = writer.sync();
        self.settle_moves();
        if synced.is_ok() {
            self.settle_index();
        }
        synced.map(|_| ()).map_err(|error| {
            tracing::warn!(%error, "a sync failed; the batch is kept, and the next flush tries again");
            store_error(&self.core.dir, error)
        })
    }

    /// The last batch may stand in another segment after a sync that failed.
    fn settle_moves(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        for moved in writer.take_moved() {
            let mut ledger = self.core.ledger();
            let (from, to) = (moved.offset, moved.to_offset);
            let recent = Arc::make_mut(&mut ledger.recent);
            recent.relocate(moved.segment, from, moved.to_segment, to);
        }
    }

    /// The index is written when a segment was sealed, or the ledger has grown: a segment of small
    /// sessions has many of them. Only after a sync: what is not synced may yet move, and a row that
    /// tells of it would go on telling where it was.
    fn settle_index(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        let sealed = !writer.take_sealed().is_empty();
        let is_due = {
            let ledger = self.core.ledger();
            ledger.index.is_some() && (sealed || ledger.fresh >= FRESH_RECORDS_MAX)
        };
        if is_due && let Err(error) = self.core.fold(writer, false) {
            tracing::error!(%error, "the index could not be given up cleanly");
        }
    }

    fn close(&mut self) -> Outcome {
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        let sealed = writer.seal().map_err(|error| store_error(&self.core.dir, error));
        for moved in writer.take_moved() {
            let mut ledger = self.core.ledger();
            let (from, to) = (moved.offset, moved.to_offset);
            let recent = Arc::make_mut(&mut ledger.recent);
            recent.relocate(moved.segment, from, moved.to_segment, to);
        }
        // Clean only if the journal ends in a footer: an unsealed one is read when it is opened.
        let clean = sealed.is_ok() && writer.is_sealed();
        let folded = self.core.fold(&writer, clean);
        // sled's lock and ours go with these.
        self.core.ledger().index = None;
        drop(writer);
        self.core.put_writer(Slot::Closed);
        sealed.and(folded)
    }
}

fn answer(items: Vec<Item>, outcome: impl Fn(&Job) -> Outcome) {
    for item in items {
        let outcome = outcome(&item.job);
        item.answer(outcome);
    }
}
