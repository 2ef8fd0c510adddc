//! `Committer`: the actor in front of the desk. It owns the queue, and when to sync.
//!
//! It guarantees that jobs are done in the order in which they came, many with one write, and that
//! what is written is durable at the latest one window later. When it dies, queued jobs are dropped
//! unanswered, and the tray gives them to the next one; the job that is being done is
//! done to its end by the desk, which then leaves the journal to the next committer's desk.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::core::Core;
use super::desk::{self, Report};
use super::job::{Item, Job};

/// The most jobs that one write serves: a sync costs as much for thousands of sessions as for one.
const COMMIT_JOBS: usize = 1024;
/// The payload at which a write is not made longer, in bytes.
const COMMIT_BYTES: usize = 1 << 20;

/// What is said to a committer.
pub(crate) enum CommitterMessage {
    /// Do this, in its turn.
    Submit(Item),
    /// The desk is free again.
    Finished(Report),
    /// A window has ended; its number.
    WindowEnded(u64),
}

pub(crate) struct Committer;

pub(crate) struct CommitterArgs {
    pub(crate) core: Arc<Core>,
    pub(crate) window: Duration,
    /// Whether another one died before it, and may have left something that is not durable.
    pub(crate) succeeds: bool,
}

pub(crate) struct CommitterState {
    args: CommitterArgs,
    queue: VecDeque<Item>,
    desk: Option<Sender<Vec<Item>>>,
    busy: bool,
    /// The open window, if something waits for its end; counts up.
    window: u64,
    window_open: bool,
}

impl Actor for Committer {
    type Msg = CommitterMessage;
    type State = CommitterState;
    type Arguments = CommitterArgs;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        args: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(CommitterState {
            args,
            queue: VecDeque::new(),
            desk: None,
            busy: false,
            window: 0,
            window_open: false,
        })
    }

    async fn post_start(
        &self,
        myself: ActorRef<Self::Msg>,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let (desk, inbox) = channel();
        let (core, told) = (Arc::clone(&state.args.core), myself.clone());
        std::thread::Builder::new().name("playhouse-journal".to_owned()).spawn(move || {
            // A committer that is gone needs no report.
            let tell = |report| drop(told.cast(CommitterMessage::Finished(report)));
            if catch_unwind(AssertUnwindSafe(|| desk::sit(core, inbox, tell))).is_err() {
                // What it was doing is unanswered, so it is sent again to the next committer.
                told.stop(Some("the thread that writes the journal panicked".to_owned()));
            }
        })?;
        state.desk = Some(desk);
        if state.args.succeeds {
            // The window of the one before went with it.
            state.open_window(&myself);
        }
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            CommitterMessage::Submit(item) => state.queue.push_back(item),
            CommitterMessage::Finished(report) => {
                state.busy = false;
                if report.unsynced && !state.window_open {
                    state.open_window(&myself);
                }
                if !report.unsynced {
                    // What the window was opened for is durable; a later timer is stale.
                    state.window_open = false;
                }
            }
            CommitterMessage::WindowEnded(window) => {
                if state.window_open && window == state.window {
                    state.window_open = false;
                    // Nobody waits for this one; a failure shows at the next flush.
                    state.queue.push_back(Item { job: Job::Sync, answer_to: None });
                }
            }
        }
        state.pump()
    }
}

impl CommitterState {
    fn open_window(&mut self, myself: &ActorRef<CommitterMessage>) {
        self.window += 1;
        self.window_open = true;
        let window = self.window;
        myself.send_after(self.args.window, move || CommitterMessage::WindowEnded(window));
    }

    /// Hands what is ready to the desk, if it is free.
    fn pump(&mut self) -> Result<(), ActorProcessingErr> {
        if self.busy || self.queue.is_empty() {
            return Ok(());
        }
        let mut items = Vec::new();
        let mut bytes = 0;
        while let Some(item) = self.queue.front() {
            let size = item.job.size();
            let over = items.len() >= COMMIT_JOBS || bytes + size > COMMIT_BYTES;
            if over && !items.is_empty() {
                break;
            }
            bytes += size;
            let is_close = matches!(item.job, Job::Close);
            items.extend(self.queue.pop_front());
            if is_close {
                break;
            }
        }
        self.busy = true;
        let desk = self.desk.as_ref().ok_or("the desk has not been set up")?;
        // The thread is gone only if it panicked: then this actor must go too.
        desk.send(items).map_err(|_| "the thread that writes the journal has panicked".into())
    }
}
