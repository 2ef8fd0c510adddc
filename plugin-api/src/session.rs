//! Sessions as plugins and programs see them: snapshots, appends, subscriptions.

mod events;

use std::{
    collections::VecDeque,
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::future::select;
use playhouse_messages::{
    chunk::Failure,
    event::{NewEvent, Seq, SharedEvent},
    header::SessionHeader,
    history::History,
    id::SessionId,
    inbox::Inbox,
    log::Log,
    protocol::{CommandNo, SessionMessage, WriterMessage},
    runtime_context::RuntimeContext,
    selection::ModelSelection,
    session::{Reply, SessionCore},
    session_state::{AppendError, KnownKinds, LoadError},
};

use crate::{
    feed::{Frames, LiveFeed},
    slot::{Gone, Slot},
    store::SessionWriter,
    undurable::{Share, Undurable},
    watch,
};

pub use self::events::Events;

/// How many answered commands a session remembers, so that one that is sent again is not run again.
/// An agent has at most a few under way; appends of plugins share the rest.
const ANSWERS_MAX: usize = 64;

/// How long a sender that waits for a failing store leaves it alone.
const FLUSH_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A session in the world: its log, swapped whole, and the way to the actors that extend and store
/// it. Outlives every one of them.
pub struct SessionCell {
    header: Arc<SessionHeader>,
    inherited_event_count: u64,
    known: Arc<KnownKinds>,
    view: ArcSwap<SessionView>,
    /// Held over the comparison and the swap of a publication.
    publishing: Mutex<()>,
    len: watch::Sender<Seq>,
    marks: watch::Sender<Marks>,
    feed: Arc<LiveFeed>,
    handle: Option<Arc<dyn SessionWriter>>,
    share: Share,
    /// The actor that holds the right to append.
    pub appender: Slot<SessionMessage>,
    /// The actor that writes to the store; closed for a session in memory only.
    pub writer: Slot<WriterMessage>,
}

/// A session at one moment. Cheap to hold: it shares everything with later ones.
#[derive(Debug, Clone)]
pub struct SessionView {
    /// The log.
    pub log: Log,
    /// The messages that the model sees.
    pub history: History,
    /// What the inbox holds.
    pub inbox: Inbox,
    /// What the model was last told of the runtime.
    pub runtime_context: RuntimeContext,
    /// The chosen model, and the last one used.
    pub selection: Arc<ModelSelection>,
    /// Counts the changes of the surface other than appends.
    pub content_generation: u64,
    /// The last turn that was opened; 0 for none.
    pub last_turn: u32,
    /// How many attempts of the open step have failed.
    pub failed_attempts: u32,
    /// Answers to the last commands.
    answers: Arc<VecDeque<(CommandNo, Reply)>>,
    /// The latest life of the agent's actor that a command came from.
    origin: u64,
}

/// Somebody else has appended meanwhile: the log is not the one that was started from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another appender has extended the log")]
pub struct Overtaken;

/// How far the log has got on its way to the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// Survives `kill -9` up to here, exclusive.
    pub written: Seq,
    /// Survives power loss up to here, exclusive.
    pub durable: Seq,
}

impl SessionView {
    fn of(core: &SessionCore, answers: Arc<VecDeque<(CommandNo, Reply)>>, origin: u64) -> Self {
        Self {
            log: core.log().clone(),
            history: core.state().history().clone(),
            inbox: core.state().inbox().clone(),
            runtime_context: core.state().runtime_context().clone(),
            selection: core.state().selection().clone(),
            content_generation: core.state().surface().content_generation(),
            last_turn: core.state().boundary().last_turn(),
            failed_attempts: core.state().boundary().open_step().map_or(0, |step| step.attempts),
            answers,
            origin,
        }
    }

    /// Whether a command comes from a life of the agent's actor whose successor has been heard: it
    /// died with the command on its way, and what it wanted is not wanted any more.
    pub fn is_late(&self, number: CommandNo) -> bool {
        number.origin != 0 && number.origin < self.origin
    }

    /// What a command was answered, if it was run already.
    pub fn answer(&self, number: CommandNo) -> Option<&Reply> {
        self.answers.iter().rev().find(|(no, _)| *no == number).map(|(_, reply)| reply)
    }
}

impl SessionCell {
    /// Puts a session into the world. `handle` is the claim on its storage, `None` for a session in
    /// memory only; `stored` is how many of its events the store holds durably. What it holds beside
    /// them counts in `undurable`.
    pub fn new(
        core: &SessionCore,
        inherited_event_count: u64,
        known: Arc<KnownKinds>,
        handle: Option<Arc<dyn SessionWriter>>,
        stored: Seq,
        undurable: Arc<Undurable>,
    ) -> Arc<Self> {
        let view = SessionView::of(core, Arc::default(), 0);
        let cell = Arc::new(Self {
            header: core.header().clone(),
            inherited_event_count,
            known,
            len: watch::Sender::new(view.log.len()),
            view: ArcSwap::from_pointee(view),
            publishing: Mutex::new(()),
            marks: watch::Sender::new(Marks { written: stored, durable: stored }),
            feed: Arc::new(LiveFeed::new()),
            handle,
            share: Share::new(undurable),
            appender: Slot::new(),
            writer: Slot::new(),
        });
        if cell.handle.is_some() {
            cell.share.whole().enrol(&cell);
        }
        cell.count(stored, core.log());
        cell
    }

    /// Counts the events from `from` on as not durable.
    fn count(&self, from: Seq, log: &Log) {
        if self.handle.is_some() {
            let bytes = log.range(from..log.len()).map(|event| event.json_len()).sum();
            self.share.add(log.len(), bytes);
        }
    }

    /// Bytes of JSON that are accepted and not durable; 0 if no store keeps the session.
    pub fn undurable_bytes(&self) -> u64 {
        self.share.bytes()
    }

    /// There will be no writer any more, and nobody waits for one.
    pub fn close_writer(&self) {
        self.writer.close();
        self.share.end();
        self.marks.send_modify(|_| ());
    }

    /// The session's id.
    pub fn id(&self) -> &SessionId {
        &self.header.id
    }

    /// The session as it is now.
    pub fn view(&self) -> Arc<SessionView> {
        self.view.load_full()
    }

    /// Folds the current log anew: what a new appender starts from.
    pub fn load(&self) -> Result<SessionCore, LoadError> {
        SessionCore::load(self.header.clone(), self.view.load().log.clone(), &self.known)
    }

    /// Publishes what a command appended to a log of `from` events, together with its answer: one
    /// swap, so that an appender that dies has either done both or nothing. Only the appender calls
    /// this.
    ///
    /// # Errors
    ///
    /// The log is not that long any more, and stays as it is: an appender that was killed may still be
    /// at its last command when its successor begins, and only one of them may go on.
    pub fn publish(
        &self,
        core: &SessionCore,
        from: Seq,
        number: CommandNo,
        reply: &Reply,
    ) -> Result<(), Overtaken> {
        let _one = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.view.load();
        if before.log.len() != from {
            return Err(Overtaken);
        }
        let mut answers = VecDeque::clone(&before.answers);
        if answers.len() == ANSWERS_MAX {
            answers.pop_front();
        }
        answers.push_back((number, reply.clone()));
        let origin = before.origin.max(number.origin);
        // Before anybody can read them, and so make them durable.
        self.count(from, core.log());
        self.view.store(Arc::new(SessionView::of(core, answers.into(), origin)));
        let len = core.log().len();
        self.len.send_if_modified(|known| std::mem::replace(known, len) != len);
        Ok(())
    }

    /// Moves the marks forward. Only the writer calls this.
    pub fn mark(&self, written: Seq, durable: Seq) {
        self.share.release(durable);
        self.marks.send_if_modified(|marks| {
            let before = *marks;
            marks.written = marks.written.max(written).max(durable);
            marks.durable = marks.durable.max(durable);
            *marks != before
        });
    }

    /// How far the log has got on its way to the disk.
    pub fn marks(&self) -> watch::Receiver<Marks> {
        self.marks.subscribe()
    }

    /// The claim on the session's storage: passed from one writer to the next.
    pub fn handle(&self) -> Option<&Arc<dyn SessionWriter>> {
        self.handle.as_ref()
    }

    /// The live stream of the session's agent.
    pub fn feed(&self) -> &Arc<LiveFeed> {
        &self.feed
    }
}

impl fmt::Debug for SessionCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionCell({}, {} events)", self.header.id, *self.len.borrow())
    }
}

/// A live session. Clones are the same one.
#[derive(Clone)]
pub struct Session(Arc<SessionCell>);

/// Why an append did not happen.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The log refuses the events.
    #[error(transparent)]
    Refused(#[from] AppendError),
    /// Nobody can append any more.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The store failed; the events stay accepted, and the next flush tries again.
    #[error("{0}")]
    Store(Failure),
}

impl SessionError {
    /// A stable code for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused(error) => error.code(),
            Self::Gone(gone) => gone.code(),
            Self::Store(failure) => &failure.code,
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Store(failure) => failure,
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

impl Session {
    /// A handle to a session in the world.
    pub fn new(cell: Arc<SessionCell>) -> Self {
        Self(cell)
    }

    /// The session's id.
    pub fn id(&self) -> &SessionId {
        &self.0.header.id
    }

    /// The session's header.
    pub fn header(&self) -> &Arc<SessionHeader> {
        &self.0.header
    }

    /// How many leading events were inherited from a fork's parent.
    pub fn inherited_event_count(&self) -> u64 {
        self.0.inherited_event_count
    }

    /// The session as it is now, without a trip to any mailbox.
    pub fn view(&self) -> Arc<SessionView> {
        self.0.view()
    }

    /// The log as it is now.
    pub fn log(&self) -> Log {
        self.0.view.load().log.clone()
    }

    /// Appends one event; see [`Session::append_all`].
    pub async fn append(&self, event: NewEvent) -> Result<SharedEvent, SessionError> {
        let mut events = self.append_all(vec![event]).await?;
        // One event in, one event out.
        events.pop().ok_or(SessionError::Gone(Gone))
    }

    /// Appends events, all or none, with nothing in between. Resolves once **accepted**, and later if
    /// the session [is behind](Session::is_behind); use [`Session::flush`] for more. Survives restarts of the session's actor without appending
    /// twice. Dropping the future does not take the events back.
    pub async fn append_all(
        &self,
        events: Vec<NewEvent>,
    ) -> Result<Vec<SharedEvent>, SessionError> {
        let number = CommandNo { origin: 0, number: next_append() };
        let appended = self
            .0
            .appender
            .call(|_, reply| SessionMessage::Append { number, events: events.clone(), reply })
            .await??;
        if self.is_behind() {
            self.caught_up().await;
        }
        Ok(appended)
    }

    /// Makes the log, as it is now, **durable**. `false` if no store keeps the session. On failure
    /// the events stay accepted, and a later flush tries again.
    pub async fn flush(&self) -> Result<bool, SessionError> {
        match self.0.writer.call(|_, reply| WriterMessage::Flush { reply }).await {
            Ok(flushed) => flushed.map(|_| true).map_err(SessionError::Store),
            Err(Gone) => Ok(false),
        }
    }

    /// How far the log has got on its way to the disk.
    pub fn marks(&self) -> watch::Receiver<Marks> {
        self.0.marks()
    }

    /// Whether the harness holds so much that is accepted and not durable, and the session some of it,
    /// that whoever adds to it should wait.
    pub fn is_behind(&self) -> bool {
        self.0.share.whole().is_over() && self.0.share.bytes() > 0
    }

    /// Resolves once the log is durable, or the harness holds little enough that is not, or no store
    /// keeps the session any more. Asks for the sync that it waits for. Safe to drop.
    pub async fn caught_up(&self) {
        let (mut marks, mut falls) = (self.marks(), self.0.share.whole().falls());
        while self.is_behind() {
            self.0.share.whole().relieve();
            let flush = async {
                if self.flush().await.is_err() {
                    tokio::time::sleep(FLUSH_AGAIN_AFTER).await;
                }
            };
            let (marks, falls) = (pin!(marks.changed()), pin!(falls.changed()));
            let _ = select(pin!(flush), select(marks, falls)).await;
        }
    }

    /// Reads the log from `from` on and then along: every event, in order, at the reader's pace.
    pub fn events(&self, from: Seq) -> Events {
        Events::new(self.0.clone(), from)
    }

    /// Reads the live stream along.
    pub fn frames(&self) -> Frames {
        self.0.feed.subscribe()
    }

    /// The session's place in the world, for the actors.
    pub fn cell(&self) -> &Arc<SessionCell> {
        &self.0
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An origin for the commands of one life of an agent's actor; 0 is that of appends.
pub fn fresh_origin() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Numbers appends process-wide, under an origin of their own.
fn next_append() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use playhouse_messages::session::{Command, Mint};
    use serde_json::json;

    use super::*;

    struct Count(i64);

    impl Mint for Count {
        fn now(&mut self) -> i64 {
            self.0 += 1;
            self.0
        }

        fn message_id(&mut self) -> playhouse_messages::id::MessageId {
            "m".into()
        }
    }

    #[test]
    fn of_two_appenders_one_is_overtaken_and_the_log_keeps_what_it_has() {
        let header = Arc::new(SessionHeader::new("s".into(), 0));
        let known = Arc::new(KnownKinds::new());
        let core = SessionCore::load(header, Log::new(), &known).unwrap();
        let cell = SessionCell::new(&core, 0, known, None, 0, Undurable::new(0));
        let append = |by: u64| {
            let mut core = cell.load().unwrap();
            let note = NewEvent::custom("x/note", json!({"by": by})).ignorable();
            let reply = core.execute(Command::Append(vec![note]), &mut Count(0));
            (core, CommandNo { origin: by, number: by }, reply)
        };
        let (first, second) = (append(7), append(5));
        assert_eq!(cell.publish(&first.0, 0, first.1, &first.2), Ok(()));
        assert_eq!(cell.publish(&second.0, 0, second.1, &second.2), Err(Overtaken));
        let view = cell.view();
        assert!(view.log.iter().eq(first.0.log().iter()));
        assert!(view.answer(first.1).is_some() && view.answer(second.1).is_none());
        // What an earlier life of the agent sent is late; appends have no life.
        let late = |origin| view.is_late(CommandNo { origin, number: 1 });
        assert_eq!([0, 5, 7, 8].map(late), [false, true, false, false]);
    }
}
