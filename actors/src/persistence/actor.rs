use std::{collections::VecDeque, panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::{
    chunk::Failure,
    event::{Seq, SharedEvent},
    id::SessionId,
    protocol::WriterMessage,
};
use playhouse_plugin_api::{
    delay,
    hook::panic_failure,
    session::SessionCell,
    store::{EventBatch, SessionWriter, StoreError},
};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::task::JoinSet;
use tracing::Instrument;

/// Events of one append: enough to make a write worth its syscall, few enough to bound its memory.
const BATCH_EVENTS_MAX: u64 = 1024;

/// The shell around a session's write handle.
#[derive(Debug)]
pub struct WriterActor;

/// What the shell is started with.
pub struct WriterArgs {
    /// The session.
    pub cell: Arc<SessionCell>,
    /// Its write handle.
    pub handle: Arc<dyn SessionWriter>,
}

type FlushReply = RpcReplyPort<Result<Seq, Failure>>;
type DoneReply = RpcReplyPort<Result<(), Failure>>;

/// The shell's state.
pub struct WriterShell {
    args: WriterArgs,
    /// Written up to here by this life or one before.
    cursor: Seq,
    busy: bool,
    /// Counts the operations that were begun.
    begun: u64,
    /// A write failed: nothing is tried again until somebody flushes.
    paused: bool,
    tails: VecDeque<(u64, Bytes, DoneReply)>,
    flushes: Vec<Flush>,
    close: Option<Close>,
    /// What went wrong since the close was asked for.
    unclean: Option<Failure>,
    tasks: JoinSet<()>,
}

/// Somebody waits for durable.
struct Flush {
    upto: Seq,
    /// The operation that was under way when it was asked for: its failure is none of this one's, which
    /// is yet to try.
    during: Option<u64>,
    reply: FlushReply,
}

/// Somebody waits for the end.
struct Close {
    during: Option<u64>,
    reply: DoneReply,
}

/// The operation under way.
enum Work {
    Append(EventBatch, Seq),
    Tail(u64, Bytes, DoneReply),
    Flush(Seq),
    Close(DoneReply, Option<Failure>),
}

impl WriterShell {
    /// Starts the next operation, unless one is under way. Appends come first, so that a tail never
    /// precedes its step and a flush covers what came before it.
    fn pump(&mut self, myself: &ActorRef<WriterMessage>) {
        if self.busy {
            return;
        }
        let Some(work) = self.next_work() else { return };
        self.busy = true;
        self.begun += 1;
        let handle = self.args.handle.clone();
        let cell = self.args.cell.clone();
        let myself = myself.clone();
        let span = tracing::debug_span!("flush", session = %self.session());
        let work = async move {
            let done = |through, durable, failure: Option<Failure>| {
                // A successor starts from the marks.
                let _ = myself.cast(WriterMessage::Written { through, durable, failure });
            };
            match work {
                Work::Append(batch, through) => {
                    done(through, false, attempt(|| handle.append(batch)).await.err());
                }
                Work::Tail(attempt, part, reply) => {
                    let _ = reply.send(self::attempt(|| handle.tail(attempt, part)).await);
                    done(0, false, None);
                }
                Work::Flush(through) => {
                    done(through, true, attempt(|| handle.flush()).await.err());
                }
                Work::Close(reply, unclean) => {
                    let closed = attempt(|| handle.close()).await;
                    // Before anybody hears of it: there is no successor to wait for.
                    cell.close_writer();
                    // What was not written comes first: it is why.
                    let _ = reply.send(unclean.map_or(closed, Err));
                    myself.stop(None);
                }
            }
        };
        self.tasks.spawn(work.instrument(span));
    }

    fn next_work(&mut self) -> Option<Work> {
        let log = self.args.cell.view().log.clone();
        if !self.paused && self.cursor < log.len() {
            let end = log.len().min(self.cursor + BATCH_EVENTS_MAX);
            let events: Vec<SharedEvent> = log.range(self.cursor..end).cloned().collect();
            return Some(Work::Append(EventBatch::encode(&events), end));
        }
        if let Some((attempt, part, reply)) = self.tails.pop_front() {
            return Some(Work::Tail(attempt, part, reply));
        }
        if !self.flushes.is_empty() {
            return Some(Work::Flush(self.cursor));
        }
        let unclean = self.unclean.take();
        self.close.take().map(|close| Work::Close(close.reply, unclean))
    }

    fn written(&mut self, through: Seq, durable: bool, failure: Option<Failure>) {
        self.busy = false;
        let (len, marks) = (self.args.cell.view().log.len(), *self.args.cell.marks().borrow());
        if let Some(failure) = failure {
            let closed = failure.code == StoreError::Closed.code() && self.close.is_some();
            if closed && self.flushes.is_empty() && marks.written >= len {
                // A predecessor died while it closed, and had written all of it.
                self.cursor = len;
                return;
            }
            tracing::warn!(session = %self.session(), %failure, "the store failed");
            let failed = Some(self.begun);
            // Whoever came while it was under way has it tried again; all others are told.
            let (retry, told): (Vec<_>, Vec<_>) =
                self.flushes.drain(..).partition(|flush| flush.during == failed);
            self.flushes = retry;
            let closes = self.close.as_ref().map(|close| close.during == failed);
            self.paused = self.flushes.is_empty() && closes != Some(true);
            if closes == Some(false) {
                self.unclean.get_or_insert_with(|| failure.clone());
            }
            for flush in told {
                let _ = flush.reply.send(Err(failure.clone()));
            }
            return;
        }
        self.cursor = self.cursor.max(through);
        self.args.cell.mark(self.cursor, if durable { through } else { 0 });
        if durable {
            let (done, later): (Vec<_>, _) =
                self.flushes.drain(..).partition(|flush| flush.upto <= through);
            self.flushes = later;
            for flush in done {
                let _ = flush.reply.send(Ok(through));
            }
        }
    }

    fn session(&self) -> &SessionId {
        self.args.cell.id()
    }
}

/// Asks the store. One that panics has failed, and no more.
async fn attempt(
    call: impl FnOnce() -> BoxFuture<'static, Result<(), StoreError>>,
) -> Result<(), Failure> {
    let asked = AssertUnwindSafe(async { call().await }).catch_unwind().await;
    match asked {
        Ok(done) => done.map_err(store_failure),
        Err(panic) => Err(panic_failure(&*panic)),
    }
}

fn store_failure(error: StoreError) -> Failure {
    Failure::new(error.code(), error.to_string())
}

impl Actor for WriterActor {
    type Msg = WriterMessage;
    type State = WriterShell;
    type Arguments = WriterArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<WriterMessage>,
        args: WriterArgs,
    ) -> Result<WriterShell, ActorProcessingErr> {
        // What was written and is not known to be durable is sent again.
        let cursor = args.cell.marks().borrow().durable;
        let _ = myself.cast(WriterMessage::Append);
        Ok(WriterShell {
            args,
            cursor,
            busy: false,
            begun: 0,
            paused: false,
            tails: VecDeque::new(),
            flushes: Vec::new(),
            close: None,
            unclean: None,
            tasks: JoinSet::new(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<WriterMessage>,
        message: WriterMessage,
        state: &mut WriterShell,
    ) -> Result<(), ActorProcessingErr> {
        delay::before_message().await;
        while state.tasks.try_join_next().is_some() {}
        let during = state.busy.then_some(state.begun);
        match message {
            WriterMessage::Append => {}
            WriterMessage::Tail { attempt, part, reply } => {
                state.tails.push_back((attempt, part, reply));
            }
            WriterMessage::Flush { reply } => {
                state.paused = false;
                let upto = state.args.cell.view().log.len();
                state.flushes.push(Flush { upto, during, reply });
            }
            WriterMessage::Close { reply } => {
                state.paused = false;
                state.close = Some(Close { during, reply });
            }
            WriterMessage::Written { through, durable, failure } => {
                state.written(through, durable, failure);
            }
        }
        state.pump(&myself);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<WriterMessage>,
        _event: SupervisionEvent,
        _state: &mut WriterShell,
    ) -> Result<(), ActorProcessingErr> {
        // It has no children; the default would stop it if it had.
        Ok(())
    }
}
