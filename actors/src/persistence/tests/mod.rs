//! The writer over a store that fails, waits and panics when told to.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod contract;
mod scenario;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    event::{NewEvent, Seq},
    header::SessionHeader,
    log::Log,
    protocol::{CommandNo, WriterMessage},
    session::{Command, Mint, SessionCore},
    session_state::KnownKinds,
};
use playhouse_plugin_api::{
    session::{Session, SessionCell, SessionError},
    store::{EventBatch, SessionWriter, StoreError},
    undurable::Undurable,
};
use ractor::{Actor, ActorRef};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle};

use super::{WriterActor, WriterArgs};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Append,
    Flush,
    Close,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Error,
    Panic,
}

#[derive(Default)]
struct Shelf {
    events: Vec<Bytes>,
    durable: usize,
    /// The first seq and length of every append that worked.
    batches: Vec<(Seq, usize)>,
    tried: HashMap<Op, usize>,
    faults: HashMap<Op, Vec<Fault>>,
    under_way: usize,
    closed: bool,
}

/// A write handle on memory. What it is told to hold is under way until it is let go.
struct Medium {
    shelf: Mutex<Shelf>,
    held: watch::Sender<Option<Op>>,
    begun: watch::Sender<usize>,
}

impl Medium {
    fn new() -> Arc<Self> {
        let (held, begun) = (watch::Sender::new(None), watch::Sender::new(0));
        Arc::new(Self { shelf: Mutex::default(), held, begun })
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap()
    }

    /// Lets the next operations of a kind fail.
    fn fail(&self, op: Op, times: usize) {
        self.shelf().faults.insert(op, vec![Fault::Error; times]);
    }

    fn hold(&self, op: Op) {
        self.held.send_replace(Some(op));
    }

    fn release(&self) {
        self.held.send_replace(None);
    }

    fn tried(&self, op: Op) -> usize {
        self.shelf().tried.get(&op).copied().unwrap_or(0)
    }

    /// Waits for so many operations to have begun.
    async fn begun(&self, count: usize) {
        self.begun.subscribe().wait_for(|begun| *begun >= count).await.unwrap();
    }

    /// One operation: begins now, waits while it is held, then fails or is done.
    fn operate(
        self: &Arc<Self>,
        op: Op,
        done: impl FnOnce(&mut Shelf) -> Result<(), StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let medium = Arc::clone(self);
        {
            let mut shelf = self.shelf();
            *shelf.tried.entry(op).or_default() += 1;
            shelf.under_way += 1;
            assert_eq!(shelf.under_way, 1, "two operations at once");
        }
        async move {
            medium.begun.send_modify(|begun| *begun += 1);
            medium.held.subscribe().wait_for(|held| *held != Some(op)).await.unwrap();
            let fault = {
                let mut shelf = medium.shelf();
                shelf.under_way -= 1;
                shelf.faults.get_mut(&op).and_then(Vec::pop)
            };
            match fault {
                None => done(&mut medium.shelf()),
                Some(Fault::Panic) => panic!("a store that panics"),
                Some(Fault::Error) => {
                    if op == Op::Close {
                        medium.shelf().closed = true;
                    }
                    Err(broken())
                }
            }
        }
        .boxed()
    }
}

fn broken() -> StoreError {
    StoreError::Io { what: "writing".to_owned(), cause: "broken".to_owned() }
}

struct Handle(Arc<Medium>);

impl SessionWriter for Handle {
    fn append(&self, batch: EventBatch) -> BoxFuture<'static, Result<(), StoreError>> {
        self.0.operate(Op::Append, move |shelf| {
            batch.check()?;
            for (seq, event) in (batch.first_seq as usize..).zip(&batch.events) {
                match shelf.events.get(seq) {
                    Some(stored) => assert_eq!(stored, event, "sent again, and other"),
                    None => {
                        assert_eq!(shelf.events.len(), seq, "a gap");
                        shelf.events.push(event.clone());
                    }
                }
            }
            shelf.batches.push((batch.first_seq, batch.events.len()));
            Ok(())
        })
    }

    fn tail(&self, _: u64, _: Bytes) -> BoxFuture<'static, Result<(), StoreError>> {
        futures::future::ready(Ok(())).boxed()
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.0.operate(Op::Flush, |shelf| {
            shelf.durable = shelf.events.len();
            Ok(())
        })
    }

    fn close(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.0.operate(Op::Close, |shelf| {
            (shelf.durable, shelf.closed) = (shelf.events.len(), true);
            Ok(())
        })
    }
}

struct Fixed;

impl Mint for Fixed {
    fn now(&mut self) -> i64 {
        1
    }

    fn message_id(&mut self) -> playhouse_messages::id::MessageId {
        "m".into()
    }
}

/// A session, its writer, and what the writer writes to.
struct Rig {
    core: SessionCore,
    cell: Arc<SessionCell>,
    medium: Arc<Medium>,
    commands: u64,
}

impl Rig {
    async fn new(id: &str) -> Self {
        let header = Arc::new(SessionHeader::new(id.into(), 1));
        let known = Arc::new(KnownKinds::new());
        let core = SessionCore::load(header, Log::new(), &known).unwrap();
        let medium = Medium::new();
        let handle: Arc<dyn SessionWriter> = Arc::new(Handle(Arc::clone(&medium)));
        let cell = SessionCell::new(&core, 0, known, Some(handle), 0, Undurable::new(0));
        let rig = Self { core, cell, medium, commands: 0 };
        rig.spawn().await;
        rig
    }

    /// Starts a writer, as the supervisor does.
    async fn spawn(&self) -> ActorRef<WriterMessage> {
        let args =
            WriterArgs { cell: self.cell.clone(), handle: Arc::clone(self.cell.handle().unwrap()) };
        let (actor, _) = Actor::spawn(None, WriterActor, args).await.unwrap();
        self.cell.writer.fill(actor.clone());
        actor
    }

    /// Accepts so many events with one command, as the session's actor does.
    fn accept(&mut self, count: u64) {
        let before = self.core.log().len();
        let note = |n| NewEvent::custom("x/note", json!({"n": n})).ignorable();
        let command = Command::Append((0..count).map(note).collect());
        let reply = self.core.execute(command, &mut Fixed);
        self.commands += 1;
        let number = CommandNo { origin: 1, number: self.commands };
        self.cell.publish(&self.core, before, number, &reply).unwrap();
        self.cell.writer.cast(WriterMessage::Append).ok().unwrap();
    }

    /// Lets whatever can move do so: more turns than any chain of messages here is long.
    async fn settle(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    /// Lets time pass.
    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
        self.settle().await;
    }

    async fn flush(&self) -> Result<bool, SessionError> {
        Session::new(self.cell.clone()).flush().await
    }

    /// A flush that is asked for now.
    async fn flushing(&self) -> JoinHandle<Result<bool, SessionError>> {
        let session = Session::new(self.cell.clone());
        let task = tokio::spawn(async move { session.flush().await });
        self.settle().await;
        task
    }

    async fn close(&self) -> Result<(), Failure> {
        self.cell.writer.call(|_, reply| WriterMessage::Close { reply }).await.unwrap()
    }

    /// The log is stored, once, in order.
    fn assert_stored(&self) {
        let log: Vec<_> = self.core.log().iter().map(|e| Bytes::from(e.to_json())).collect();
        assert!(self.medium.shelf().events == log, "the store holds what was accepted");
    }

    fn stored(&self) -> usize {
        self.medium.shelf().events.len()
    }

    fn durable(&self) -> usize {
        self.medium.shelf().durable
    }
}

fn code(result: Result<bool, SessionError>) -> String {
    result.map_or_else(|error| error.code().to_owned(), |flushed| flushed.to_string())
}
